"""Does a reader of the page learn of each job and event once, and are ages read only while somebody reads?"""

from __future__ import annotations

import threading
from argparse import Namespace
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from msgspec.structs import replace

from supervisor.cli import output
from supervisor.cli.web_page import page_contents, rank_rows
from supervisor.cli.web_page.page_contents import Known, PageContents
from supervisor.core.facts import JobState
from supervisor.edges.machine.journal.journal import Journal
from supervisor.errors import NotNowError
from supervisor.ports.reports import JobReport, RecordedEvent
from supervisor.ports.timed_waits import pause
from tests.edges.operators.fake_job_service import FakeJobService, running, serving

JOB = "train-7f3a"
EVERY_S = 0.05


class Reader:
    """Keeps what it was told, as a page does."""

    def __init__(self, contents: PageContents, changed: threading.Event) -> None:
        self._contents, self._changed = contents, changed
        self.known = Known()
        self.jobs: dict[str, Any] = {}
        self.looks: dict[str, Any] = {}
        self.versions = 0

    def read(self) -> None:
        self._changed.clear()
        told: dict[str, Any] = self._contents.updates(self.known)
        self.versions += bool(told["jobs"])
        self.jobs = {name: job for name, job in (self.jobs | told["jobs"]).items() if name in told["order"]}
        self.looks = {name: look for name, look in (self.looks | told["looks"]).items() if name in told["order"]}

    def read_until(self, is_told: Callable[[], bool]) -> None:
        for _ in range(2_000):
            self.read()
            if is_told():
                return
            assert self._changed.wait(10)
        raise AssertionError(self.jobs, self.looks)

    def read_until_silent(self, age_s: float) -> None:
        """Until rank 2 of the only job has been silent for so long."""
        self.read_until(lambda: any(each["ranks"][2]["age_s"] == age_s for each in self.looks.values()))

    def job(self, name: str) -> dict[str, Any]:
        (found,) = [job for job in self.jobs.values() if job["job_id"] == name]
        return found

    def events(self) -> list[str]:
        """Returns the sentences of the only job, the newest first."""
        return [event["reason"] for job in self.jobs.values() for event in job["events"]]


def shown_from(folder: Path) -> tuple[PageContents, threading.Event]:
    changed = threading.Event()
    return PageContents(Namespace(socket_dir=str(folder), state_dir=str(folder / "state")), changed.set), changed


@asynccontextmanager
async def followed(
    job_service: FakeJobService, folder: Path, journal: Journal | None = None
) -> AsyncGenerator[tuple[PageContents, threading.Event]]:
    contents, changed = shown_from(folder)
    async with serving(job_service, folder / "control.sock", journal):
        await to_thread.run_sync(contents.look_again)
        try:
            yield contents, changed
        finally:
            job_service.end(JOB, running().state.SUCCEEDED, "all ranks exited with code 0")


async def test_ages_are_fresh_while_somebody_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "REFRESH_S", EVERY_S)
    job_service = FakeJobService(running())
    async with followed(job_service, tmp_path) as (contents, changed):
        reader = Reader(contents, changed)
        with contents.reading():
            for age_s in (0.25, 30.0, 44.0):
                job_service.silence(JOB, age_s)
                await to_thread.run_sync(partial(reader.read_until_silent, age_s))
        (look,) = reader.looks.values()
        assert look["aged_s"] < 10
        assert look["every_s"] >= EVERY_S
        assert [rank["sections"] for rank in look["ranks"]] == [[{"name": "step", "age_s": 0.5, "limit_s": 3.0}]] * 4
        assert reader.versions == 1  # Only the ages have changed: the rest is not pushed again.


async def test_while_nobody_reads_no_supervisor_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "REFRESH_S", EVERY_S)
    job_service = FakeJobService(running())
    async with followed(job_service, tmp_path) as (contents, changed):
        await pause(10 * EVERY_S, why="that nothing happens has no event")
        assert job_service.looks <= 1  # for the snapshot with which the stream of events begins
        with contents.reading():
            job_service.silence(JOB, 30.0)
            await to_thread.run_sync(partial(Reader(contents, changed).read_until_silent, 30.0))
        last = job_service.looks
        await pause(10 * EVERY_S, why="that nothing happens has no event")
        assert job_service.looks <= last + 1  # One was due.


async def test_jobs_that_one_look_has_missed_are_told_again(tmp_path: Path) -> None:
    old = replace(running("old-1"), state=JobState.SUCCEEDED, reason="it ended", ended_at_ns=2_000, ranks=())
    job_service = FakeJobService(running(), old)
    contents, changed = shown_from(tmp_path)
    reader, slow_reader = Reader(contents, changed), Reader(contents, changed)
    async with serving(job_service, tmp_path / "control.sock"):
        await to_thread.run_sync(contents.look_again)
        for each in (reader, slow_reader):
            each.read()
            assert len(each.jobs) == 2
    # The supervisor has gone, and the thread that followed the live job looks again.
    await to_thread.run_sync(partial(reader.read_until, lambda: not reader.jobs))
    assert reader.known == Known()
    job_service.reports["old-1"] = replace(old, reason="it ended well")
    async with serving(job_service, tmp_path / "control.sock"):
        await to_thread.run_sync(contents.look_again)
        for each in (reader, slow_reader):
            each.read()
            assert each.job("old-1")["reason"] == "it ended well"
            assert each.job(JOB)["is_live"]
        job_service.end(JOB, JobState.SUCCEEDED, "all ranks exited with code 0")


async def test_each_event_is_shown_once_after_a_stream_has_broken(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "state", on_alarm=print)
    journal.start()
    job_service = FakeJobService(running(), journal=journal)
    journal.save(running())
    for reason in ("first", "second", "third"):
        job_service.publish(JOB, "ranks_awaited", reason)
    async with followed(job_service, tmp_path, journal) as (contents, changed):
        reader = Reader(contents, changed)
        await to_thread.run_sync(partial(reader.read_until, lambda: reader.events() == ["third", "second", "first"]))
        (broken,) = job_service.watchers
        broken.close()  # as when the job's leader is lost
        with anyio.fail_after(20):
            while not job_service.watchers or broken in job_service.watchers:
                await pause(0.01, why="nobody tells of a watcher")
        job_service.publish(JOB, "ranks_awaited", "fourth")
        await to_thread.run_sync(partial(reader.read_until, lambda: "fourth" in reader.events()))
        assert reader.events() == ["fourth", "third", "second", "first"]
    journal.close()


async def test_events_of_other_nodes_stay_when_the_leader_is_silent(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "state", on_alarm=print)
    journal.start()
    job_service = FakeJobService(running(), journal=journal)
    journal.save(running())
    job_service.publish(JOB, "ranks_awaited", "own")
    own = RecordedEvent(JOB, 2, 1_000_000_000, "ranks_awaited", "own", node="n0", rank=1)  # as the leader numbers it
    others = [
        replace(own, sequence=1, at_ns=5, node="n1", reason="a"),
        replace(own, sequence=3, at_ns=9**10, reason="b"),
    ]
    job_service.leader_events = [others[0], own, others[1]]
    job_service.leader_fails = NotNowError("the stream ends here, and the page follows the next one")
    contents, changed = shown_from(tmp_path)
    async with serving(job_service, tmp_path / "control.sock", journal):
        reader = Reader(contents, changed)
        await to_thread.run_sync(contents.look_again)
        await to_thread.run_sync(partial(reader.read_until, lambda: reader.events() == ["b", "own", "a"]))
        job_service.leader_events = None
        job_service.publish(JOB, "ranks_awaited", "new")
        await to_thread.run_sync(partial(reader.read_until, lambda: "new" in reader.events()))
        assert reader.events() == ["b", "new", "own", "a"]
        job_service.end(JOB, JobState.SUCCEEDED, "all ranks exited with code 0")
    journal.close()


async def test_a_look_says_whether_its_job_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_contents, "FOLLOWED_MAX", 1)
    job_service = FakeJobService(running(), running("eval-1", submitted_at_ns=500))
    async with followed(job_service, tmp_path) as (contents, changed):
        reader = Reader(contents, changed)
        reader.read()
        told = {name.partition("@")[0]: look["is_followed"] for name, look in reader.looks.items()}
        assert told == {JOB: True, "eval-1": False}
        assert [look["jobs_followed"] for look in reader.looks.values()] == [1, 1]


async def test_a_run_that_ends_before_it_is_followed_is_not_shown_as_the_next_one(tmp_path: Path) -> None:
    class RunsAgain(FakeJobService):
        listed: Sequence[JobReport] = (running(submitted_at_ns=1_000),)

        async def look_at_all(self) -> Sequence[JobReport]:
            return self.listed or self.jobs()

    job_service = RunsAgain(running(submitted_at_ns=2_000))
    async with followed(job_service, tmp_path) as (contents, changed):
        job_service.listed = ()
        reader = Reader(contents, changed)
        await to_thread.run_sync(partial(reader.read_until, lambda: reader.jobs.keys() == {f"{JOB}@2000"}))
        assert reader.job(JOB)["run"] == "2000"


def test_of_many_ranks_those_are_shown_that_are_worth_a_look() -> None:
    job = running(ranks=1_000)
    job_service = FakeJobService(job)
    job_service.silence(job.job_id, 30.0)
    told: dict[str, Any] = rank_rows.ranks_document(
        job_service.reports[job.job_id], now_ns=10**9, aged_s=0.1, every_s=2.0
    )
    shown = [rank["rank"] for rank in told["ranks"]]
    assert (len(shown), told["left_out"]) == (rank_rows.RANKS_MAX, 1_000 - rank_rows.RANKS_MAX)
    assert 2 in shown
    assert shown == sorted(shown)
