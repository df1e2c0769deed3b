"""Is a spawner that does not answer waited for, reported, and ended on request?"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio
import anyio.lowlevel
import msgspec
import pytest
from holdfast_wire import framing
from holdfast_wire import spawner_link as wire

from supervisor.core.process_facts import SilentSpawner
from supervisor.edges.machine.processes import process_table
from supervisor.edges.workers.spawner import spawner_discovery, spawner_reconnect
from supervisor.edges.workers.spawner.kept_succession import SUCCESSION, SUCCESSOR, Succession
from supervisor.edges.workers.spawner.spawner_discovery import FoundSpawner, SpawnerFiles, SpawnerIdentity
from supervisor.edges.workers.spawner.spawner_reconnect import SpawnerReconnect

pytestmark = pytest.mark.timeout(30)

# Listens at the descriptor, if it may, and sends the bytes that it reads; then it waits.
PROGRAM = (
    "import socket, sys; listener = socket.socket(fileno=int(sys.argv[1])); sys.argv[2] == 'mute' or listener.listen();"
    "print(flush=True); said = sys.stdin.buffer.readline(); sys.argv[2] == 'mute' and sys.stdin.buffer.readline(); "
    "listener.listen(); connection, _ = listener.accept(); "
    "connection.sendall(bytes.fromhex(said.decode())); connection.recv(1)"
)


class Spawner:
    """A process at its place. `next_pid`: it keeps that this process gets the next cycle; 0: itself; None: nothing.

    `successor`: the pid of the one by which it was replaced.
    """

    def __init__(self, folder: Path, *, is_mute: bool = False, next_pid: int | None = None, successor: int = 0) -> None:
        self.place, listener = spawner_discovery.create_files(folder)
        with listener:
            listener.setblocking(True)
            command = [sys.executable, "-c", PROGRAM, str(listener.fileno()), "mute" if is_mute else "listens"]
            self.process = subprocess.Popen(
                command, pass_fds=[listener.fileno()], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        assert self.process.stdout is not None
        self.process.stdout.readline()
        self.place.note("j", self.process.pid)
        identity = self.place.identity()
        assert identity is not None
        self.identity: SpawnerIdentity = identity
        texts = {} if next_pid is None else kept_by(self.process.pid, next_pid or self.process.pid)
        if successor:
            texts[SUCCESSOR] = str(successor)
        ready = wire.Ready(1, 1, "3.11", "fork", "", (), "")
        welcome = wire.WelcomeBack(self.process.pid, "j", ready, len(texts), 0)
        messages = [welcome, *map(wire.Kept, texts, texts.values())]
        said = b"".join(framing.encode(wire.encode(each), frame_bytes_max=1 << 20) for each in messages)
        assert self.process.stdin is not None
        self.process.stdin.write(said.hex().encode() + b"\n")
        self.process.stdin.flush()

    @property
    def places(self) -> list[tuple[SpawnerFiles, SpawnerIdentity]]:
        return [(self.place, self.identity)]

    def listen(self) -> None:
        """Lets one that is mute listen."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def leave_kept(self) -> None:
        """Ends it; its file says that it was to get the next cycle, too."""
        self.end()
        texts = kept_by(self.process.pid, self.process.pid)
        self.place.keep_path.write_text(json.dumps({"texts": texts, "taken": 0, "reports": [], "cgroup": ""}))

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def spawner(tmp_path: Path) -> Generator[Spawner]:
    spawner = Spawner(tmp_path / "spawners")
    yield spawner
    spawner.end()


def kept_by(pid: int, next_pid: int) -> dict[str, str]:
    """Returns the texts of a job whose cycle 0 is at the first process, and whose next one will be at the other."""
    stood = Succession(next_pid, {0: pid}, 0, is_bare=False, is_ending=False, held=(), turns=3)
    return {SUCCESSION: msgspec.json.encode(stood).decode()}


@contextmanager
def loading(
    folder: Path, command: Sequence[str] = ("sleep", "600")
) -> Generator[tuple[SpawnerFiles, SpawnerIdentity, subprocess.Popen[bytes]]]:
    """Yields a process whose socket takes connections, and which never answers."""
    place, listener = spawner_discovery.create_files(folder)
    with listener, subprocess.Popen(command, start_new_session=True) as process:
        listener.listen()
        place.note("j", process.pid)
        identity = place.identity()
        assert identity is not None
        try:
            yield place, identity, process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)


def has_no_effect(descriptor: int, number: int) -> None:
    del descriptor, number


async def unexpected() -> None:
    raise AssertionError("it answers")


async def test_one_that_answers_is_found_and_nobody_is_told(spawner: Spawner) -> None:
    found: list[FoundSpawner] = []
    await SpawnerReconnect(spawner.places, found).run(unexpected)
    (reached,) = found
    assert reached.pid == spawner.process.pid
    reached.close()


async def test_a_stopped_one_is_told_at_once_and_found_when_it_goes_on(
    spawner: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spawner_reconnect, "SILENT_S", 100.0)
    stop(spawner.process)
    found: list[FoundSpawner] = []
    attempt = SpawnerReconnect(spawner.places, found)

    async def told() -> None:
        assert attempt.silent() == SilentSpawner(spawner.process.pid, "T", "is stopped (state T)")
        spawner.process.send_signal(signal.SIGCONT)

    await attempt.run(told)
    assert (len(found), attempt.silent(), attempt.killed) == (1, None, [])
    found[0].close()


async def test_who_asks_for_its_end_continues_a_stopped_one(spawner: Spawner) -> None:
    stop(spawner.process)
    found: list[FoundSpawner] = []
    attempt = SpawnerReconnect(spawner.places, found)

    async def told() -> None:
        attempt.end()

    await attempt.run(told)
    assert (len(found), attempt.killed) == (1, [])
    found[0].close()


async def test_one_that_answers_nothing_even_then_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spawner_reconnect, "SILENT_S", 0.05)
    monkeypatch.setattr(spawner_reconnect, "GOES_ON_S", 0.05)
    with loading(tmp_path / "spawners") as (place, identity, process):
        found: list[FoundSpawner] = []
        attempt = SpawnerReconnect([(place, identity)], found)

        async def told() -> None:
            silent = attempt.silent()
            assert silent is not None
            assert silent.pid == process.pid
            attempt.end()

        await attempt.run(told)
        assert (found, attempt.killed) == ([], [process.pid])
        assert process.wait(10) == -signal.SIGKILL


async def test_one_that_can_not_even_be_killed_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("SILENT_S", "GOES_ON_S", "GONE_S"):
        monkeypatch.setattr(spawner_reconnect, limit, 0.05)
    monkeypatch.setattr(signal, "pidfd_send_signal", has_no_effect)  # as in state D
    place, listener = spawner_discovery.create_files(tmp_path / "spawners")
    with listener:
        listener.listen()
        place.note("j", os.getpid())
        identity = place.identity()
        assert identity is not None
        attempt = SpawnerReconnect([(place, identity)], [])

        async def told() -> None:
            attempt.end()

        with anyio.fail_after(10):
            await attempt.run(told)
        assert attempt.killed == [os.getpid()]


@pytest.mark.parametrize("is_stopped", [True, False])
async def test_one_that_does_not_listen_yet_is_waited_for_however_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_stopped: bool
) -> None:
    """It may start its interpreter from a slow disk."""
    monkeypatch.setattr(anyio, "current_time", lambda: 100 * time.monotonic())
    monkeypatch.setattr(spawner_reconnect, "SILENT_S", 0.3)
    spawner = Spawner(tmp_path / "spawners", is_mute=True)
    try:
        found: list[FoundSpawner] = []
        attempt = SpawnerReconnect(spawner.places, found)
        if is_stopped:
            stop(spawner.process)

        async def told() -> None:
            await anyio.sleep(0.6)
            spawner.process.send_signal(signal.SIGCONT)
            spawner.listen()

        await attempt.run(told)
        assert len(found) == 1
        found[0].close()
    finally:
        spawner.end()


async def test_one_that_has_nothing_of_the_job_is_killed_and_not_waited_for(tmp_path: Path) -> None:
    """As a successor that loads: the others may have healthy workers."""
    spawner, found = Spawner(tmp_path / "spawners", next_pid=0), list[FoundSpawner]()
    try:
        with loading(tmp_path / "spawners") as (place, identity, process), anyio.fail_after(10):
            attempt = SpawnerReconnect([(place, identity), *spawner.places], found)
            await attempt.run(anyio.lowlevel.checkpoint)
            assert process.wait(10) == -signal.SIGKILL
        assert [each.pid for each in found] == [spawner.process.pid]
        assert (attempt.unneeded, attempt.killed) == ([process.pid], [])
        found[0].close()
    finally:
        spawner.end()


@pytest.mark.parametrize("why", ["", "it has a worker", "it is stopped", "it keeps something", "it is the next one"])
@pytest.mark.parametrize("has_helper", [False, True])
async def test_one_without_a_worker_is_not_waited_for_without_limit_if_the_spawner_that_had_the_job_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str, has_helper: bool
) -> None:
    """The one that answers was replaced; this one hangs while it loads, unless there is a reason `why` it may not.

    `has_helper`: what it loads has started a process.
    """
    monkeypatch.setattr(spawner_reconnect, "SILENT_S", 0.05)
    monkeypatch.setattr(spawner_reconnect, "GOES_ON_S", 0.05)
    monkeypatch.setattr(spawner_reconnect, "CHILDLESS_S", 0.06)
    found, looks, pause = list[FoundSpawner](), list[str](), spawner_reconnect.pause
    has_worker = why == "it has a worker"
    workers = list[int]()
    script = "sleep 600 & " * has_helper + "setsid sleep 600 & " * has_worker + "wait; exec sleep 600"
    command = ["sh", "-c", script]
    with loading(tmp_path / "spawners", command) as (place, identity, process):
        successor = process.pid if why == "it is the next one" else 1
        spawner = Spawner(tmp_path / "spawners", next_pid=0, successor=successor)
        attempt = SpawnerReconnect([(place, identity), *spawner.places], found)

        def is_complete() -> bool:
            below = process_table.descendants(process.pid)
            workers[:] = [each.pid for each in below if each.session == each.pid]
            return (len(below), len(workers)) == (has_helper + has_worker, has_worker)

        async def counting(delay_s: float, *, why: str) -> None:
            if delay_s == spawner_reconnect.CHILDLESS_S:
                if looks:
                    attempt.end()
                looks.append(why)
            await pause(delay_s, why=why)

        try:
            while not is_complete():  # noqa: ASYNC110 - the kernel does not tell
                await anyio.sleep(0.01)
            if why == "it is stopped":
                stop(process)
            if why == "it keeps something":
                place.keep_path.write_text("{}")
            monkeypatch.setattr(spawner_reconnect, "pause", counting)
            with anyio.fail_after(20):
                await attempt.run(anyio.lowlevel.checkpoint)
            assert process.wait(10) == -signal.SIGKILL
            assert (attempt.unneeded, attempt.killed) == (([], [process.pid]) if why else ([process.pid], []))
            assert [each.pid for each in found] == [spawner.process.pid]
            found[0].close()
        finally:
            spawner.end()
            for worker in workers:
                os.kill(worker, signal.SIGKILL)


@pytest.mark.parametrize("has_ended", [False, True])
async def test_one_that_has_replaced_another_is_found_though_it_could_save_nothing(
    tmp_path: Path, has_ended: bool
) -> None:
    """As before the other one got the text that says so."""
    replaced = Spawner(tmp_path / "spawners", next_pid=0)
    spawner, found = Spawner(tmp_path / "spawners", is_mute=True, next_pid=0), list[FoundSpawner]()
    try:
        if has_ended:
            replaced.leave_kept()
        attempt = SpawnerReconnect([*spawner.places, *replaced.places], found)
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(attempt.run, unexpected)
                await anyio.sleep(0.2)
                spawner.listen()
        assert spawner.process.pid in [each.pid for each in found]
        assert attempt.unneeded == []
        for each in found:
            each.close()
    finally:
        spawner.end()
        replaced.end()


@pytest.mark.parametrize(
    "why",
    [
        "it keeps something",
        "it gets the next cycle",
        "the other one was replaced",
        "nothing is kept of the job",
        "no other answers",
    ],
)
async def test_one_that_may_have_the_job_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    monkeypatch.setattr(spawner_reconnect, "SILENT_S", 0.3)
    monkeypatch.setattr(spawner_reconnect, "GOES_ON_S", 0.05)
    with loading(tmp_path / "spawners") as (place, identity, process):
        next_pid = {"nothing is kept of the job": None, "it gets the next cycle": process.pid}.get(why, 0)
        successor = 1 if why == "the other one was replaced" else 0  # an earlier one, which has ended
        spawner = Spawner(tmp_path / "spawners", next_pid=next_pid, successor=successor)
        found: list[FoundSpawner] = []
        if why == "it keeps something":
            place.keep_path.write_text("{}")
        if why == "no other answers":
            spawner.leave_kept()
        attempt = SpawnerReconnect([(place, identity), *spawner.places], found)

        async def told() -> None:
            assert process.poll() is None
            attempt.end()

        try:
            await attempt.run(told)
            assert (attempt.unneeded, attempt.killed) == ([], [process.pid])
            for each in found:
                each.close()
        finally:
            spawner.end()
