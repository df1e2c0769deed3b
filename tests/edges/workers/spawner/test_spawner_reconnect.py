"""Is a spawner that does not answer waited for, reported, and ended on request?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import anyio
import pytest
from holdfast_wire import framing
from holdfast_wire import spawner_link as wire

from supervisor.core.process_facts import SilentSpawner
from supervisor.edges.workers.spawner import spawner_discovery, spawner_reconnect
from supervisor.edges.workers.spawner.spawner_discovery import FoundSpawner, SpawnerFiles, SpawnerIdentity
from supervisor.edges.workers.spawner.spawner_reconnect import SpawnerReconnect

pytestmark = pytest.mark.timeout(30)

# Listens at the descriptor, if it may, and sends the bytes that it reads; then it waits.
PROGRAM = (
    "import socket, sys; listener = socket.socket(fileno=int(sys.argv[1])); sys.argv[2] == 'mute' or listener.listen();"
    "print(flush=True); said = sys.stdin.buffer.readline(); listener.listen(); connection, _ = listener.accept(); "
    "connection.sendall(bytes.fromhex(said.decode())); connection.recv(1)"
)


class Spawner:
    """A process at its place."""

    def __init__(self, folder: Path, *, is_mute: bool = False) -> None:
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
        welcome = wire.WelcomeBack(self.process.pid, "j", wire.Ready(1, 1, "3.11", "fork", "", (), ""), 0, 0)
        said = framing.encode(wire.encode(welcome), frame_bytes_max=1 << 20)
        assert self.process.stdin is not None
        self.process.stdin.write(said.hex().encode() + b"\n")
        self.process.stdin.flush()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    @property
    def places(self) -> list[tuple[SpawnerFiles, SpawnerIdentity]]:
        return [(self.place, self.identity)]


@pytest.fixture
def spawner(tmp_path: Path) -> Generator[Spawner]:
    spawner = Spawner(tmp_path / "spawners")
    yield spawner
    spawner.process.kill()
    spawner.process.communicate()


def sleeping() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "600"])


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
    spawner.stop()
    found: list[FoundSpawner] = []
    attempt = SpawnerReconnect(spawner.places, found)

    async def told() -> None:
        assert attempt.silent() == SilentSpawner(spawner.process.pid, "T", "is stopped (state T)")
        spawner.process.send_signal(signal.SIGCONT)

    await attempt.run(told)
    assert (len(found), attempt.silent(), attempt.killed) == (1, None, [])
    found[0].close()


async def test_who_asks_for_its_end_continues_a_stopped_one(spawner: Spawner) -> None:
    spawner.stop()
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
    place, listener = spawner_discovery.create_files(tmp_path / "spawners")
    with listener, sleeping() as process:
        listener.listen()
        place.note("j", process.pid)
        identity = place.identity()
        assert identity is not None
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


async def test_one_that_was_stopped_before_it_listens_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spawner_discovery, "LISTENS_WITHIN_S", 0.3)
    monkeypatch.setattr(spawner_discovery, "ASK_AGAIN_HELD_S", 0.05)
    spawner = Spawner(tmp_path / "spawners", is_mute=True)
    try:
        found: list[FoundSpawner] = []
        attempt = SpawnerReconnect(spawner.places, found)
        spawner.stop()

        async def told() -> None:
            await anyio.sleep(0.6)  # longer than one that runs may take
            spawner.process.send_signal(signal.SIGCONT)

        await attempt.run(told)
        assert len(found) == 1
        found[0].close()
    finally:
        spawner.process.kill()
        spawner.process.communicate()
