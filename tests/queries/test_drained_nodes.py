"""Somebody who drains another node learns when it has left, from whichever leader there is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest

from supervisor.core.cluster.cluster_messages import StopAsked
from supervisor.core.facts import JobState
from supervisor.errors import ExhaustedError, NoAnswerError
from supervisor.ports.questions import LEADER, Answer, Events, Question, ReadEvents, ShowWhole, Whole
from supervisor.ports.reports import JobNodeReport, JobReport
from supervisor.queries import drained_nodes
from tests.queries.shared_job import Shared, happened, shared_job


class Leader:
    """Answers with one state of node n1 after another; each comes with an event. None: no leader answers."""

    def __init__(self, *states: str | None) -> None:
        self._states = list(states)
        self.asked = 0

    def __call__(self, question: Question) -> Answer:
        match question:
            case ReadEvents(after_sequence) if after_sequence > self.asked:
                raise AssertionError("this leader has no such event")
            case ReadEvents(after_sequence) if after_sequence < self.asked:
                return Events(happened("n1", self.asked))
            case ReadEvents():
                return Events(())
            case ShowWhole():
                self.asked += 1
                state = self._states.pop(0)
                if state is None:
                    raise NoAnswerError("cannot ask the leader: it is not connected")
                nodes: Sequence[JobNodeReport] = [JobNodeReport("n0", "active", 0)]
                nodes = [*nodes, JobNodeReport("n1", state)] if state else nodes
                return Whole(JobReport("j", JobState.RUNNING, 1, nodes=tuple(nodes)), ())
            case _:
                raise AssertionError(question)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drained_nodes, "NO_LEADER_S", 0.0)
    monkeypatch.setattr(drained_nodes, "UNNAMED_S", 0.0)


async def until_left(shared: Shared) -> None:
    with anyio.fail_after(10):
        await shared.job_service.until_left("j", "n1")


@pytest.mark.parametrize(
    ("states", "asked"),
    [
        (("left", "active"), 1),
        (("active", "leaving", "left"), 3),
        (("active", "lost"), 2),
        (("active", None, None, "left"), 4),
        (("leaving", "", "active", "left"), 4),
        (("leaving", "", ""), 3),
    ],
    ids=["at-once", "leaves", "is-lost", "no-leader-answers", "a-new-leader-hears-it-later", "no-leader-knows-it"],
)
async def test_the_leader_is_asked_until_the_node_is_gone(
    tmp_path: Path, states: tuple[str | None, ...], asked: int
) -> None:
    async with shared_job(tmp_path, leads=False) as shared:
        shared.node_requests.answers[LEADER] = leader = Leader(*states)
        await until_left(shared)
        assert leader.asked == asked


async def test_a_leader_whose_disk_hangs_still_says_that_the_node_has_left(tmp_path: Path) -> None:
    leader = Leader("active", "left")

    def answer(question: Question) -> Answer:
        if isinstance(question, ReadEvents):
            raise ExhaustedError("cannot read the history: /state does not answer")
        return leader(question)

    async with shared_job(tmp_path, leads=False) as shared:
        shared.node_requests.answers[LEADER] = answer
        await until_left(shared)
        assert leader.asked == 2


async def test_the_end_of_the_job_here_ends_the_wait(tmp_path: Path) -> None:
    async with shared_job(tmp_path, leads=False) as shared, anyio.create_task_group() as tasks:
        tasks.start_soon(until_left, shared)  # No leader answers.
        await shared.report(StopAsked("enough", 0))
        await shared.world.job_service.wait("j")
    async with shared_job(tmp_path, leads=False) as shared:
        await shared.job_service.until_left("another", "n1")
