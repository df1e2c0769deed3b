"""A job that ends reaches its record and the journal, in order; a lost node reaches what the leader shows."""

from __future__ import annotations

from pathlib import Path

import anyio

from supervisor.config import JobSpec
from supervisor.core.announcements import Announcement, JobEnded
from supervisor.core.cluster.cluster_messages import JobOpened, NodeJoined, NodeLost, Reported
from supervisor.core.facts import JobState
from supervisor.engine.job_record import JobRecord
from tests.queries.shared_job import SHARED
from tests.settling import settled
from tests.wiring.made import made

JOB = JobSpec("j", ("t.py",))


async def test_a_job_is_prepared_runs_and_ends_in_its_record_and_in_the_journal(tmp_path: Path):
    heard: list[str] = []

    def first(_: JobRecord, announcement: Announcement) -> None:
        if isinstance(announcement, JobEnded):
            heard.append("first")

    def last(_: JobRecord, announcement: Announcement) -> None:
        if isinstance(announcement, JobEnded):
            heard.append("last")

    async with made(tmp_path, followed_by=[first], ended=[last]) as all_of_it:
        job_service = all_of_it.jobs.job_service
        await job_service.submit(JOB, {})
        assert all_of_it.prepared == ["j"]
        await settled()
        all_of_it.spawners.started[-1].exit(0, 0, code=0)
        ended = await job_service.wait("j")
        assert ended.verdict is not None
        assert ended.verdict.state is JobState.SUCCEEDED
        assert heard == ["first", "last"]
        saved = all_of_it.base.journal.job("j")
        assert saved is not None
        assert saved.state is JobState.SUCCEEDED
        assert all_of_it.base.engine_state.coordinators == {}
        await job_service.submit(JOB, {})  # its id is free again


async def test_a_node_that_is_lost_is_shown_so_by_the_leader(tmp_path: Path):
    async with made(tmp_path) as all_of_it:
        view = all_of_it.jobs.view
        await all_of_it.jobs.job_service.submit(SHARED, {})
        with anyio.fail_after(30):
            while not view.nodes("j"):  # noqa: ASYNC110 - its own node joins by way of a thread; then it has a leader
                await anyio.sleep(0.01)
        for report in (
            JobOpened("n1", SHARED.rules()),
            NodeJoined("n1", -1),
            NodeLost("n1", "node n1 is lost: silence"),
        ):
            all_of_it.base.inbox.post(Reported("j", report))
        await settled()
        with anyio.fail_after(30):
            while len(view.nodes("j")) < 2:  # noqa: ASYNC110
                await anyio.sleep(0.01)
        assert [(node.name, node.state, node.reason) for node in view.nodes("j")] == [
            ("n0", "ready", ""), ("n1", "lost", "node n1 is lost: silence"),
        ]  # fmt: skip
