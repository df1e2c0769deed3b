"""The scenarios of test_spawner_frozen_disk.py, each run as a program in its own mount namespace."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import anyio
import anyio.lowlevel
import msgspec
import psutil
from holdfast_wire import spawner_link as link

from supervisor.config import JobSpec
from supervisor.config.attribution_settings import NO_MODEL, Attribution
from supervisor.core.facts import Evidence
from supervisor.edges.machine.clock import Clock
from supervisor.edges.machine.folders import socket_claim
from supervisor.edges.machine.folders.socket_claim import SocketDirClaim
from supervisor.edges.machine.gpus.gpu_process import GpuProcess, SilentError
from supervisor.edges.machine.logs import log_tier_supervision
from supervisor.edges.machine.logs.log_tier_supervision import LogTier
from supervisor.edges.services.managed_attribution import ManagedAttribution
from supervisor.edges.workers.spawner import spawner_discovery, spawner_link, spawner_succession
from supervisor.edges.workers.spawner.spawner_discovery import FoundSpawner
from supervisor.edges.workers.spawner.spawner_lifecycle import SpawnerLifecycle
from supervisor.edges.workers.spawner.spawner_reconnect import SpawnerReconnect
from supervisor.edges.workers.stacks.stack_collector import StackCollector
from supervisor.errors import InUseError
from supervisor.ports.edges import Spawner
from tests.edges.workers.spawner.frozen_disk import frozen_disk, waiting
from tests.edges.workers.worker_side import until

NO_FROZEN_DISK = 77
LIMIT_S = 30
TICK_S = 0.01
HOLD = "hold"  # in place of a scenario: see hold_and_start


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

    async def keep(self, lifecycle: SpawnerLifecycle, spec: JobSpec) -> None:
        self.reason = await lifecycle.keep(
            spec, os.environ, on_started=self.spawners.append, on_message=self.heard.append
        )

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
    lifecycle = SpawnerLifecycle(private=False, output_dir=None if in_folder else frozen / "x", start_timeout_s=0.5)
    there = msgspec.structs.replace(spec, cwd=str(frozen / "x")) if in_folder else spec
    job = Job()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(job.keep, lifecycle, there)
        assert await longest_pause() < 0.4
    assert job.reason.startswith("cannot start the spawner of job kept: "), job.reason
    assert f"{frozen}/x: it has not ended within 0.5 s" in job.reason, job.reason


async def hold_and_start(sock: Path, cwd: str, output_dir: str) -> None:
    """Plays a supervisor that serves one rank and starts a spawner on the disk."""
    claim = SocketDirClaim(sock)
    with socket_claim.bind(sock / "worker.sock") as listener:
        print(flush=True)
        await anyio.wait_readable(listener)
        rank, _ = listener.accept()
        lifecycle = SpawnerLifecycle(private=False, output_dir=Path(output_dir) if output_dir else None)
        await Job().keep(lifecycle, JobSpec("kept", ("x",), cwd=cwd, python=sys.executable))
    rank.close()
    claim.close()


async def killed_supervisor(folder: Path, frozen: Path, *, in_folder: bool) -> None:
    """A supervisor is killed while a start waits for the disk: its lock and its rank's connection end with it."""
    sock, before = folder / "sock", len(waiting(frozen))
    places = (str(frozen / "x"), "") if in_folder else (str(folder), str(frozen / "x"))
    command = [sys.executable, "-m", "tests.edges.workers.spawner.frozen_scenarios", HOLD, str(sock), *places]
    supervisor = subprocess.Popen(command, stdout=subprocess.PIPE)  # noqa: ASYNC220 it plays another one
    assert supervisor.stdout is not None
    supervisor.stdout.readline()
    with socket.socket(socket.AF_UNIX) as rank:
        rank.connect(str(sock / "worker.sock"))
        rank.setblocking(False)
        await until(lambda: len(waiting(frozen)) > before, at_most_s=LIMIT_S)
        assert not is_free(sock)
        supervisor.kill()  # Not reaped: one of its own threads may still wait for the disk.
        await until(lambda: is_free(sock), at_most_s=5)
        with anyio.fail_after(5):
            await anyio.wait_readable(rank)
        assert rank.recv(1) == b""


def is_free(sock: Path) -> bool:
    try:
        SocketDirClaim(sock).close()
    except InUseError:
        return False
    return True


async def stacks(frozen: Path) -> None:
    """py-spy and the script are on the disk: the rank itself is asked, and the event loop turns meanwhile."""
    collector = StackCollector(py_spy=frozen / "py-spy")
    found: list[Evidence] = []

    async def answer(rank: int, timeout_s: float) -> str | None:
        assert timeout_s > 0
        return f'Thread 0x01 (most recent call first):\n  File "{frozen}/x.py", line 3 in f\n' if rank == 0 else None

    async def collect() -> None:
        for ranks in (2, 1):
            pids = dict.fromkeys(range(ranks), os.getpid())
            found.append(await collector.collect(pids, ask=answer, budget_s=0.4))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(collect)
        assert await longest_pause() < 0.4
    assert [group.ranks for each in found for group in each.groups] == [(0,), (0,)]
    assert "py-spy had no time, and its client has not answered" in found[0].notes[1], found
    assert collector.unreaped()


async def services(folder: Path, frozen: Path) -> None:
    """The interpreter is on the disk: what is started later is given up, and the event loop turns meanwhile."""
    sys.executable = str(frozen / "python")
    log_tier_supervision.START_TIMEOUT_S = 0.3
    told: list[str] = []

    async def ask_gpus() -> None:
        try:
            await GpuProcess(answer_s=0.3).ask("ready")
        except SilentError as error:
            told.append(str(error))

    async def attribute() -> None:
        settings = Attribution("localhost", startup_timeout_s=0.3, llm_model=NO_MODEL)
        command = (sys.executable, "attribution")
        service = ManagedAttribution(settings, f"{folder}/train.log", {}, {}, Clock(), command)
        with anyio.CancelScope() as scope:

            def end(why: str) -> None:
                told.append(why)
                scope.cancel()

            await service.run(lambda _: None, end)

    async def keep_tier() -> None:
        tier = LogTier(b"{}", ends_in_s=0.0, on_lost=told.append, on_away=lambda: None)
        with anyio.move_on_after(0.5):  # The end of a supervisor does not wait for it.
            await tier.run()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask_gpus)
        tasks.start_soon(attribute)
        tasks.start_soon(keep_tier)
        assert await longest_pause() < 0.4
    why = "it has not ended within 0.3 s"
    assert f"it can't be started: {why}" in told
    assert f"{sys.executable} cannot be started ({why})" in told
    assert any(each.startswith(f"cannot start the attribution service: {why}; its") for each in told), told


async def stuck_spawner(spec: JobSpec, frozen: Path) -> None:
    """A spawner stuck on the disk is killed with its workers and named; another job's continues."""
    job, other = Job(), Job()
    lifecycle = SpawnerLifecycle(private=True, output_dir=None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(job.keep, lifecycle, spec)
        tasks.start_soon(other.keep, lifecycle, msgspec.structs.replace(spec, job_id="other"))
        await until(lambda: job.heard and other.heard, at_most_s=LIMIT_S)
        for each in (job, other):
            each.spawners[0].send(link.Spawn(0, (link.WorkerPlan(0, 0, {}),)))
        await until(lambda: job.workers() and other.workers(), at_most_s=LIMIT_S)
        spawner = job.spawners[0]
        await get_stuck(spawner, frozen, cycle=1)
        spawner.kill(f"it did not answer Spawn within 2 s: {spawner.process_state()}")
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


async def killed_before_a_return(spec: JobSpec, folder: Path, frozen: Path) -> None:
    """The next supervisor does not wait for a spawner that was killed and is not gone, though its socket is there."""
    place, listener = spawner_discovery.create_files(folder / "spawners")
    with listener:
        listener.listen()
        place.note("kept", await given_up(spec, frozen))
        identity, found = place.identity(), list[FoundSpawner]()
        assert identity is not None
        with anyio.fail_after(5):
            await SpawnerReconnect([(place, identity)], found).run(anyio.lowlevel.checkpoint)
        assert not found


async def get_stuck(spawner: Spawner, frozen: Path, *, cycle: int) -> None:
    there = link.StreamPlan(console=False, file=f"{frozen}/log")
    spawner.send(link.Spawn(cycle, (link.WorkerPlan(0, 0, {}, stdout=there),)))
    await until(lambda: spawner.pid in waiting(frozen) and "in open" in spawner.process_state(), at_most_s=LIMIT_S)


async def play(scenario: str, folder: Path) -> int:
    spawner_link.GONE_TIMEOUT_S = spawner_succession.EMPTIED_TIMEOUT_S = 0.5
    spec, pid = spec_in(folder), 0
    with anyio.fail_after(LIMIT_S), frozen_disk(folder / "frozen") as frozen:
        if frozen is None:
            return NO_FROZEN_DISK
        match scenario:
            case "start_output" | "start_folder":
                await start(spec, frozen, in_folder=scenario == "start_folder")
            case "killed_while_in_output" | "killed_while_in_folder":
                await killed_supervisor(folder, frozen, in_folder=scenario == "killed_while_in_folder")
            case "services":
                await services(folder, frozen)
            case "stacks":
                await stacks(frozen)
            case "stuck_spawner":
                await stuck_spawner(spec, frozen)
            case "killed_before_a_return":
                await killed_before_a_return(spec, folder, frozen)
            case _:
                pid = await given_up(spec, frozen)
                assert psutil.pid_exists(pid)
    if pid:  # once the disk answers, nothing of the abandoned spawner is left
        await until(lambda: not psutil.pid_exists(pid))
    return 0


if __name__ == "__main__":
    if sys.argv[1] == HOLD:
        anyio.run(hold_and_start, Path(sys.argv[2]), sys.argv[3], sys.argv[4])
    else:
        sys.exit(anyio.run(play, sys.argv[1], Path(sys.argv[2])))
