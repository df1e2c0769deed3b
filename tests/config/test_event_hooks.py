"""Who is notified of which events, and whose setting decides what the daemon runs?"""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.config.daemon_settings import parse_daemon
from supervisor.config.event_hooks import EventHooks
from supervisor.config.resolve import parse_run
from supervisor.errors import ConfigurationError, HoldfastError


def run(*argv: str, **environ: str) -> EventHooks:
    return parse_run([*argv, "t.py"], environ=environ, cwd="/").event_hooks


def test_flags_and_variables() -> None:
    assert not run().are_set
    assert run("--on-event", "notify-send x", "--on-event-kinds", "job_failed, worker_failed") == EventHooks(
        "notify-send x", "", "job_failed,worker_failed"
    )
    assert run(PET_ON_EVENT_URL="https://h/x").url == "https://h/x"
    for argv, why in (
        (("--on-event-url", "ftp://h"), "it is not an http or https URL"),
        (("--on-event-url", "http://"), "it is not an http or https URL"),
        (("--on-event-url", "http://[::1"), "it is not an http or https URL"),
        (("--on-event-url", "http://h:99999/x"), "it is not an http or https URL"),
        (("--on-event-url", "http://h/a b"), "it is not an http or https URL"),
        (("--on-event-kinds", "Job Failed"), "Job Failed is not a kind of event"),
        (("--on-event-kinds", "job_failed,job_faild"), "job_faild is not a kind of event"),
    ):
        with pytest.raises(HoldfastError, match=why):
            run(*argv)


@pytest.mark.parametrize(
    ("kinds", "wanted", "unwanted"),
    [
        ("notable", ("running_again", "job_failed", "job_succeeded"), ("workers_started",)),
        ("all", ("workers_started",), ()),
        ("job_failed", ("job_failed",), ("job_succeeded",)),
        ("notable,workers_started", ("workers_started", "job_failed"), ("cycle_started",)),
    ],
)
def test_which_events_are_told(kinds: str, wanted: tuple[str, ...], unwanted: tuple[str, ...]) -> None:
    hooks = EventHooks("x", kinds=kinds)
    assert all(map(hooks.wants, wanted))
    assert not any(map(hooks.wants, unwanted))


def test_the_daemon_runs_only_what_its_owner_alone_can_have_written(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.yaml"
    file.write_text("on_event: logger\n")
    file.chmod(0o640)
    assert parse_daemon(["--config", str(file)], environ={}).event_hooks.command == "logger"
    file.chmod(0o660)
    with pytest.raises(ConfigurationError, match="other users may write to that file"):
        parse_daemon(["--config", str(file)], environ={})
