"""Are checks of the node and waits for GPU memory reported, and given up with their job?"""

from __future__ import annotations

from pathlib import Path

import anyio
import msgspec
from holdfast_wire import spawner_link as link

from supervisor.config import JobSpec
from supervisor.config.node_check_plans import HealthChecks
from supervisor.core.facts import JobState
from supervisor.core.node import node_messages
from supervisor.core.node_check_facts import Health, HealthFinding
from supervisor.engine.job_record import JobRecord
from supervisor.engine.node_probing import NodeProbing
from tests.engine.test_action_performer import job_spec, verdict_of
from tests.engine.world import FakeChecks, FakeGpus, World


async def test_a_check_reports_what_it_finds_and_only_the_hanging_one_of_the_job_that_ends_is_given_up() -> None:
    reports: list[node_messages.Event] = []
    checks = FakeChecks()
    found = (HealthFinding("nvhcd", Health.HEALTHY),)
    hangs = anyio.Event()
    began: list[str] = []

    async def run(spec: JobSpec, check: str, report: object) -> tuple[HealthFinding, ...]:
        del check, report
        began.append(spec.job_id)
        await hangs.wait()
        return found

    checks.run = run
    looking = NodeProbing(checks=checks, gpus=FakeGpus(), post=reports.append)
    ended: list[str] = []

    async def look(job_id: str) -> None:
        job = JobRecord(JobSpec(job_id, ("t.py",)), {}, 5, "/logs")
        await looking.check(job, node_messages.CheckNode(job_id, "nvhcd", 1))
        ended.append(job_id)

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(look, "hit")
            tasks.start_soon(look, "beside")
            while len(began) < 2:
                await anyio.lowlevel.checkpoint()
            looking.give_up("hit")
            looking.give_up("of which nothing is under way")
            while not ended:
                await anyio.lowlevel.checkpoint()
            assert (ended, reports) == (["hit"], [])
            hangs.set()
    assert reports == [node_messages.NodeChecked("beside", "nvhcd", 1, found, True)]


async def test_a_check_that_hangs_is_given_up_with_its_job(tmp_path: Path) -> None:
    async with World.opened(tmp_path) as world:
        begun, given_up = anyio.Event(), anyio.Event()

        async def hang(spec: JobSpec, check: str, report: object) -> tuple[HealthFinding, ...]:
            del report
            assert (spec.job_id, check) == ("j", "nvhcd")
            begun.set()
            try:
                await anyio.sleep_forever()
            finally:
                given_up.set()
            return ()

        world.checks.run = hang
        await world.submit(msgspec.structs.replace(job_spec("j"), health=HealthChecks("/run/nvhcd.sock")))
        with anyio.fail_after(10):
            await begun.wait()
            world.job_service.stop("j", reason="enough", signal=0)
            assert (await verdict_of(world, "j")).state is JobState.STOPPED
            await given_up.wait()


async def test_a_restart_waits_for_gpu_memory_where_there_are_gpus(tmp_path: Path) -> None:
    async with World.opened(tmp_path) as world:
        world.gpus.present = True
        spawner = await world.submit(job_spec("j", max_restarts=2))
        assert world.gpus.warmed == 1
        spawner.exit(0, 0, code=1)
        await world.settle()
        assert [each.timeout_s for each in world.gpus.asked] == [1.0]
        assert not any(isinstance(message, link.Spawn) and message.cycle == 1 for message in spawner.heard)
        world.gpus.free.set()
        await world.settle()
        assert any(isinstance(message, link.Spawn) and message.cycle == 1 for message in spawner.heard)


async def test_a_stop_does_not_wait_for_gpu_memory(tmp_path: Path) -> None:
    async with World.opened(tmp_path) as world:
        world.gpus.present = True
        spawner = await world.submit(job_spec("j", max_restarts=2))
        spawner.exit(0, 0, code=1)
        await world.settle()
        assert world.gpus.asked
        world.job_service.stop("j", reason="enough", signal=0)
        assert (await verdict_of(world, "j")).state is JobState.STOPPED
