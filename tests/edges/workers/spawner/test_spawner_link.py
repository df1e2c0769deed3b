"""The link to real processes that speak its protocol, break it, die, or leave others behind."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import psutil
import pytest
from holdfast_wire import spawner_link as wire
from holdfast_wire.spawner_settings import SpawnerCommand, SpawnerSettings

from supervisor.config.job_spec import JobSpec
from supervisor.edges.workers.spawner import spawner_link
from supervisor.edges.workers.spawner.spawner_link import SpawnerLink
from supervisor.edges.workers.spawner.spawner_process import start_process
from tests.edges.workers.worker_side import until

FAKE = Path(__file__).with_name("fake_spawner.py")
PLAN = wire.WorkerPlan(local_rank=0, rank=0, env={})


@dataclass
class Spawned:
    link: SpawnerLink
    messages: list[wire.FromSpawner] = field(default_factory=list[wire.FromSpawner])
    lost: list[str] = field(default_factory=list[str])
    ends: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def of(self, kind: type) -> list[wire.FromSpawner]:
        return [message for message in self.messages if isinstance(message, kind)]


@asynccontextmanager
async def spawner(behaviour: str, *, job_id: str = "job", output_dir: Path | None = None) -> AsyncGenerator[Spawned]:
    def command(settings: SpawnerSettings, env: Mapping[str, str], link_fd: int) -> SpawnerCommand:
        assert settings.job_id == job_id
        return SpawnerCommand((sys.executable, str(FAKE), behaviour, str(link_fd)), dict(env))

    messages: list[wire.FromSpawner] = []
    lost: list[str] = []
    ends: list[tuple[int, int]] = []
    started = start_process(
        JobSpec(job_id=job_id, command=("train.py",)),
        env=dict(os.environ),
        private=True,
        output_dir=output_dir,
        make_command=command,
    )

    def end_seen(cycle: int, local_rank: int) -> None:
        ends.append((cycle, local_rank))

    link = SpawnerLink(started, job_id, on_message=messages.append, on_lost=lost.append, on_end_seen=end_seen)
    async with anyio.create_task_group() as tasks:
        await tasks.start(link.run)
        try:
            yield Spawned(link, messages, lost, ends)
        finally:
            link.kill("the test is over")
            assert await link.emptied(timeout_s=10) == ()
            if not tasks.cancel_scope.cancel_called:
                await until(lambda: not psutil.pid_exists(link.pid))


async def test_it_says_what_it_is_told_and_ends_as_it_was_told(tmp_path: Path):
    async with spawner("obey", output_dir=tmp_path / "logs") as run:
        assert os.getsid(run.link.pid) == run.link.pid
        await until(lambda: run.of(wire.Ready))
        run.link.send(wire.Spawn(3, (PLAN,)))
        await until(lambda: run.of(wire.Spawned))
        run.link.send(wire.End())
        await until(lambda: run.of(wire.Ended))
        await until(lambda: not psutil.pid_exists(run.link.pid))
    assert run.lost == []
    run.link.send(wire.End())  # nobody is there: nothing happens
    assert (tmp_path / "logs" / "spawner.stdout.log").stat().st_mode & 0o777 == 0o600


async def test_what_only_a_newer_spawner_says_is_passed_on_and_costs_nothing():
    async with spawner("newer") as run:
        await until(lambda: run.of(wire.Unknown))
        run.link.send(wire.Spawn(3, (PLAN,)))
        await until(lambda: run.of(wire.Spawned))
        assert run.lost == []


TRACE = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
seized = libc.ptrace(ctypes.c_long(0x4206), ctypes.c_long(int(sys.argv[1])), None, None)  # PTRACE_SEIZE
print("seized" if seized == 0 else "refused", flush=True)
sys.stdin.read()
"""


async def test_a_debugger_at_the_spawner_delays_its_end_and_breaks_nothing():
    async with spawner("obey") as run:
        await until(lambda: run.of(wire.Ready))
        tracer = await anyio.open_process([sys.executable, "-c", TRACE, str(run.link.pid)], stderr=None)
        async with tracer:
            assert tracer.stdin is not None
            assert tracer.stdout is not None
            if b"seized" not in await tracer.stdout.receive():
                pytest.skip("this user may not trace its processes")
            os.kill(run.link.pid, signal.SIGKILL)
            await until(lambda: psutil.Process(run.link.pid).status() == psutil.STATUS_ZOMBIE)
            with anyio.move_on_after(0.1):
                await until(lambda: run.lost)
            assert run.lost == []
            await tracer.stdin.aclose()
        await until(lambda: run.lost)
    assert "was killed by signal 9" in run.lost[0]


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("exit", "exited with code 3"),
        ("die", "was killed by signal 9"),
        ("garbage", "cannot read a message"),
        ("backwards", "cannot take End from a spawner"),
        ("other protocol", f"it speaks version {wire.PROTOCOL + 1} of the spawner link, this supervisor version"),
        ("close", "it closed its link"),
    ],
)
async def test_a_lost_spawner_is_reaped_and_told_with_its_reason(
    behaviour: str, reason: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(spawner_link, "LAST_WORDS_TIMEOUT_S", 0.1)
    async with spawner(behaviour) as run:
        await until(lambda: run.lost)
        assert reason in run.lost[0]
        assert f"pid {run.link.pid}" in run.lost[0]
        assert not psutil.pid_exists(run.link.pid)
    assert len(run.lost) == 1
    assert bool(run.of(wire.Ready)) == (behaviour in ("exit", "die", "close"))


async def test_all_that_a_killed_spawner_left_behind_is_killed_and_nothing_else():
    """Its workers, their children, and those that left session and parent; another job's processes stay."""
    async with spawner("obey") as run, spawner("obey", job_id="other") as other:
        for each in (run, other):
            each.link.send(wire.Spawn(0, (PLAN, wire.WorkerPlan(local_rank=1, rank=1, env={}))))
            await until(lambda each=each: len(_tree(each)) == 2 * 3)
        left, others = _tree(run), _tree(other)
        os.kill(run.link.pid, signal.SIGKILL)
        await until(lambda: run.lost)
        assert all(process.is_running() for process in left)  # nobody else ends them
        assert await run.link.emptied(timeout_s=10) == ()
        assert not any(map(_runs, left))
        assert all(process.is_running() for process in others)
        # A helper process of the supervisor is not taken for an orphan.
        async with await anyio.open_process(["sleep", "600"]) as helper:
            assert await run.link.emptied(timeout_s=10) == ()
            assert psutil.Process(helper.pid).status() != psutil.STATUS_ZOMBIE
            helper.kill()


def _tree(run: Spawned) -> list[psutil.Process]:
    return [each for each in psutil.Process(run.link.pid).children(recursive=True) if each.name() != "setsid"]


def _runs(process: psutil.Process) -> bool:
    """A zombie has ended: only its parent, here init, has not asked for its exit code yet."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_one_that_takes_no_orders_is_killed_with_the_reason(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(spawner_link, "UNSENT_BYTES_MAX", 1_000_000)
    async with spawner("deaf") as run:
        await until(lambda: run.of(wire.Ready))
        big = wire.Spawn(0, (wire.WorkerPlan(local_rank=0, rank=0, env={"X": "x" * 100_000}),))
        for _ in range(100):
            run.link.send(big)
        await until(lambda: run.lost)
    assert "was killed: it takes no orders" in run.lost[0]


async def test_what_can_t_be_said_is_the_reason_for_its_end():
    async with spawner("obey") as run:
        await until(lambda: run.of(wire.Ready))
        endless = {"X": "x" * spawner_link.SPAWNER_FRAME_BYTES_MAX}
        run.link.send(wire.Spawn(0, (wire.WorkerPlan(local_rank=0, rank=0, env=endless),)))
        run.link.send(wire.KillTree(0))  # nobody listens: nothing happens
        await until(lambda: run.lost)
    assert "Spawn can't be sent to it: cannot take a frame of" in run.lost[0]


async def test_an_order_that_is_too_long_for_a_frame_comes_in_several(monkeypatch: pytest.MonkeyPatch):
    async with spawner("obey") as run:
        await until(lambda: run.of(wire.Ready))
        monkeypatch.setattr(spawner_link, "SPAWNER_FRAME_BYTES_MAX", 1000)
        run.link.send(wire.Spawn(0, tuple(PLAN._replace(local_rank=each, env={"R": "x" * 99}) for each in range(4))))
        await until(lambda: len(run.of(wire.Spawned)) == 4)


async def test_a_stopped_spawner_is_killed_with_its_tree_and_says_where_it_was():
    async with spawner("obey") as run:
        run.link.send(wire.Spawn(0, (PLAN,)))
        await until(lambda: len(_tree(run)) == 3)
        left = _tree(run)
        os.kill(run.link.pid, signal.SIGSTOP)
        await until(lambda: run.link.process_state() == "is stopped (state T)")
        run.link.kill(f"it did not answer, for it {run.link.process_state()}")
        await until(lambda: run.lost)
        assert await run.link.emptied(timeout_s=10) == ()
        assert not any(map(_runs, left))
    assert run.lost == [f"the spawner (pid {run.link.pid}) was killed: it did not answer, for it is stopped (state T)"]


async def test_the_end_of_a_worker_is_seen_though_its_spawner_says_nothing():
    async with spawner("obey") as run:
        run.link.send(wire.Spawn(5, (PLAN, PLAN._replace(local_rank=1))))
        await until(lambda: len(run.of(wire.Spawned)) == 2)
        told = [message.pid for message in run.of(wire.Spawned) if isinstance(message, wire.Spawned)]
        os.kill(told[1], signal.SIGKILL)
        await until(lambda: run.ends)
    assert run.ends == [(5, 1)]


async def test_the_real_spawner_starts_a_worker_and_reports_its_exit(tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text("import sys; sys.exit(7)")
    messages: list[wire.FromSpawner] = []
    lost: list[str] = []
    spec = JobSpec(job_id="job", command=(str(script),), preload="none", cwd=str(tmp_path))
    started = start_process(spec, env=dict(os.environ), private=True)
    link = SpawnerLink(started, "job", on_message=messages.append, on_lost=lost.append)
    async with anyio.create_task_group() as tasks:
        await tasks.start(link.run)
        await until(lambda: any(isinstance(message, wire.Ready) for message in messages), at_most_s=60)
        link.send(wire.Spawn(0, (PLAN,)))
        await until(lambda: any(isinstance(message, wire.Exited) for message in messages), at_most_s=60)
        link.send(wire.End())
        await until(lambda: not psutil.pid_exists(link.pid))
    (exit_told,) = [message for message in messages if isinstance(message, wire.Exited)]
    assert (exit_told.code, exit_told.signal) == (7, None)
    assert lost == []
