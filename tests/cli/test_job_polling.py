"""Does the live view know all events of a job, whichever node leads it?"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterator
from typing import Self, cast

import pytest

from supervisor.cli.live import job_polling
from supervisor.cli.live.job_polling import Lookout
from supervisor.cli.supervisor_discovery import Answering, FoundJob
from supervisor.core.facts import JobState
from supervisor.edges.operators.control_client import ControlClient
from supervisor.ports.reports import JobReport, RecordedEvent

JOB = "train"


class Found:
    """A machine with one job, which is also the client of its supervisor."""

    def __init__(self) -> None:
        self.kinds: list[str] = []  # of the events, in the order of the leader's numbers
        self.told = 0
        self.answering = [self]

    def __call__(self, *_: object, **__: object) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def jobs(self, *, include_ended: bool) -> list[FoundJob]:
        answering = Answering(cast("ControlClient", self), is_private=False, uid=os.geteuid())
        return [FoundJob(JobReport(JOB, JobState.RUNNING, 1), answering)]

    def tell_refusals(self) -> None:
        pass

    def watch(self, job_id: str, *, after_sequence: int, within_s: float | None) -> Iterator[JobReport | RecordedEvent]:
        yield JobReport(JOB, JobState.RUNNING, 1)
        for number, kind in enumerate(self.kinds[after_sequence:], after_sequence + 1):
            self.told += 1
            yield RecordedEvent(JOB, number, ord(kind), kind, "because")


def test_the_events_of_the_next_leader_are_shown_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Found()
    monkeypatch.setattr(job_polling, "Supervisors", found)
    lookout = Lookout(Namespace())

    def kinds(now: str) -> str:
        found.kinds = list(now)
        return "".join(each.kind for each in lookout.look().events)

    assert kinds("abde") == "abde"
    assert kinds("abdef") == "abdef"
    found.told = 0
    assert kinds("abdef") == "abdef"
    assert found.told == 1  # The last one shows that the leader is the same.
    assert kinds("cabdefg") == "abcdefg"
    assert kinds("abd") == "abcdefg"  # The leader is silent, and this node tells only its own.
    assert kinds("cabdefgh") == "abcdefgh"
