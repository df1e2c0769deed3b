"""Does a private supervisor answer gRPC only once it is asked, and then as if there were no gate?"""

import asyncio
import contextlib
import os
import resource
import socket
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import TaskGroup

from supervisor.edges.operators import control_gate
from supervisor.edges.operators.control_gate import SERVER_DESCRIPTORS, ControlGate


class EchoServer:
    """Plays the gRPC server: echoes each message."""

    def __init__(self) -> None:
        self.starts = 0

    async def start(self, path: Path, tasks: TaskGroup) -> None:
        self.starts += 1
        listener = await anyio.create_unix_listener(path)

        async def echo(client: anyio.abc.SocketStream) -> None:
            async with client:
                async for data in client:
                    await client.send(data)

        async def serve() -> None:
            async with listener:
                await listener.serve(echo)

        tasks.start_soon(serve)


async def test_the_server_starts_at_the_first_connection_and_once(tmp_path: Path) -> None:
    server = EchoServer()
    path = tmp_path / "control.sock"
    async with anyio.create_task_group() as tasks:
        await tasks.start(ControlGate(socket_path=path, start_server=server.start).run)
        assert server.starts == 0
        assert path.stat().st_mode & 0o777 == 0o600
        for message in (b"one", b"x" * 1_000_000):
            got = b""
            async with await anyio.connect_unix(path) as client, anyio.create_task_group() as pair:
                pair.start_soon(client.send, message)
                while len(got) < len(message):
                    got += await client.receive()
            assert got == message
        assert server.starts == 1
        tasks.cancel_scope.cancel()
    assert os.listdir(tmp_path) == []


async def test_connections_are_bounded_and_those_that_are_in_have_answers(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    async with anyio.create_task_group() as tasks:
        gate = ControlGate(socket_path=path, start_server=EchoServer().start, connections_max=1)
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
            with pytest.raises(TimeoutError), anyio.fail_after(0):
                await second.receive()
            await first.aclose()
            with anyio.fail_after(10):
                assert await second.receive() == b"2"
        tasks.cancel_scope.cancel()


async def test_a_client_that_leaves_at_once_harms_nobody(tmp_path: Path) -> None:
    server = EchoServer()
    path = tmp_path / "control.sock"
    async with anyio.create_task_group() as tasks:
        await tasks.start(ControlGate(socket_path=path, start_server=server.start).run)
        for _ in range(5):
            await (await anyio.connect_unix(path)).aclose()
        async with await anyio.connect_unix(path) as client:
            await client.send(b"still here")
            assert await client.receive() == b"still here"
        tasks.cancel_scope.cancel()


async def test_a_server_that_cannot_start_costs_the_client_its_answer_and_nobody_else_anything(tmp_path: Path) -> None:
    server = EchoServer()
    attempts: list[Path] = []

    async def fail_once(path: Path, tasks: TaskGroup) -> None:
        attempts.append(path)
        if len(attempts) == 1:
            raise ImportError("no grpc")
        await server.start(path, tasks)

    path = tmp_path / "control.sock"
    async with anyio.create_task_group() as tasks:
        await tasks.start(ControlGate(socket_path=path, start_server=fail_once).run)
        async with await anyio.connect_unix(path) as client:
            with pytest.raises(anyio.EndOfStream):
                await client.receive()
        async with await anyio.connect_unix(path) as client:
            await client.send(b"again")
            assert await client.receive() == b"again"
        tasks.cancel_scope.cancel()


async def test_without_descriptors_the_gate_waits_and_the_job_lives(tmp_path: Path) -> None:
    """All remaining descriptors are taken while peers ask; afterwards the gate answers."""
    server = EchoServer()
    path = tmp_path / "control.sock"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    taken: list[int] = []
    try:
        async with anyio.create_task_group() as tasks:
            await tasks.start(ControlGate(socket_path=path, start_server=server.start).run)
            client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            few = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            with client, few:
                with contextlib.suppress(OSError):
                    while True:
                        taken.append(os.open(os.devnull, os.O_RDONLY))
                client.connect(str(path))
                await anyio.lowlevel.checkpoint()
                with anyio.move_on_after(0.1):
                    await anyio.Event().wait()
                for _ in range(SERVER_DESCRIPTORS // 2):
                    os.close(taken.pop())
                few.connect(str(path))
                few.setblocking(False)
                with anyio.fail_after(10):
                    await anyio.wait_readable(few)
                assert few.recv(1) == b""  # too few for gRPC: closed
                assert server.starts == 0
                while taken:
                    os.close(taken.pop())
            async with await anyio.connect_unix(path) as late:
                await late.send(b"now")
                assert await late.receive() == b"now"
            tasks.cancel_scope.cancel()
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_the_servers_last_words_reach_who_waits_for_them(tmp_path: Path) -> None:
    """The gate and the server are cancelled at the same moment."""
    path = tmp_path / "control.sock"
    accepted = anyio.Event()

    async def start(inner_path: Path, tasks: TaskGroup) -> None:
        listener = await anyio.create_unix_listener(inner_path)

        async def serve() -> None:
            async with listener:
                await (await listener.accept()).aclose()  # the gate's own test connection
                client = await listener.accept()
            async with client:
                accepted.set()
                try:
                    await anyio.sleep_forever()
                finally:
                    with anyio.CancelScope(shield=True):
                        await anyio.lowlevel.checkpoint()
                        await client.send(b"the end " * 100_000)

        tasks.start_soon(serve)

    got = b""
    async with anyio.create_task_group() as outer, anyio.create_task_group() as tasks:
        await tasks.start(ControlGate(socket_path=path, start_server=start).run)
        client = await anyio.connect_unix(path)
        await client.send(b"?")
        await accepted.wait()
        for _ in range(20):
            await anyio.lowlevel.checkpoint()

        async def read() -> None:
            nonlocal got
            async with client:
                async for data in client:
                    got += data

        outer.start_soon(read)
        tasks.cancel_scope.cancel()
    assert got == b"the end " * 100_000


async def test_a_client_that_never_leaves_holds_the_end_up_for_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_gate, "LAST_ANSWERS_S", 0.2)
    path = tmp_path / "control.sock"

    async def start(inner_path: Path, tasks: TaskGroup) -> None:
        listener = socket.socket(socket.AF_UNIX)  # accepts, and never sends anything
        listener.bind(str(inner_path))
        listener.listen()
        kept.append(listener)

    kept: list[socket.socket] = []
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            await tasks.start(ControlGate(socket_path=path, start_server=start).run)
            client = socket.socket(socket.AF_UNIX)
            client.connect(str(path))
            kept.append(client)
            while len(kept) < 2 or (tmp_path / "control.inner.sock").exists():
                await anyio.lowlevel.checkpoint()
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
    for each in kept:
        each.close()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("arriving", ["bytes", "connection"])
async def test_what_arrives_in_the_moment_of_the_end_is_no_error(tmp_path: Path, arriving: str) -> None:
    """The loop learns of both in one turn; ours is closed first."""
    server = EchoServer()
    path = tmp_path / "control.sock"
    loop = asyncio.get_running_loop()
    said: list[dict[str, object]] = []
    loop.set_exception_handler(lambda _loop, context: said.append(context))
    poke, poked = socket.socketpair()
    late = socket.socket(socket.AF_UNIX)
    try:
        async with anyio.create_task_group() as tasks:
            gate = ControlGate(socket_path=path, start_server=server.start)
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
