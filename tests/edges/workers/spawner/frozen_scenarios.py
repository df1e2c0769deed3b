"""The scenarios of test_spawner_frozen_disk.py, each run as a program in its own mount namespace."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import anyio
import msgspec
import psutil
from holdfast_wire import spawner_link as link

from supervisor.config import JobSpec
from supervisor.edges.workers.spawner import spawner_link, spawner_succession
from supervisor.edges.workers.spawner.spawner_lifecycle import SpawnerLifecycle
from supervisor.ports.edges import Spawner
from tests.edges.workers.spawner.frozen_disk import frozen_disk, waiting
from tests.edges.workers.worker_side import until

NO_FROZEN_DISK = 77
LIMIT_S = 30
TICK_S = 0.01


def spec_in(folder: Path) -> JobSpec:
    script = folder / "wait.py"
    script.write_text("import time; time.sleep(600)\n")
    return JobSpec("kept", (str(script),), cwd=str(folder), python=sys.executable, preload="none")


class Job:
    """A kept spawner."""

    def __init__(self) -> None:
        self.spawners: list[Spawner] = []
        self.heard: list[link.FromSpawner] = []
        self.reason = ""

    async def keep(self, keeper: SpawnerLifecycle, spec: JobSpec) -> None:
        self.reason = await keeper.keep(spec, os.environ, on_started=self.spawners.append, on_message=self.heard.append)

    def workers(self) -> list[int]:
        return [message.pid for message in self.heard if isinstance(message, link.Spawned)]


async def longest_pause() -> float:
    """Runs until cancelled; then returns the longest time for which the event loop did not turn."""
    longest_s, last_s = 0.0, time.monotonic()
    with anyio.move_on_after(1.0):
        while True:
            await anyio.sleep(TICK_S)
            longest_s, last_s = max(longest_s, time.monotonic() - last_s), time.monotonic()
    return longest_s


async def start(spec: JobSpec, frozen: Path, *, in_folder: bool) -> None:
    """A start on the disk is given up, and the event loop turns meanwhile."""
    keeper = SpawnerLifecycle(private=False, output_dir=None if in_folder else frozen / "x", start_timeout_s=0.5)
    there = msgspec.structs.replace(spec, cwd=str(frozen / "x")) if in_folder else spec
    job = Job()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(job.keep, keeper, there)
        assert await longest_pause() < 0.4
    assert job.reason.startswith("cannot start the spawner of job kept: "), job.reason
    assert f"{frozen}/x: it has not ended within 0.5 s" in job.reason, job.reason


async def stuck_spawner(spec: JobSpec, frozen: Path) -> None:
    """A spawner stuck on the disk is killed with its workers and named; another job's continues."""
    job, other = Job(), Job()
    keeper = SpawnerLifecycle(private=True, output_dir=None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(job.keep, keeper, spec)
        tasks.start_soon(other.keep, keeper, msgspec.structs.replace(spec, job_id="other"))
        await until(lambda: job.heard and other.heard, at_most_s=LIMIT_S)
        for each in (job, other):
            each.spawners[0].send(link.Spawn(0, (link.WorkerPlan(0, 0, {}),)))
        await until(lambda: job.workers() and other.workers(), at_most_s=LIMIT_S)
        spawner = job.spawners[0]
        await get_stuck(spawner, frozen, cycle=1)
        spawner.kill(f"it did not answer Spawn within 2 s: {spawner.whereabouts()}")
        # Dead, though not reaped: only its parent could do that, and it is stuck.
        await until(lambda: psutil.Process(job.workers()[0]).status() == psutil.STATUS_ZOMBIE, at_most_s=5)
        await until(lambda: job.reason, at_most_s=5)
        expected = f"(pid {spawner.pid}) was killed and is not gone: it waits in the kernel (state D) in open"
        assert expected in job.reason, job.reason
        assert f"Spawn within 2 s: the spawner (pid {spawner.pid}) waits in the kernel" in job.reason, job.reason
        assert f"processes {spawner.pid} of it can't be killed" in job.reason, job.reason
        assert psutil.Process(other.workers()[0]).is_running()
        other.spawners[0].send(link.End())
    assert other.reason == "the spawner ended because it was asked to"


async def given_up(spec: JobSpec, frozen: Path) -> int:
    """Returns the pid of a spawner that was stuck, killed and given up."""
    job = Job()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(job.keep, SpawnerLifecycle(private=True, output_dir=None), spec)
        await until(lambda: job.heard, at_most_s=LIMIT_S)
        await get_stuck(job.spawners[0], frozen, cycle=0)
        job.spawners[0].kill("it is stuck")
    return job.spawners[0].pid


async def get_stuck(spawner: Spawner, frozen: Path, *, cycle: int) -> None:
    there = link.StreamPlan(console=False, file=f"{frozen}/log")
    spawner.send(link.Spawn(cycle, (link.WorkerPlan(0, 0, {}, stdout=there),)))
    await until(lambda: spawner.pid in waiting(frozen) and "in open" in spawner.whereabouts(), at_most_s=LIMIT_S)


async def play(scenario: str, folder: Path) -> int:
    spawner_link.GONE_TIMEOUT_S = spawner_succession.EMPTIED_TIMEOUT_S = 0.5
    spec, pid = spec_in(folder), 0
    with anyio.fail_after(LIMIT_S), frozen_disk(folder / "frozen") as frozen:
        if frozen is None:
            return NO_FROZEN_DISK
        match scenario:
            case "start_output" | "start_folder":
                await start(spec, frozen, in_folder=scenario == "start_folder")
            case "stuck_spawner":
                await stuck_spawner(spec, frozen)
            case _:
                pid = await given_up(spec, frozen)
                assert psutil.pid_exists(pid)
    if pid:  # once the disk answers, nothing of the abandoned spawner is left
        await until(lambda: not psutil.pid_exists(pid))
    return 0


if __name__ == "__main__":
    sys.exit(anyio.run(play, sys.argv[1], Path(sys.argv[2])))
