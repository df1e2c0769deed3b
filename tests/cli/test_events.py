"""Does `holdfast events` show each event once, whichever source tells it with which numbers?"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self, cast

import pytest

from supervisor.cli import events
from supervisor.cli.supervisor_discovery import Answering, FoundJob
from supervisor.core.facts import JobState
from supervisor.edges.operators.control_client import ControlClient
from supervisor.errors import HoldfastError, NoSupervisorError
from supervisor.ports.reports import JobReport, RecordedEvent

JOB = "train"
GONE = NoSupervisorError("cannot ask the supervisor: it has gone")


def event(sequence: int, kind: str, *, node: str = "n0") -> RecordedEvent:
    return RecordedEvent(JOB, sequence, sum(kind.encode()), kind, "because", node=node)


class Client:
    """Each question gets the next of the answers; an error ends one."""

    def __init__(self, *answers: Sequence[RecordedEvent | HoldfastError]) -> None:
        self.answers = list(answers)
        self.run = 1

    def watch(self, job_id: str, *, after_sequence: int, **_: object) -> Iterator[JobReport | RecordedEvent]:
        assert (job_id, after_sequence) == (JOB, 0)
        yield JobReport(JOB, JobState.RUNNING, self.run)
        for each in self.answers.pop(0):
            if isinstance(each, HoldfastError):
                raise each
            yield each


class Found:
    """The command's view of a machine; also the journal there, and its reader."""

    def __init__(
        self,
        client: Client,
        *,
        pid: int = 0,
        state: JobState = JobState.RUNNING,
        recorded: Callable[[], Sequence[RecordedEvent]] = list,
    ) -> None:
        self._job = FoundJob(
            JobReport(JOB, state, 1),
            Answering(cast("ControlClient", client), is_private=bool(pid), uid=os.geteuid(), pid=pid),
        )
        self._recorded = recorded
        self.recorded_runs = {1}
        self.history = self

    def __call__(self, *_: object, **__: object) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def find(self, name: str, *, verb: str) -> FoundJob:
        return self._job

    def read(self, ask: Callable[[Any], Any]) -> Any:  # noqa: ANN401 - whatever is asked for
        return ask(self)

    def job(self, job_id: str) -> JobReport | None:
        return JobReport(job_id, JobState.FAILED, max(self.recorded_runs)) if self.recorded_runs else None

    def recorded(self, job_id: str, submitted_at_ns: int) -> JobReport | None:
        return JobReport(job_id, JobState.FAILED, submitted_at_ns) if submitted_at_ns in self.recorded_runs else None

    def events(self, job_id: str, submitted_at_ns: int, *, after_sequence: int, limit: int) -> list[RecordedEvent]:
        assert (job_id, submitted_at_ns) == (JOB, 1)
        return [each for each in self._recorded() if each.sequence > after_sequence][:limit]


def shown(
    found: Found, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *options: str, said: str = ""
) -> list[str]:
    monkeypatch.setattr(events, "Supervisors", found)
    parser = ArgumentParser()
    events.add_arguments(parser)
    assert events.execute(parser.parse_args([JOB, "-o", "jsonl", *options])) == 0
    printed = capsys.readouterr()
    assert said in printed.err
    return [json.loads(line)["kind"] for line in printed.out.splitlines()]


def test_what_follows_the_last_events_is_new_though_the_leader_numbers_it_lower(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = [event(399, "a"), event(400, "b"), event(401, "c")]
    leaders = [event(1, "d", node="n1"), event(2, "e", node="n1"), event(3, "f", node="n1"), event(4, "c")]
    found = Found(Client(own, leaders))
    assert shown(found, monkeypatch, capsys, "-n", "2", "-f") == ["b", "c", "d", "e", "f"]


@pytest.fixture
def supervisor() -> Iterator[subprocess.Popen[bytes]]:
    """Runs until its stdin is closed."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_the_journal_is_read_once_the_private_supervisor_has_ended(
    supervisor: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its numbers are those of this node, though the job seemed to have one node when it was first seen."""
    assert supervisor.stdin is not None

    def recorded() -> list[RecordedEvent]:
        last = [event(2, "last")] if supervisor.poll() is not None else []
        return [event(1, "first"), *last]

    found = Found(Client([event(57, "first"), GONE]), pid=supervisor.pid, recorded=recorded)
    ends = threading.Timer(0.3, supervisor.stdin.close)
    ends.start()
    assert shown(found, monkeypatch, capsys, "-f") == ["first", "last"]
    ends.join()


def test_a_run_that_has_ended_has_no_events_of_a_later_one_of_its_id(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = Client([event(1, "later")])
    client.run = 2
    assert shown(Found(client, recorded=lambda: [event(1, "own")]), monkeypatch, capsys) == ["own"]


@pytest.mark.parametrize("later", [True, False], ids=["later run", "gone"])
def test_another_run_in_the_journal_stands_for_no_events_of_this_one(
    later: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = Client([] if later else [GONE])
    client.run = 2 if later else 1
    found = Found(client, state=JobState.FAILED)
    found.recorded_runs = {2}
    if later:
        assert shown(found, monkeypatch, capsys, said="the events of this run of job train are not known here") == []
    else:
        with pytest.raises(NoSupervisorError):
            shown(found, monkeypatch, capsys)


def test_what_is_missing_is_said_once_though_the_last_events_are_read_apart(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = Client([], [])
    client.run = 2
    found = Found(client)
    found.recorded_runs = {2}
    monkeypatch.setattr(events, "Supervisors", found)
    parser = ArgumentParser()
    events.add_arguments(parser)
    assert events.execute(parser.parse_args([JOB, "-n", "2", "-f"])) == 0
    assert capsys.readouterr().err.count("the events of this run of job train are not known here") == 1
