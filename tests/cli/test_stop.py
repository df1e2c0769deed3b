"""Does `holdfast stop --wait` wait for the end of the job, also if its supervisor ends or tells too little before?"""

from __future__ import annotations

import subprocess
import threading
from argparse import Namespace
from collections.abc import Iterator
from typing import Self, cast

import pytest

from supervisor.cli import stop
from supervisor.cli.supervisor_discovery import Answering, FoundJob
from supervisor.core.facts import JobState
from supervisor.edges.operators.control_client import ControlClient
from supervisor.errors import NoSupervisorError
from supervisor.ports.reports import JobReport

JOB = "train"


class Client:
    def stop(self, job_id: str, *, reason: str, signal: int) -> None:
        assert (job_id, signal) == (JOB, 0)

    def watch(self, job_id: str, *, follow: bool) -> Iterator[JobReport]:
        yield JobReport(job_id, JobState.STOPPING, 1, reason="is being stopped")
        raise NoSupervisorError("cannot ask the supervisor: it has closed the connection")


class Found:
    """The commands' view of a machine: the job's record says that it has ended once its supervisor has."""

    def __init__(self, supervisor: subprocess.Popen[bytes]) -> None:
        self._supervisor = supervisor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def live_parts(self, job: FoundJob) -> list[FoundJob]:
        return [job]

    def find(self, name: str, *, verb: str) -> FoundJob:
        is_over = self._supervisor.poll() is not None
        state, reason = (JobState.STOPPED, "stopped by root") if is_over else (JobState.STOPPING, "is being stopped")
        return FoundJob(JobReport(name, state, 1, reason=reason), None)


@pytest.fixture
def supervisor() -> Iterator[subprocess.Popen[bytes]]:
    """Runs until its stdin is closed."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def stop_and_wait(monkeypatch: pytest.MonkeyPatch, found: Found, job: FoundJob) -> int:
    def supervisors(_arguments: Namespace, *, waits: bool) -> Found:
        assert waits
        return found

    def ask_live(_found: Found, _job: str, *, verb: str) -> tuple[FoundJob, ControlClient]:
        assert verb == "stop"
        assert job.supervisor is not None
        return job, job.supervisor.client

    monkeypatch.setattr(stop, "Supervisors", supervisors)
    monkeypatch.setattr(stop, "ask_live", ask_live)
    return stop.execute(Namespace(job=JOB, reason="", signal=0, wait=True))


def test_the_record_of_a_private_job_is_read_once_its_supervisor_has_ended(
    supervisor: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answering = Answering(cast("ControlClient", Client()), True, 0, supervisor.pid)
    assert supervisor.stdin is not None
    ends = threading.Timer(0.3, supervisor.stdin.close)
    ends.start()
    code = stop_and_wait(monkeypatch, Found(supervisor), FoundJob(JobReport(JOB, JobState.RUNNING, 1), answering, 0))
    ends.join()
    assert code == 0
    assert "has ended: stopped by root" in capsys.readouterr().err


class WithoutLeader:
    """A daemon that loses sight of the job's leader for a moment, and ends its first stream."""

    def __init__(self) -> None:
        self._told = [(JobState.STOPPING, "is being stopped"), (JobState.STOPPED, "stopped by root")]

    def stop(self, job_id: str, **_: object) -> None:
        assert job_id == JOB

    def watch(self, job_id: str, **_: object) -> Iterator[JobReport]:
        state, reason = self._told.pop(0)
        yield JobReport(job_id, state, 1, reason=reason)


def test_a_stream_that_ends_before_the_job_is_not_taken_for_its_end(
    supervisor: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stop, "LOOK_AGAIN_S", 0.01)
    answering = Answering(cast("ControlClient", WithoutLeader()), False, 0, supervisor.pid)
    job = FoundJob(JobReport(JOB, JobState.RUNNING, 1), answering, 0)
    assert stop_and_wait(monkeypatch, Found(supervisor), job) == 0
    assert "has ended: stopped by root" in capsys.readouterr().err
