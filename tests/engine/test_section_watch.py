"""Do the sections of ranks reach the leader, only if new, and does nothing else suffer if they can't?"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from supervisor.core.stragglers.straggler_messages import RankSections
from supervisor.engine import section_watch
from supervisor.engine.section_watch import SectionWatch
from supervisor.ports.questions import LEADER, Answer, Question, SectionsTaken, TellSections
from tests.queries.shared_job import Shared, shared_job

LOOK_S = 0.01


@dataclass
class FakeTallies:
    names: tuple[str, ...] = ("forward",)
    times: list[int] = field(default_factory=lambda: [0])
    total_s: list[float] = field(default_factory=lambda: [0.0])


class Pages:
    """Two ranks that close a section ten times between two checks."""

    def __init__(self) -> None:
        self.ranks = {0: FakeTallies(), 1: FakeTallies()}
        self.took_s = {0: 0.1, 1: 0.1}
        self.looks = 0

    def section_tallies(self, job_id: str, cycle: int, local_rank: int) -> FakeTallies | None:
        assert (job_id, cycle) == ("j", 0)
        self.looks += 1
        tallies = self.ranks.get(local_rank)
        if tallies is not None and self.took_s:
            tallies.times[0] += 10
            tallies.total_s[0] += 10 * self.took_s[local_rank]
        return tallies


@asynccontextmanager
async def _watching(shared: Shared, pages: Pages) -> AsyncGenerator[SectionWatch]:
    world = shared.world
    async with anyio.create_task_group() as tasks:
        watch = SectionWatch(
            pages=pages, node_requests=shared.node_requests, jobs=world.jobs, publisher=world.publisher,
            saving=world.saving, clock=world.clock,
            own_name=lambda _: "n0", slow=world.slow, tasks=tasks,
        )  # fmt: skip
        yield watch
        tasks.cancel_scope.cancel()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(section_watch, "LOOK_S", LOOK_S)


async def _until(condition: object) -> None:
    assert callable(condition)
    with anyio.fail_after(20):
        while not condition():  # noqa: ASYNC110 (the condition has no event)
            await anyio.sleep(0.002)


async def test_the_leader_names_its_own_slow_rank_and_lets_it_go(tmp_path: Path):
    pages = Pages()
    async with shared_job(tmp_path) as shared, _watching(shared, pages) as watch:
        watch.watch("j")
        watch.watch("j")
        pages.took_s = {0: 0.1, 1: 0.2}
        await _until(lambda: "straggler_found" in shared.world.journal.kinds())
        (named,) = shared.world.slow.of(shared.world.jobs["j"])
        assert (named.node, named.ranks, named.section) == ("n0", (1,), "forward")
        report = shared.world.job_service.job("j")
        assert report is not None
        assert report.stragglers == (named,)
        pages.took_s = {0: 0.1, 1: 0.1}
        await _until(lambda: "straggler_gone" in shared.world.journal.kinds())
        assert shared.world.slow.of(shared.world.jobs["j"]) == ()


async def test_another_node_tells_the_leader_what_is_new_at_the_leaders_pace(tmp_path: Path):
    pages = Pages()
    taken: list[TellSections] = []

    def take(question: Question) -> Answer:
        assert isinstance(question, TellSections)
        taken.append(question)
        return SectionsTaken(LOOK_S)

    async with shared_job(tmp_path, leads=False) as shared, _watching(shared, pages) as watch:
        shared.node_requests.answers[LEADER] = take
        watch.watch("j")
        await _until(lambda: len(taken) >= 3)
        ranks = RankSections(0, (10,), (1.0,)), RankSections(1, (10,), (1.0,))
        assert taken[0] == TellSections(0, ("forward",), ranks)
        del pages.ranks[1]
        await _until(lambda: [each.rank for each in taken[-1].ranks] == [0])
        pages.took_s = {}  # nothing is new from now on
        before = pages.looks
        await _until(lambda: pages.looks > before + 10)
        told = len(taken)
        before = pages.looks
        await _until(lambda: pages.looks > before + 10)
        assert len(taken) == told
        assert shared.world.slow.of(shared.world.jobs["j"]) == ()


async def test_a_leader_that_does_not_answer_is_asked_less_and_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    waited: list[float] = []

    async def pause(duration_s: float, *, why: str) -> None:
        waited.append(duration_s)
        await anyio.lowlevel.checkpoint()

    monkeypatch.setattr(section_watch, "pause", pause)
    async with shared_job(tmp_path, leads=False) as shared, _watching(shared, Pages()) as watch:
        watch.watch("j")
        await _until(lambda: len(waited) > 20)
    assert waited[:4] == [LOOK_S, 2 * LOOK_S, 4 * LOOK_S, 8 * LOOK_S]
    assert max(waited) == section_watch.PACE_MAX_S


async def test_a_large_job_is_told_of_seldom(tmp_path: Path):
    async with shared_job(tmp_path) as shared, _watching(shared, Pages()) as watch:
        told = TellSections(0, ("forward",), (RankSections(0, (10,), (1.0,)),))
        paces_s = [watch.hear("j", f"n{number}", told).pace_s for number in range(1024)]
        assert paces_s[0] == LOOK_S
        assert paces_s[-1] == pytest.approx(1024 * section_watch.PACE_S)


async def test_a_defect_ends_the_comparison_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    class Broken(Pages):
        def section_tallies(self, job_id: str, cycle: int, local_rank: int) -> FakeTallies | None:
            raise ZeroDivisionError

    async with shared_job(tmp_path) as shared, _watching(shared, Broken()) as watch:
        watch.watch("j")
        await _until(lambda: "not compared any more" in caplog.text)
        report = shared.world.job_service.job("j")
        assert report is not None
        assert not report.state.has_ended


async def test_slow_ranks_stand_beside_their_node(tmp_path: Path):
    pages = Pages()
    pages.took_s = {0: 0.1, 1: 0.3}
    async with shared_job(tmp_path) as shared, _watching(shared, pages) as watch:
        watch.watch("j")
        await _until(lambda: shared.world.slow.of(shared.world.jobs["j"]))
        (node,) = [
            each for each in await shared.job_service.nodes() if each.name == shared.world.job_service.node().name
        ]
        assert "rank 1 on node n0 is slow in section 'forward'" in node.reason
