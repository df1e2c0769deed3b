"""Ranks that others start: met by their hello, watched by pidfds, signalled but never killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from holdfast_wire import spawner_link as link

from supervisor.config.job_spec import JobSpec
from supervisor.edges.machine.clock import Clock
from supervisor.edges.workers.adopted.adopted_ranks import AdoptedRanks
from supervisor.edges.workers.adopted.adopted_record import AdoptedRecord
from supervisor.ports.edges import Spawner
from tests.edges.workers.worker_side import until
from tests.settling import settled

JOB = JobSpec(job_id="adopted", command=("train.py",), local_world_size=2)


class Meeting:
    """Plays the worker socket, to which ranks come."""

    def __init__(self) -> None:
        self._send, self._receive = anyio.create_memory_object_stream[tuple[int, int]](10)

    async def next_unknown(self, job_id: str) -> tuple[int, int]:
        assert job_id == JOB.job_id
        return await self._receive.receive()

    async def come(self, local_rank: int, pid: int) -> None:
        self._send.send_nowait((local_rank, pid))
        await settled()

    def close(self) -> None:
        self._send.close()
        self._receive.close()


class World:
    """One kept job: its messages, and whether ranks are here."""

    def __init__(self, folder: Path, *, idle_s: float = 60.0) -> None:
        self.meeting = Meeting()
        self.told: list[link.FromSpawner] = []
        self.opened = anyio.Event()
        self.idle = anyio.Event()
        self.spawners = AdoptedRanks(
            workers=self.meeting, clock=Clock(), record=AdoptedRecord(folder),
            on_open=self.opened.set, on_idle=self.idle.set, idle_s=idle_s,
        )  # fmt: skip
        self.spawner: Spawner | None = None

    async def keep(self) -> None:
        try:
            await self.spawners.keep(JOB, {}, on_started=self._started, on_message=self.told.append)
        finally:
            self.meeting.close()

    def _started(self, spawner: Spawner) -> None:
        self.spawner = spawner

    def send(self, message: link.Order) -> None:
        assert self.spawner is not None
        self.spawner.send(message)

    def of(self, kind: type[link.FromSpawner]) -> list[link.FromSpawner]:
        return [message for message in self.told if isinstance(message, kind)]


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        yield process
        process.kill()


async def test_a_rank_is_met_signalled_and_its_end_is_told(tmp_path: Path, process: subprocess.Popen[bytes]):
    world = World(tmp_path)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.keep)
        await until(lambda: len(world.of(link.Ready)) == 1)
        world.send(link.PrepareStore(0, "127.0.0.1"))
        world.send(link.Spawn(0, ()))
        await world.opened.wait()
        await world.meeting.come(1, process.pid)
        await world.meeting.come(1, process.pid)  # it connects twice
        assert [(each.local_rank, each.pid) for each in world.told if isinstance(each, link.Spawned)] == [
            (1, process.pid)
        ]
        world.send(link.KillTree(0))
        assert world.of(link.Emptied) == [link.Emptied(0, 0, ())]
        assert process.poll() is None  # not ours to kill
        process.send_signal(signal.SIGSTOP)
        world.send(link.Signal(0, signal.SIGTERM, local_ranks=(1,), resume=True))
        await until(lambda: len(world.of(link.Exited)) == 1)
        assert process.wait(10) == -signal.SIGTERM
        world.send(link.End())


async def test_where_no_rank_comes_or_is_left_that_is_told(tmp_path: Path, process: subprocess.Popen[bytes]):
    world = World(tmp_path, idle_s=0.05)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.keep)
        await until(lambda: world.spawner is not None)
        world.send(link.Spawn(0, ()))
        await world.meeting.come(0, process.pid)
        with anyio.move_on_after(0.2):
            await world.idle.wait()
        assert not world.idle.is_set()
        process.kill()
        process.wait(10)
        with anyio.fail_after(10):
            await world.idle.wait()
        world.send(link.End())


async def test_a_rank_that_has_ended_before_it_is_met_is_nobody(tmp_path: Path, process: subprocess.Popen[bytes]):
    world = World(tmp_path)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.keep)
        await until(lambda: world.spawner is not None)
        world.send(link.Spawn(0, ()))
        process.kill()
        process.wait(10)
        await world.meeting.come(0, process.pid)
        assert world.of(link.Spawned) == []
        world.send(link.End())


async def test_who_has_ended_while_nobody_watched_is_lost_to_the_successor(
    tmp_path: Path, process: subprocess.Popen[bytes]
):
    async with anyio.create_task_group() as tasks:
        first = World(tmp_path)
        tasks.start_soon(first.keep)
        await until(lambda: first.spawner is not None)
        first.send(link.Spawn(0, ()))
        await first.meeting.come(1, process.pid)
        await first.meeting.come(0, os.getpid())
        tasks.cancel_scope.cancel()  # the supervisor dies
    process.kill()
    process.wait(10)
    async with anyio.create_task_group() as tasks:
        world = World(tmp_path)
        tasks.start_soon(world.keep)
        await until(lambda: world.spawner is not None)
        world.send(link.Spawn(0, ()))
        told = [each for each in world.told if isinstance(each, link.Spawned | link.Exited)]
        assert [(type(each), each.local_rank, each.pid) for each in told] == [
            (link.Spawned, 1, process.pid),
            (link.Exited, 1, process.pid),
        ]
        world.send(link.End())


async def test_one_that_ends_before_it_comes_to_the_successor_is_lost_too(
    tmp_path: Path, process: subprocess.Popen[bytes]
):
    record = AdoptedRecord(tmp_path)
    record.note(1, process.pid)
    record.note(0, os.getpid())
    async with anyio.create_task_group() as tasks:
        world = World(tmp_path)
        tasks.start_soon(world.keep)
        await until(lambda: world.spawner is not None)
        world.send(link.Spawn(0, ()))
        assert world.of(link.Spawned) == []
        process.kill()
        process.wait(10)
        await until(lambda: len(world.of(link.Exited)) == 1)
        told = [each for each in world.told if isinstance(each, link.Spawned | link.Exited)]
        assert [(type(each), each.local_rank, each.pid) for each in told] == [
            (link.Spawned, 1, process.pid),
            (link.Exited, 1, process.pid),
        ]
        world.send(link.End())


async def test_one_that_has_come_ends_once(tmp_path: Path, process: subprocess.Popen[bytes]):
    AdoptedRecord(tmp_path).note(1, process.pid)
    async with anyio.create_task_group() as tasks:
        world = World(tmp_path)
        tasks.start_soon(world.keep)
        await until(lambda: world.spawner is not None)
        world.send(link.Spawn(0, ()))
        await world.meeting.come(1, process.pid)
        process.kill()
        process.wait(10)
        await until(lambda: len(world.of(link.Exited)) == 1)
        await anyio.lowlevel.checkpoint()
        assert len(world.of(link.Spawned)) == len(world.of(link.Exited)) == 1
        world.send(link.End())
