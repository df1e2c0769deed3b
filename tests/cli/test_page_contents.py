"""Are ages fresh while somebody reads the page, and is no supervisor asked for them while nobody does?"""

from __future__ import annotations

import threading
from argparse import Namespace
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread

from supervisor.cli import output
from supervisor.cli.site import rank_rows
from supervisor.cli.site.page_contents import Known, PageContents
from supervisor.ports.pauses import pause
from tests.edges.operators.fake_job_service import FakeJobService, running, serving

JOB = "train-7f3a"
EVERY_S = 0.05


class Reader:
    """Keeps what it was told, as a page does."""

    def __init__(self, contents: PageContents, changed: threading.Event) -> None:
        self._contents, self._changed = contents, changed
        self._known = Known()
        self.jobs: dict[str, Any] = {}
        self.looks: dict[str, Any] = {}
        self.versions = 0

    def read(self) -> None:
        self._changed.clear()
        told: dict[str, Any] = self._contents.news(self._known)
        self.versions += bool(told["jobs"])
        self.jobs |= told["jobs"]
        self.looks |= told["looks"]

    def read_until(self, age_s: float) -> None:
        """Until rank 2 of the only job has been silent for so long."""
        for _ in range(2_000):
            self.read()
            if any(each["ranks"][2]["age_s"] == age_s for each in self.looks.values()):
                return
            assert self._changed.wait(10)
        raise AssertionError(self.looks)


@asynccontextmanager
async def followed(job_service: FakeJobService, folder: Path) -> AsyncGenerator[tuple[PageContents, threading.Event]]:
    changed = threading.Event()
    async with serving(job_service, folder / "control.sock"):
        contents = PageContents(Namespace(socket_dir=str(folder), state_dir=str(folder / "state")), changed.set)
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
                await to_thread.run_sync(partial(reader.read_until, age_s))
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
            await to_thread.run_sync(partial(Reader(contents, changed).read_until, 30.0))
        last = job_service.looks
        await pause(10 * EVERY_S, why="that nothing happens has no event")
        assert job_service.looks <= last + 1  # One was due.


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
