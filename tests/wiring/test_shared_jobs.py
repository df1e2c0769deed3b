"""Other nodes' questions are answered, the leader hears this node's news, and a cordon is kept."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from supervisor.config import JobSpec
from supervisor.edges.peers.embedded.local_peers import NoNodeRequests
from supervisor.errors import InvalidRequestError
from supervisor.ports.job_requests import RendezvousRequest
from supervisor.ports.questions import LEADER, Answer, Part, Question, ShowPart, TellUpdate, UpdateTaken
from supervisor.wiring import shared_jobs
from supervisor.wiring.shared_jobs import Counter, open_counter
from tests.queries.shared_job import SHARED, FakeNodeRequests
from tests.settling import settled
from tests.wiring.made import Made, made

LIMIT_S = 20.0


@asynccontextmanager
async def opened(
    tmp_path: Path, node_requests: FakeNodeRequests | NoNodeRequests, kept: list[str]
) -> AsyncGenerator[tuple[Made, Counter]]:
    async def keep(reason: str) -> None:
        kept.append(reason)

    async with made(tmp_path) as all_of_it:
        counter = await open_counter(all_of_it.tasks, all_of_it.base, all_of_it.jobs, node_requests, keep_cordon=keep)
        yield all_of_it, counter


async def test_a_node_that_follows_answers_for_its_part_and_tells_the_leader_what_happens(tmp_path: Path):
    node_requests, told, answers = FakeNodeRequests(leads=False), list[str](), list[Answer]()

    def take(question: Question) -> Answer:
        assert isinstance(question, TellUpdate)
        told.extend(event.kind for event in question.events)
        return UpdateTaken(question.events[-1].sequence if question.events else 0)

    node_requests.answers[LEADER] = take
    async with opened(tmp_path, node_requests, []) as (all_of_it, _):
        await all_of_it.jobs.job_service.submit(SHARED, {})
        await settled()
        all_of_it.base.questions.put("j", "n1", ShowPart(), answers.append)
        await settled()
        (part,) = answers
        assert isinstance(part, Part)
        assert (part.node.name, part.part.job_id) == ("n0", "j")
        with anyio.fail_after(LIMIT_S):
            while "job_submitted" not in told:  # noqa: ASYNC110 - the leader has no event
                await anyio.sleep(0.01)


async def test_without_other_nodes_all_is_answered_here_and_a_cordon_is_kept(tmp_path: Path):
    kept: list[str] = []
    async with opened(tmp_path, NoNodeRequests(), kept) as (all_of_it, counter):
        assert counter.recall is None
        await all_of_it.jobs.job_service.submit(JobSpec("j", ("t.py",)), {})
        await counter.job_service.until_complete("j")
        node = await counter.job_service.set_cordon("", cordoned=True, reason="new cable")
        assert (node.state, kept) == ("cordoned", ["new cable"])
        assert node.cordon_ends, "this supervisor is private"
        with pytest.raises(InvalidRequestError, match="this supervisor serves one job alone"):
            await counter.job_service.lead_rendezvous(RendezvousRequest("r", "127.0.0.1", 1))


async def test_what_waits_for_the_first_workers_goes_on_once_they_run(tmp_path: Path):
    async with made(tmp_path) as all_of_it:
        job_service = all_of_it.jobs.job_service
        await job_service.submit(JobSpec("j", ("t.py",)), {})
        with anyio.fail_after(LIMIT_S):
            await shared_jobs.until_workers_run(job_service, "j")
        await settled()
        report = job_service.job("j")
        assert report is not None
        assert [rank.state for rank in report.ranks] == ["running"]
