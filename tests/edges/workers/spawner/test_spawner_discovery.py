"""Does the next supervisor find a spawner, and does it take nothing else for one?"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from pathlib import Path

import msgspec
import pytest
from holdfast_wire import framing
from holdfast_wire import spawner_link as wire

from supervisor.edges.workers.spawner import spawner_discovery
from supervisor.edges.workers.spawner.spawner_discovery import SpawnerFiles, SpawnerIdentity

READY = wire.Ready(os.getpid(), 1, "3.11", "fork", "", (), "")


def recorded_files(folder: Path) -> tuple[SpawnerFiles, socket.socket, SpawnerIdentity]:
    """Returns a place of this very process."""
    place, listener = spawner_discovery.create_files(folder)
    place.note("j", os.getpid())
    identity = place.identity()
    assert identity is not None
    return place, listener, identity


def answering(listener: socket.socket, *messages: wire.Message) -> threading.Thread:
    """Listens and sends the messages to the first client."""
    listener.setblocking(True)
    listener.listen()

    def answer() -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(ConnectionError):  # by a client that leaves before it has read all
            for message in messages:
                connection.sendall(framing.encode(wire.encode(message), frame_bytes_max=1 << 20))
            connection.recv(1)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    return thread


async def test_a_living_spawner_is_found_with_what_it_keeps_and_what_it_has_reported(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100)  # longer than a socket's path may be
    deep.mkdir()
    place, listener, identity = recorded_files(deep / "spawners")
    emptied = wire.Emptied(3, 0, ())
    with listener:
        answering(
            listener, wire.WelcomeBack(os.getpid(), "j", READY, 2, 7), wire.Kept("a", "1"), wire.Kept("b", "2"), emptied
        )
        found = await spawner_discovery.reach(place, identity)
        assert found is not None
        assert (found.texts, found.welcome.taken) == ({"a": "1", "b": "2"}, 7)
        assert found.reports in ([emptied], [])  # otherwise it is still to be read
        found.close()
    assert [each.name for each in spawner_discovery.find_files(deep / "spawners")] == [place.name]
    place.remove()
    assert spawner_discovery.find_files(deep / "spawners") == []


async def test_without_a_descriptor_it_is_waited_for_and_not_given_up(tmp_path: Path) -> None:
    """A spawner that counts as lost is ended, with its job."""
    place, listener, identity = recorded_files(tmp_path / "spawners")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    def free() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        answering(listener, wire.WelcomeBack(os.getpid(), "j", READY, 0, 7))

    with listener:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        timer = threading.Timer(0.3, free)
        timer.start()
        try:
            found = await spawner_discovery.reach(place, identity)
        finally:
            timer.join()
        assert found is not None
        found.close()


@pytest.mark.parametrize(
    "welcome",
    [wire.WelcomeBack(1, "j", READY, 0, 0), wire.WelcomeBack(os.getpid(), "another", READY, 0, 0), wire.Ended()],
    ids=["another process", "another job", "no welcome"],
)
async def test_what_says_something_else_is_not_the_spawner(tmp_path: Path, welcome: wire.Message) -> None:
    place, listener, identity = recorded_files(tmp_path / "spawners")
    with listener:
        answering(listener, welcome, wire.WelcomeBack(1, "j", READY, 0, 0))
        assert await spawner_discovery.reach(place, identity) is None


@pytest.fixture
def listens_in_another_process() -> Generator[Callable[[socket.socket, bytes], None]]:
    """Yields a function that makes another process send these bytes to the first client."""
    program = (
        "import socket, sys; listener = socket.socket(fileno=int(sys.argv[1])); listener.listen(); "
        "connection, _ = listener.accept(); connection.sendall(bytes.fromhex(sys.argv[2])); connection.recv(1)"
    )
    started: list[subprocess.Popen[bytes]] = []

    def start(listener: socket.socket, said: bytes) -> None:
        listener.setblocking(True)
        command = [sys.executable, "-c", program, str(listener.fileno()), said.hex()]
        started.append(subprocess.Popen(command, pass_fds=[listener.fileno()]))

    yield start
    for process in started:
        process.kill()
        process.wait()


async def test_a_socket_at_which_another_process_listens_is_not_believed(
    tmp_path: Path, listens_in_another_process: Callable[[socket.socket, bytes], None]
) -> None:
    place, listener, identity = recorded_files(tmp_path / "spawners")
    said = framing.encode(wire.encode(wire.WelcomeBack(os.getpid(), "j", READY, 0, 0)), frame_bytes_max=1 << 20)
    with listener:
        listens_in_another_process(listener, said)
        assert await spawner_discovery.reach(place, identity) is None


async def test_a_process_of_another_time_or_boot_is_not_alive(tmp_path: Path) -> None:
    place, listener, identity = recorded_files(tmp_path / "spawners")
    listener.close()
    assert identity.is_alive
    for other in (
        msgspec.structs.replace(identity, started_ticks=identity.started_ticks + 1),
        msgspec.structs.replace(identity, boot="another"),
        msgspec.structs.replace(identity, pid_namespace=1),
    ):
        assert not other.is_alive
        assert await spawner_discovery.reach(place, other) is None


def test_a_folder_that_is_open_to_others_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "spawners"
    recorded_files(folder)[1].close()
    folder.chmod(0o755)
    assert spawner_discovery.find_files(folder) == []
    with pytest.raises(OSError, match="others may enter it"):
        spawner_discovery.create_files(folder)
