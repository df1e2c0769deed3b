"""A disk never answers, below the folder, the output or the logs of one job, or below programs: that job ends with the
reason in bounded time, and nobody else waits, not even the next supervisor."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.edges.workers.spawner.frozen_scenarios import NO_FROZEN_DISK

LIMIT_S = 60
SCENARIOS = [
    "start_output",
    "start_folder",
    "killed_while_in_output",
    "killed_while_in_folder",
    "stacks",
    "services",
    "stuck_spawner",
    "killed_before_a_return",
    "thawed",
]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_nobody_else_waits(tmp_path: Path, scenario: str) -> None:
    """Each scenario runs in its own mount namespace, which nobody else sees."""
    alone = ["unshare", "--mount", "--propagation", "private", sys.executable, "-m"]
    command = [*alone, "tests.edges.workers.spawner.frozen_scenarios", scenario, str(tmp_path)]
    done = subprocess.run(command, timeout=LIMIT_S, check=False, capture_output=True, text=True)
    if done.returncode == NO_FROZEN_DISK or "unshare failed" in done.stderr:
        pytest.skip("no file system of our own can be mounted here")
    assert done.returncode == 0, done.stderr
