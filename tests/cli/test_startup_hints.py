"""What is said once the first workers start, and not before?"""

from __future__ import annotations

import pytest

from supervisor.cli.startup_hints import StartupHints
from supervisor.config.environment import ONE_THREAD


def test_a_hint_for_workers_is_said_once_as_they_start(capfd: pytest.CaptureFixture[str]) -> None:
    first = StartupHints(["something else", ONE_THREAD])
    for kind in ("job_submitted", "spawner_ready", "job_failed"):
        first.hear(kind)
    assert capfd.readouterr().err == ""
    first.hear("cycle_started")
    first.hear("cycle_started")
    assert capfd.readouterr().err == f"holdfast: {ONE_THREAD}\n"
