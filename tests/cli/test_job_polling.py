"""Does the live view know all events of a job, whichever node leads it?"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self, cast

import pytest

from supervisor.cli.supervisor_discovery import Answering, FoundJob
from supervisor.cli.top_view import job_polling
from supervisor.cli.top_view.job_polling import JobPoller
from supervisor.core.facts import JobState
from supervisor.edges.operators.control_client import ControlClient
from supervisor.ports.reports import JobReport, RecordedEvent

JOB = "train"


class Found:
    """A machine with one job, which is also the client of its supervisor, the journal and its reader."""

    def __init__(self) -> None:
        self.kinds: list[str] = []  # of the events, in the order of the leader's numbers
        self.told = 0
        self.answering = [self]
        self.history = self
        self.run = 1
        self.listed = 1  # the run that lists show as live
        self.runs: dict[int, str] = {}  # kinds of events, by ended run

    def __call__(self, *_: object, **__: object) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def jobs(self, *, include_ended: bool) -> list[FoundJob]:
        answering = Answering(cast("ControlClient", self), is_private=False, uid=os.geteuid())
        reports = [JobReport(JOB, JobState.RUNNING, self.listed)]
        if include_ended:
            reports += [JobReport(JOB, JobState.FAILED, run, ended_at_ns=run) for run in self.runs]
        return [FoundJob(report, answering) for report in reports]

    def tell_refusals(self) -> None:
        pass

    def watch(self, job_id: str, *, after_sequence: int, **_: object) -> Iterator[JobReport | RecordedEvent]:
        yield JobReport(JOB, JobState.RUNNING, self.run)
        for event in _events(self.kinds, after_sequence):
            self.told += 1
            yield event

    def read(self, ask: Callable[[Any], Any]) -> Any:  # noqa: ANN401 - whatever is asked for
        return ask(self)

    def recorded(self, job_id: str, submitted_at_ns: int) -> JobReport | None:
        return JobReport(job_id, JobState.FAILED, submitted_at_ns) if submitted_at_ns in self.runs else None

    def events(self, job_id: str, submitted_at_ns: int, *, after_sequence: int, limit: int) -> list[RecordedEvent]:
        return _events(self.runs[submitted_at_ns], after_sequence)[:limit]


def _events(kinds: Sequence[str], after: int) -> list[RecordedEvent]:
    return [RecordedEvent(JOB, number, ord(kind), kind, "because") for number, kind in enumerate(kinds, 1)][after:]


def test_the_events_of_the_next_leader_are_shown_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Found()
    monkeypatch.setattr(job_polling, "Supervisors", found)
    poller = JobPoller(Namespace())

    def kinds(now: str) -> str:
        found.kinds = list(now)
        return "".join(each.kind for _, each in poller.look().events)

    assert kinds("abde") == "abde"
    assert kinds("abdef") == "abdef"
    found.told = 0
    assert kinds("abdef") == "abdef"
    assert found.told == 1  # The last one shows that the leader is the same.
    assert kinds("cabdefg") == "abcdefg"
    assert kinds("abd") == "abcdefg"  # The leader is silent, and this node tells only its own.
    assert kinds("cabdefgh") == "abcdefgh"


def test_a_run_that_another_one_of_its_name_replaces_has_each_event_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Found()
    monkeypatch.setattr(job_polling, "Supervisors", found)
    poller = JobPoller(Namespace())

    def kinds() -> dict[int, str]:
        told: dict[int, str] = {}
        for (_, _, run), event in poller.look().events:
            told[run] = told.get(run, "") + event.kind
        return told

    found.kinds = list("ab")
    assert kinds() == {1: "ab"}
    found.run, found.kinds, found.runs = 2, list("de"), {1: "abc"}
    assert kinds() == {1: "ab"}, "it was replaced between the list and the question"
    found.listed = 2
    assert kinds() == {1: "abc", 2: "de"}
    found.kinds = list("def")
    assert kinds() == {1: "abc", 2: "def"}
