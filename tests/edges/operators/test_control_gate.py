"""Does a supervisor load its control API only once it is asked, and does whatever goes wrong cost the client alone?"""

import asyncio
import contextlib
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path

import anyio
import anyio.abc
import anyio.lowlevel
import pytest

from supervisor.edges.machine.processes.socket_stream import SocketStream
from supervisor.edges.operators.control_gate import ControlGate


class Echo:
    """Plays the control API: echoes what arrives."""

    def __init__(self) -> None:
        self.loads = 0
        self.has_ended = False

    def load(self) -> "Echo":
        self.loads += 1
        return self

    async def serve(self, client: socket.socket) -> None:
        stream = SocketStream(client)
        while data := await stream.receive():
            await stream.send(data)

    def end(self) -> None:
        self.has_ended = True


async def test_the_api_is_loaded_at_the_first_connection_and_once(tmp_path: Path) -> None:
    server = Echo()
    path = tmp_path / "control.sock"
    async with anyio.create_task_group() as tasks:
        await tasks.start(ControlGate(socket_path=path, load=server.load).run)
        assert server.loads == 0
        assert path.stat().st_mode & 0o777 == 0o600
        for message in (b"one", b"x" * 1_000_000):
            got = b""
            async with await anyio.connect_unix(path) as client, anyio.create_task_group() as pair:
                pair.start_soon(client.send, message)
                while len(got) < len(message):
                    got += await client.receive()
            assert got == message
        assert server.loads == 1
        assert not server.has_ended
        tasks.cancel_scope.cancel()
    assert server.has_ended
    assert os.listdir(tmp_path) == []


async def test_connections_are_bounded_and_those_that_are_in_have_answers(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    async with anyio.create_task_group() as tasks:
        gate = ControlGate(socket_path=path, load=Echo().load, connections_max=1)
        await tasks.start(gate.run)
        async with await anyio.connect_unix(path) as first, await anyio.connect_unix(path) as second:
            await second.send(b"2")
            await first.send(b"1")
            assert await first.receive() == b"1"
            passed, other = socket.socketpair()
            with other:
                gate.admit(passed)
                assert passed.fileno() == -1, "it was not closed"
                assert other.recv(1) == b""
            for number in range(20):  # the second is not served meanwhile, however long the first goes on
                await first.send(b"%d" % number)
                await first.receive()
            with pytest.raises(BlockingIOError):
                second.extra(anyio.abc.SocketAttribute.raw_socket).recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            await first.aclose()
            with anyio.fail_after(10):
                assert await second.receive() == b"2"
        tasks.cancel_scope.cancel()


async def test_a_client_that_leaves_at_once_harms_nobody(tmp_path: Path) -> None:
    server = Echo()
    path = tmp_path / "control.sock"
    async with anyio.create_task_group() as tasks:
        await tasks.start(ControlGate(socket_path=path, load=server.load).run)
        for _ in range(5):
            await (await anyio.connect_unix(path)).aclose()
        async with await anyio.connect_unix(path) as client:
            await client.send(b"still here")
            assert await client.receive() == b"still here"
        tasks.cancel_scope.cancel()


ASK = """
import sys
from pathlib import Path
from supervisor.edges.operators.control_client import ControlClient
from supervisor.errors import HoldfastError
with ControlClient(Path(sys.argv[1])) as client:
    try:
        client.nodes()
    except HoldfastError as error:
        print(type(error).__name__, error)
"""


@pytest.mark.parametrize("error", [ImportError("no h2"), MemoryError()])
async def test_an_api_that_cannot_be_loaded_is_told_to_the_client_and_loaded_for_the_next(
    tmp_path: Path, error: Exception
) -> None:
    server = Echo()
    attempts: list[None] = []

    def fail_once() -> Echo:
        attempts.append(None)
        if len(attempts) == 1:
            raise error
        return server

    path = tmp_path / "control.sock"
    async with anyio.create_task_group() as tasks:
        await tasks.start(ControlGate(socket_path=path, load=fail_once).run)
        done = await anyio.run_process([sys.executable, "-c", ASK, str(path)], stderr=subprocess.STDOUT)
        assert done.stdout.decode().startswith(
            "ExhaustedError cannot answer: the supervisor can't load its control API: "
        )
        assert "the job goes on" in done.stdout.decode()
        async with await anyio.connect_unix(path) as client:
            await client.send(b"again")
            assert await client.receive() == b"again"
        tasks.cancel_scope.cancel()


async def test_a_fault_while_a_client_is_answered_ends_its_connection_alone(tmp_path: Path) -> None:
    class Broken(Echo):
        served = 0

        async def serve(self, client: socket.socket) -> None:
            self.served += 1
            if self.served == 1:
                raise RuntimeError("can't start new thread")
            await super().serve(client)

    path = tmp_path / "control.sock"
    async with anyio.create_task_group() as tasks:
        await tasks.start(ControlGate(socket_path=path, load=Broken).run)
        async with await anyio.connect_unix(path) as client:
            with pytest.raises(anyio.EndOfStream):
                await client.receive()
        async with await anyio.connect_unix(path) as client:
            await client.send(b"again")
            assert await client.receive() == b"again"
        tasks.cancel_scope.cancel()


async def test_without_descriptors_the_gate_waits_and_the_job_lives(tmp_path: Path) -> None:
    """All remaining descriptors are taken while peers ask; afterwards the gate answers, with one for each client."""
    server = Echo()
    path = tmp_path / "control.sock"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    taken: list[int] = []
    try:
        async with anyio.create_task_group() as tasks:
            await tasks.start(ControlGate(socket_path=path, load=server.load).run)
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
                with contextlib.suppress(OSError):
                    while True:
                        taken.append(os.open(os.devnull, os.O_RDONLY))
                client.connect(str(path))
                client.setblocking(False)
                client.send(b"waits")
                await anyio.lowlevel.checkpoint()
                with anyio.move_on_after(0.1):
                    await anyio.Event().wait()
                with pytest.raises(BlockingIOError):
                    client.recv(1)
                os.close(taken.pop())
                with anyio.fail_after(10):
                    await anyio.wait_readable(client)
                assert client.recv(5) == b"waits"
            tasks.cancel_scope.cancel()
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("arriving", ["bytes", "connection"])
async def test_what_arrives_in_the_moment_of_the_end_is_no_error(tmp_path: Path, arriving: str) -> None:
    """The loop learns of both in one turn; ours is closed first."""
    server = Echo()
    path = tmp_path / "control.sock"
    loop = asyncio.get_running_loop()
    said: list[dict[str, object]] = []
    loop.set_exception_handler(lambda _loop, context: said.append(context))
    poke, poked = socket.socketpair()
    late = socket.socket(socket.AF_UNIX)
    try:
        async with anyio.create_task_group() as tasks:
            gate = ControlGate(socket_path=path, load=server.load)
            await tasks.start(gate.run)
            async with await anyio.connect_unix(path) as client:
                await client.send(b"hello")
                assert await client.receive() == b"hello"
                loop.add_reader(poked, tasks.cancel_scope.cancel)
                for _ in range(3):  # until the loop watches it
                    await anyio.lowlevel.checkpoint()
                poke.send(b"x")
                if arriving == "bytes":
                    client.extra(anyio.abc.SocketAttribute.raw_socket).send(b"late")
                else:
                    late.connect(str(path))
                await anyio.sleep_forever()
    finally:
        loop.remove_reader(poked)
        for each in (poke, poked, late):
            each.close()
    assert said == []
