"""Real spawners: a successor takes over with a new cycle, ends with the job, and is not needed before that."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

import anyio
import msgspec
import pytest
from holdfast_wire import spawner_link as link
from holdfast_wire.spawner_settings import SpawnerSettings

from supervisor.config import JobSpec
from supervisor.core.facts import RestartRules
from supervisor.edges.machine.processes import process_table
from supervisor.edges.workers.spawner.spawner_lifecycle import SpawnerLifecycle
from supervisor.edges.workers.spawner.spawner_link import SpawnerLink
from supervisor.edges.workers.spawner.spawner_succession import Hearing, SpawnerSuccession
from supervisor.ports.edges import Spawner
from tests.settling import settled

LIMIT_S = 60
FENCE_NS = 5 * 10**9
_of_earlier_tests: set[int] = set()  # children that this process had before
_T = TypeVar("_T", bound=link.FromSpawner)

TORCH = """
import os
LOADED_BY = os.getpid()

class default_generator:
    seed = staticmethod(lambda: 0)
"""
SCRIPT = """
import os, time
def main():
    import torch
    with open(os.environ["RECORD"], "a") as file:
        print(os.environ["CYCLE"], torch.LOADED_BY != os.getpid(), file=file)
    time.sleep(600)
if os.environ:
    main()
"""


class Job:
    """A kept spawner, its messages and its end."""

    def __init__(self, record: Path) -> None:
        self.record = record
        self.spawners: list[Spawner] = []
        self.heard: list[link.FromSpawner] = []
        self.news = anyio.Event()
        self.reason = ""

    @property
    def spawner(self) -> Spawner:
        return self.spawners[0]

    def take(self, message: link.FromSpawner) -> None:
        self.heard.append(message)
        self.news.set()
        self.news = anyio.Event()

    async def hears(self, kind: type[_T], where: Callable[[_T], bool] = lambda _: True) -> _T:
        while True:
            for message in self.heard:
                if isinstance(message, kind) and where(message):
                    return message
            await self.news.wait()

    async def start(self, cycle: int) -> int:
        """Starts one worker in that cycle, with a real store; returns its pid."""
        self.spawner.send(link.PrepareStore(cycle, "127.0.0.1"))
        await self.hears(link.StoreReady, lambda ready: ready.cycle == cycle)
        env = {"CYCLE": str(cycle), "RECORD": str(self.record)}
        self.spawner.send(link.Spawn(cycle, (link.WorkerPlan(0, 0, env),)))
        return (await self.hears(link.Spawned, lambda spawned: spawned.cycle == cycle)).pid

    async def empty(self, cycle: int) -> None:
        self.spawner.send(link.KillTree(cycle))
        await self.hears(link.Emptied, lambda emptied: emptied.cycle == cycle)

    async def records(self, count: int) -> list[str]:
        """Returns the workers' output once it has `count` lines."""

        def lines() -> list[str]:
            return self.record.read_text().splitlines() if self.record.exists() else []

        await until(lambda: len(lines()) >= count)
        return lines()


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobSpec:
    """A job that imports `torch` late; its workers get no time to settle."""
    hasty = partial(SpawnerSettings, learn_after_s=0.0)
    monkeypatch.setattr("supervisor.edges.workers.spawner.spawner_process.SpawnerSettings", hasty)
    script = tmp_path / "job" / "late.py"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    library = tmp_path / "library"
    library.mkdir()
    (library / "torch.py").write_text(TORCH)
    restart = RestartRules(max_restarts=3)
    return JobSpec("followed", (str(script),), cwd=str(tmp_path), python=sys.executable, restart=restart)


@asynccontextmanager
async def kept(spec: JobSpec) -> AsyncGenerator[Job]:
    folder = Path(spec.cwd)
    job = Job(folder / "record")
    env = {**os.environ, "PYTHONPATH": str(folder / "library")}

    async def keep() -> None:
        lifecycle = SpawnerLifecycle(private=True, output_dir=None)
        job.reason = await lifecycle.keep(spec, env, on_started=job.spawners.append, on_message=job.take)

    _of_earlier_tests.clear()
    _of_earlier_tests.update(children())
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keep)
            await job.hears(link.Ready)
            yield job
        await until(lambda: not children())  # nothing is left behind; a process that is just starting is ended later


def children() -> list[int]:
    """Returns live children of this process that were started since `kept` began."""
    entries = [entry for entry in process_table.all_processes() if entry.parent_pid == os.getpid()]
    return [entry.pid for entry in entries if entry.state not in "ZX" and entry.pid not in _of_earlier_tests]


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - there is no event; `kept` sets the limit
        await anyio.sleep(0.02)


async def successor_of(job: Job) -> int:
    """Returns the pid of a ready successor, known only to its supervisor: its title shows that."""
    first = job.spawner.pid

    def found() -> list[int]:
        return [pid for pid in children() if pid != first and title(pid).startswith(b"holdfast spawner")]

    await until(found)
    await anyio.sleep(0.1)  # its Ready follows at once
    return found()[0]


def in_the_spawner(spec: JobSpec, statement: str) -> None:
    """Does what `torch` does if it is loaded ahead, and not by a worker."""
    text = f"{TORCH}\nif 'CYCLE' not in os.environ:\n    {statement}\n"
    (Path(spec.cwd) / "library" / "torch.py").write_text(text)


def title(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


async def test_a_successor_gets_the_fence_that_was_moved_before_it_came(spec: JobSpec) -> None:
    """A supervisor that stands still from then on moves it no more: the successor ends what is left at its time."""
    async with kept(spec) as job:
        await job.start(0)
        await job.hears(link.Learned)
        job.spawner.send(link.Fence(time.monotonic_ns() + FENCE_NS))
        await successor_of(job)
        await job.start(1)
        ended = await job.hears(link.Exited, lambda exited: exited.cycle == 1)
        assert ended.signal == signal.SIGKILL
        for cycle in (0, 1):
            await job.empty(cycle)
        job.spawner.send(link.End())


async def test_the_next_cycle_is_started_by_the_successor_and_the_first_one_ends(spec: JobSpec) -> None:
    async with kept(spec) as job:
        first = job.spawner.pid
        await job.start(0)
        learned = await job.hears(link.Learned)
        assert learned.steps == ("torch",)
        successor = await successor_of(job)
        assert job.spawner.pid == first, "it is not relied on before the next cycle"
        await job.start(1)
        assert job.spawner.pid == successor
        assert len([message for message in job.heard if isinstance(message, link.Ready)]) == 2
        assert first in children(), "the old cycle is not empty yet"
        await job.empty(0)
        await until(lambda: first not in children())
        assert await job.records(2) == ["0 False", "1 True"]
        await job.empty(1)
        await job.start(2)
        assert (await job.records(3))[-1] == "2 True"
        job.spawner.send(link.End())
    assert job.reason == "the spawner ended because it was asked to"


async def test_what_is_said_to_an_old_cycle_reaches_its_own_spawner(spec: JobSpec) -> None:
    async with kept(spec) as job:
        pid = await job.start(0)
        await job.records(1)
        await successor_of(job)
        job.spawner.send(link.PrepareStore(1, "127.0.0.1"))  # as at each announced restart: the old workers still run
        await job.hears(link.StoreReady, lambda ready: ready.cycle == 1)
        job.spawner.send(link.Signal(0, signal.SIGTERM))
        exited = await job.hears(link.Exited)
        assert (exited.pid, exited.signal) == (pid, signal.SIGTERM)
        await job.empty(0)
        job.spawner.send(link.End())
    assert job.reason == "the spawner ended because it was asked to"


async def test_a_new_cycle_waits_for_a_load_that_is_under_way(spec: JobSpec) -> None:
    go = Path(spec.cwd) / "go"
    os.mkfifo(go)
    in_the_spawner(spec, f"open({str(go)!r}).close()")
    async with kept(spec) as job:
        await job.start(0)
        await until(lambda: len(children()) >= 2)
        job.spawner.send(link.PrepareStore(1, "127.0.0.1"))
        job.spawner.send(link.KillTree(0))
        await job.hears(link.Emptied)  # everything else continues meanwhile
        await anyio.to_thread.run_sync(lambda: go.open("w").close())
        await job.start(1)
        assert await job.records(2) == ["0 False", "1 True"]
        job.spawner.send(link.End())
    assert job.reason == "the spawner ended because it was asked to"


async def test_a_load_that_takes_too_long_is_not_waited_for_and_does_not_delay_the_end(
    spec: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.edges.workers.spawner.spawner_succession.LOAD_TIMEOUT_S", 0.3)
    in_the_spawner(spec, "__import__('signal').pause()")
    async with kept(spec) as job:
        await job.start(0)
        await until(lambda: len(children()) >= 2)
        await job.start(1)  # not ready: the first one continues
        said = [message.reason for message in job.heard if isinstance(message, link.Learned) and not message.steps]
        assert said == ["cycle 1 begins before that is loaded: each of its workers loads it itself"]
        assert len([message for message in job.heard if isinstance(message, link.Ready)]) == 1
        await job.empty(0)
        job.spawner.send(link.PrepareStore(2, "127.0.0.1"))  # held when the job ends
        job.spawner.send(link.End())
    assert job.reason == "the spawner ended because it was asked to"


async def test_orders_of_a_cycle_that_is_given_up_do_not_wait(spec: JobSpec) -> None:
    in_the_spawner(spec, "__import__('signal').pause()")
    async with kept(spec) as job:
        await job.start(0)
        await until(lambda: len(children()) >= 2)
        job.spawner.send(link.PrepareStore(1, "127.0.0.1"))
        job.spawner.send(link.KillTree(1))
        await job.hears(link.Emptied, lambda emptied: emptied.cycle == 1)
        job.spawner.send(link.End())
    assert job.reason == "the spawner ended because it was asked to"


async def test_a_successor_that_dies_or_cannot_be_used_is_no_loss(spec: JobSpec) -> None:
    async with kept(spec) as job:
        await job.start(0)
        successor = await successor_of(job)
        os.kill(successor, signal.SIGKILL)
        await until(lambda: process_table.look_up(successor) is None)  # reaped, so the supervisor knows
        first = job.spawner.pid
        await job.start(1)
        assert job.spawner.pid == first
        job.spawner.send(link.End())
    assert job.reason == "the spawner ended because it was asked to"


async def test_one_that_cannot_be_forked_from_is_refused_with_its_reason(spec: JobSpec) -> None:
    start = "__import__('threading').Thread(None, __import__('signal').sigwait, 'watch', ({10},), daemon=True).start()"
    in_the_spawner(spec, start)
    async with kept(spec) as job:
        await job.start(0)
        refused = await job.hears(link.Learned, lambda learned: not learned.steps)
        assert "nothing is loaded ahead: " in refused.reason
        assert "a preloaded module runs the thread" in refused.reason
        assert "a preloaded module runs the thread" in refused.lost
        await job.start(1)
        assert len([message for message in job.heard if isinstance(message, link.Ready)]) == 1
        job.spawner.send(link.End())
    assert job.reason == "the spawner ended because it was asked to"


async def test_one_whose_process_ends_while_it_loads_is_told(spec: JobSpec) -> None:
    in_the_spawner(spec, "os._exit(3)")
    async with kept(spec) as job:
        await job.start(0)
        lost = await job.hears(link.Learned, lambda learned: not learned.steps)
        assert lost.reason.startswith("nothing is loaded ahead: what loads it was lost: the spawner (pid ")
        assert ") exited with code 3" in lost.reason
        await job.start(1)
        job.spawner.send(link.End())
    assert job.reason == "the spawner ended because it was asked to"


@pytest.mark.parametrize("killed", ["first", "successor"])
async def test_the_loss_of_either_ends_all_workers_while_both_have_some(spec: JobSpec, killed: str) -> None:
    async with kept(spec) as job:
        first = job.spawner.pid
        workers = [await job.start(0)]
        successor = await successor_of(job)
        workers.append(await job.start(1))
        os.kill(first if killed == "first" else successor, signal.SIGKILL)
    assert "was killed by signal 9" in job.reason
    for pid in workers:
        assert process_table.look_up(pid) is None


async def test_a_job_that_may_not_restart_has_no_successor(spec: JobSpec) -> None:
    once = msgspec.structs.replace(spec, restart=RestartRules(max_restarts=0))
    async with kept(once) as job:
        await job.start(0)
        await job.records(1)
        await job.start(1)
        await job.records(2)
        job.spawner.send(link.End())
    assert not [message for message in job.heard if isinstance(message, link.Learned)]


class SetLink:
    """Replaces the link to a spawner, which runs until it is killed or told to end."""

    def __init__(self, pid: int, hearing: Hearing) -> None:
        self.pid = pid
        self.hearing = hearing
        self.sent: list[link.ToSpawner] = []
        self.killed = ""
        self._over = anyio.Event()

    def send(self, message: link.ToSpawner) -> None:
        self.sent.append(message)
        if isinstance(message, link.End):
            self._over.set()

    def kill(self, reason: str) -> None:
        self.killed = reason
        self._over.set()

    def let_go_on(self) -> None:
        """Does nothing: it is not stopped."""

    async def run(self) -> None:
        await self._over.wait()
        if self.killed:
            self.hearing.on_lost(self.killed)

    async def emptied(self, *, timeout_s: float) -> tuple[int, ...]:
        return ()


async def test_a_successor_that_is_dismissed_just_as_its_start_completes_is_killed() -> None:
    """Its start can't be cancelled any more in that turn of the loop, so it comes all the same."""
    links: list[SetLink] = []
    may_start = anyio.Event()

    async def start(learned: link.Learned | None, hearing: Hearing) -> SpawnerLink:
        if learned is not None:
            await may_start.wait()
        links.append(SetLink(10 + len(links), hearing))
        return cast("SpawnerLink", links[-1])

    succession = SpawnerSuccession(start, lambda _: None, lambda _: None)
    reasons: list[str] = []

    async def run() -> None:
        reasons.append(await succession.run(lambda _: None))

    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await settled()
            links[0].hearing.on_message(link.Learned(("torch",), (), ""))
            await settled()
            may_start.set()
            succession.send(link.End())
    _, successor = links
    assert (successor.killed, successor.sent) == ("nothing needs it any more", [])
    assert reasons == [""]
