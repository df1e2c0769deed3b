"""Does a job on several nodes begin once it is connected to the others, with its own name for this node?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from supervisor.config import JobSpec
from supervisor.config.job_spec import Nodes
from supervisor.core.facts import JobState
from supervisor.core.session_state import JobSessions
from supervisor.errors import AlreadyExistsError, ConfigurationError, CordonedError
from tests.engine.world import World
from tests.queries.shared_job import SHARED
from tests.settling import settled

LIMIT_S = 10.0
NODES = Nodes(2, 2, "127.0.0.1", 1, "10.0.0.7")


class FakeMeetings:
    """Meetings for tests; see ports.Meetings."""

    def __init__(self) -> None:
        self.goes_on = anyio.Event()
        self.goes_on.set()
        self.refusal: Exception | None = None
        self.told: list[str] = []
        self.keep: Callable[[str], bool] | None = None

    async def open(self, spec: JobSpec, keep: Callable[[str], bool] | None) -> JobSpec:
        self.keep = keep
        self.told.append(f"open {spec.job_id}")
        await self.goes_on.wait()
        if self.refusal is not None:
            raise self.refusal
        return replace(spec, master_addr="10.0.0.7")

    async def reopen(self, spec: JobSpec, kept: JobSessions | None, keep: Callable[[str], bool] | None) -> None:
        self.told.append(f"reopen {spec.job_id}")

    def session_state(self, job_id: str, *, whole: bool = True) -> JobSessions | None:
        return JobSessions(leads=True, gone=(job_id,))

    def begin(self, job_id: str) -> None:
        self.told.append(f"begin {job_id}")

    def close(self, job_id: str) -> None:
        self.told.append(f"close {job_id}")


async def test_a_job_begins_as_its_way_is_open_and_closes_it_at_its_end(tmp_path: Path):
    meetings = FakeMeetings()
    async with World.opened(tmp_path, meetings=meetings) as world:
        spawner = await world.submit(SHARED)
        assert meetings.told == ["open j", "begin j"]
        assert world.jobs["j"].spec.master_addr == "10.0.0.7"
        await world.submit(JobSpec("alone", ("t.py",)))
        assert meetings.told == ["open j", "begin j", "begin alone"]
        for number in (0, 1):
            spawner.exit(0, number, code=0)
        await world.settle()
        assert world.job_service.report(world.jobs["j"]).state is JobState.SUCCEEDED
        assert meetings.told[-1] == "close j"


async def test_a_refused_way_leaves_the_id_free(tmp_path: Path):
    meetings = FakeMeetings()
    async with World.opened(tmp_path, meetings=meetings) as world:
        meetings.refusal = ConfigurationError("cannot use the token file")
        with pytest.raises(ConfigurationError, match="cannot use the token file"):
            await world.job_service.submit(SHARED, {})
        assert meetings.told == ["open j", "close j"]
        assert (world.claims.held, world.job_service.jobs()) == (set(), [])
        meetings.refusal = None
        await world.submit(SHARED)
        assert world.claims.held == {"j"}


async def test_while_a_way_opens_its_id_is_taken_other_jobs_begin_and_a_cordon_holds(tmp_path: Path):
    meetings = FakeMeetings()
    async with World.opened(tmp_path, meetings=meetings) as world:
        meetings.goes_on = anyio.Event()
        refused: list[str] = []

        async def submit() -> None:
            try:
                await world.job_service.submit(SHARED, {})
            except CordonedError as error:
                refused.append(str(error))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(submit)
            await settled()
            with pytest.raises(AlreadyExistsError, match="cannot start job j: a job of that id is live since"):
                await world.job_service.submit(replace(SHARED, nodes=None), {})
            with anyio.fail_after(LIMIT_S):
                await world.job_service.submit(JobSpec("alone", ("t.py",)), {})
            world.job_service.cordon("maintenance")
            meetings.goes_on.set()
        assert "node n0 is cordoned (maintenance)" in refused[0]
        assert (set(world.jobs), world.claims.held) == ({"alone"}, {"alone"})


async def test_the_job_has_its_own_name_for_this_node(tmp_path: Path):
    """Its supervisor is called n0, and the other nodes know this one by its address."""
    async with World.opened(tmp_path, meetings=FakeMeetings()) as world:
        spec = replace(SHARED, nodes=NODES)
        await world.submit(spec)
        assert world.engine_state.node_state.jobs["j"].job.node == "10.0.0.7"
        report = world.job_service.report(world.jobs["j"])
        assert [node.name for node in report.nodes] == ["10.0.0.7"]
        assert {event.node for event in world.journal.events} == {"10.0.0.7"}
        assert world.performer.name_in("j") == "10.0.0.7"
        assert (world.performer.name_in("other"), world.job_service.node().name) == ("n0", "n0")
