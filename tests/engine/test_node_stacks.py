"""Are the stacks of running ranks taken, and of no others?"""

from __future__ import annotations

from pathlib import Path

from supervisor.config import JobSpec
from supervisor.core.process_facts import ProcessFacts, ProcessState
from tests.engine.world import PID_OF_RANK_0, World


async def test_the_ranks_of_the_running_cycle_are_asked(tmp_path: Path) -> None:
    async with World.opened(tmp_path) as world:
        await world.submit(JobSpec("j", ("t.py",), local_world_size=2))
        job = world.jobs["j"]
        await world.node_stacks.collect(job, cycle=0, budget_s=1.0)
        await world.node_stacks.collect(job, cycle=0, budget_s=1.0, rank=1)
        await world.node_stacks.collect(job, cycle=1, budget_s=1.0)
        pids = {0: PID_OF_RANK_0, 1: PID_OF_RANK_0 + 1}
        assert world.stacks.asked == [pids, {1: pids[1]}, {}]


async def test_a_process_that_a_signal_has_stopped_is_known(tmp_path: Path) -> None:
    async with World.opened(tmp_path) as world:
        world.stacks.stopped.add(7)
        assert [world.node_stacks.is_stopped(pid) for pid in (7, 8)] == [True, False]


async def test_a_person_who_asks_for_stacks_reads_which_ranks_are_stopped(tmp_path: Path) -> None:
    async with World.opened(tmp_path) as world:
        await world.submit(JobSpec("j", ("t.py",), local_world_size=2))
        world.stacks.stopped.add(PID_OF_RANK_0 + 1)
        evidence = await world.node_stacks.looked_at(world.jobs["j"], rank=None, budget_s=1.0)
        pid = PID_OF_RANK_0 + 1
        assert evidence.notes == (f"rank 1 (pid {pid}) is stopped (SIGSTOP); `kill -CONT {pid}` continues it",)


async def test_a_person_who_asks_for_stacks_reads_which_ranks_wait_in_the_kernel(tmp_path: Path) -> None:
    async with World.opened(tmp_path) as world:
        await world.submit(JobSpec("j", ("t.py",), local_world_size=3))
        stuck = ProcessFacts(ProcessState.UNINTERRUPTIBLE, is_still=True, kernel_place="nfs_wait_bit_killable")
        reads = ProcessFacts(ProcessState.UNINTERRUPTIBLE)
        held = ProcessFacts(ProcessState.TRACED, tracer="gdb (pid 812)")
        world.stacks.processes |= {PID_OF_RANK_0: stuck, PID_OF_RANK_0 + 1: reads, PID_OF_RANK_0 + 2: held}
        evidence = await world.node_stacks.looked_at(world.jobs["j"], rank=None, budget_s=1.0)
        assert world.stacks.kernel_waits_s == [1.0]
        assert evidence.notes == (
            f"rank 0 (pid {PID_OF_RANK_0}) has waited for 1 s in the kernel (state D, nfs_wait_bit_killable); "
            "look at the storage or driver that it waits for: it may only be slow",
            f"rank 2 (pid {PID_OF_RANK_0 + 2}) is held by gdb (pid 812)",
        )


async def test_the_threads_of_the_running_ranks_are_looked_at(tmp_path: Path) -> None:
    async with World.opened(tmp_path) as world:
        await world.submit(JobSpec("j", ("t.py",), local_world_size=2))
        looks = await world.node_stacks.threads(world.jobs["j"], cycle=0, budget_s=1.0)
        assert [(each.rank, each.frames[-1].line) for each in looks] == [(0, PID_OF_RANK_0), (1, PID_OF_RANK_0 + 1)]
        assert await world.node_stacks.threads(world.jobs["j"], cycle=1, budget_s=1.0) == ()
