"""Questions to a real gRPC server, and to sockets without one."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.lowlevel
import grpc
import pytest
from holdfast_wire import socket_user
from nvhcd import nvhcd_pb2 as wire

from supervisor.config.job_spec import JobSpec
from supervisor.config.node_check_plans import HealthChecks
from supervisor.core.node_check_facts import Health, HealthFinding
from supervisor.core.nvhcd_verdict import NoReply, Reply, Unusable
from supervisor.edges.machine.health import nvhcd_client
from supervisor.edges.machine.health.nvhcd_client import NvhcdClient, NvhcdProbe
from supervisor.edges.rpc import grpc_client
from supervisor.ports import timed_waits

HEALTHY = wire.HealthCheckResponse(success=True, output='{"fail_count": 0}')
_grpc = cast("Any", grpc)


@contextmanager
def service(path: Path, answer: Callable[[bytes], bytes], *, name: str = "nvhcd.HealthCheckService") -> Generator[None]:
    """Runs a server whose only call answers with these bytes."""

    def handle(request: bytes, _: object) -> bytes:
        return answer(request)

    handler = _grpc.unary_unary_rpc_method_handler(handle)
    server = _grpc.server(ThreadPoolExecutor(2), options=(("grpc.max_send_message_length", -1),))
    server.add_generic_rpc_handlers((_grpc.method_handlers_generic_handler(name, {"RunHealthCheck": handler}),))
    server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        yield
    finally:
        server.stop(0).wait()


async def test_the_service_is_asked_with_the_documented_argument(tmp_path: Path) -> None:
    path = tmp_path / "nvhcd.sock"
    asked: list[list[str]] = []

    def answer(request: bytes) -> bytes:
        asked.append(list(wire.HealthCheckRequest.FromString(request).args))
        return wire.HealthCheckResponse(
            success=False, exit_code=3, output='{"fail_count": 1}', error="Xid"
        ).SerializeToString()

    with service(path, answer):
        assert await NvhcdClient(str(path)).ask() == Reply(False, '{"fail_count": 1}', 3, "Xid")
    assert asked == [["--no-slurm"]]


async def test_a_socket_that_comes_and_goes_is_looked_for_each_time(tmp_path: Path) -> None:
    path = tmp_path / "nvhcd.sock"
    client = NvhcdClient(str(path))
    assert await client.ask() == NoReply(f"there is no socket {path}")
    with service(path, lambda _: HEALTHY.SerializeToString()):
        assert isinstance(await client.ask(), Reply)
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert await client.ask() == NoReply(f"nobody listens on {path}")
    path.unlink()
    path.write_text("no socket")
    assert isinstance(await client.ask(), NoReply)


@pytest.mark.alone
async def test_an_answer_that_is_too_slow_is_none(tmp_path: Path) -> None:
    path = tmp_path / "nvhcd.sock"

    def answer(_: bytes) -> bytes:
        time.sleep(1.5)
        return HEALTHY.SerializeToString()

    with service(path, answer):
        begun_s = time.monotonic()
        said = await NvhcdClient(str(path), deadline_s=0.5).ask()
        assert time.monotonic() - begun_s < 1.4
    assert said == NoReply(f"{path} has not answered within 0.5 s")


async def test_a_check_that_takes_long_is_waited_for_without_pings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default, gRPC's servers end a connection after three PINGs within five minutes."""
    monkeypatch.setattr(grpc_client, "PING_AFTER_S", 0.1)
    path = tmp_path / "nvhcd.sock"

    def answer(_: bytes) -> bytes:
        time.sleep(1.5)
        return HEALTHY.SerializeToString()

    with service(path, answer):
        assert await NvhcdClient(str(path)).ask() == Reply(True, HEALTHY.output)


@pytest.fixture
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed_waits, "TURN_EVERY_S", 0.2)
    monkeypatch.setattr(timed_waits, "PAUSED_S", 0.2)


@pytest.mark.alone
@pytest.mark.usefixtures("short_turns")
@pytest.mark.parametrize(
    ("deadline_s", "stopped_s", "takes_s"),
    [
        pytest.param(1.0, 2.0, 0.5, id="the answer waits in the socket"),
        pytest.param(3.0, 2.0, 4.0, id="the deadline counts the time that it has run"),
    ],
)
async def test_time_in_which_this_process_was_stopped_does_not_count_and_nothing_is_asked_twice(
    tmp_path: Path, deadline_s: float, stopped_s: float, takes_s: float
) -> None:
    path = tmp_path / "nvhcd.sock"
    asked = list[bytes]()

    def answer(request: bytes) -> bytes:
        asked.append(request)
        time.sleep(takes_s)
        return HEALTHY.SerializeToString()

    async def stop() -> None:
        while not asked:
            await anyio.lowlevel.checkpoint()
        time.sleep(stopped_s)  # noqa: ASYNC251 - as SIGSTOP does

    with service(path, answer):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stop)
            assert await NvhcdClient(str(path), deadline_s=deadline_s).ask() == Reply(True, HEALTHY.output)
    assert len(asked) == 1


@pytest.mark.alone
@pytest.mark.usefixtures("short_turns")
async def test_time_in_which_this_process_was_stopped_does_not_count_while_it_connects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvhcd_client, "PROBE_S", 0.4)
    path, connects, may_go = tmp_path / "nvhcd.sock", threading.Event(), threading.Event()
    reach = nvhcd_client._reach  # pyright: ignore[reportPrivateUsage]

    def slow(asked: str) -> socket.socket | str:
        connects.set()
        may_go.wait()
        return reach(asked)

    async def stop() -> None:
        while not connects.is_set():
            await anyio.lowlevel.checkpoint()
        time.sleep(1.5)  # noqa: ASYNC251 - as SIGSTOP does
        await anyio.sleep(0.1)
        may_go.set()

    monkeypatch.setattr(nvhcd_client, "_reach", slow)
    with service(path, lambda _: HEALTHY.SerializeToString()):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stop)
            assert await NvhcdClient(str(path)).ask() == Reply(True, HEALTHY.output)


async def test_a_service_that_hangs_is_not_waited_for_until_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its backlog accepts, but it does not even greet. By default, the deadline is 130 s."""
    assert nvhcd_client.GREETING_S <= 5.0
    monkeypatch.setattr(nvhcd_client, "GREETING_S", 0.5)
    path = tmp_path / "nvhcd.sock"
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()
        with anyio.fail_after(6.0):
            said = await NvhcdClient(str(path)).ask()
    assert said == NoReply(f"{path} accepts connections, but has sent nothing within 0.5 s; it may hang")


async def test_who_accepts_and_says_nothing_costs_the_deadline_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "nvhcd.sock"
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()
        said = await NvhcdClient(str(path), deadline_s=0.5).ask()
        assert isinstance(said, NoReply)


async def test_a_queue_that_is_full_costs_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvhcd_client, "PROBE_S", 0.2)
    path = tmp_path / "nvhcd.sock"
    with socket.socket(socket.AF_UNIX) as full, socket.socket(socket.AF_UNIX) as first:
        full.bind(str(path))
        full.listen(0)
        first.connect(str(path))
        said = await NvhcdClient(str(path)).ask()
    assert said == NoReply(f"{path} does not accept a connection within 0.2 s")


HTTP2_SETTINGS = b"\0\0\0\4\0\0\0\0\0"


def close_at_once(peer: socket.socket) -> None:
    peer.close()


def say_garbage(peer: socket.socket) -> None:
    peer.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + os.urandom(4096))


def greet_and_fall_silent(peer: socket.socket) -> None:
    peer.sendall(HTTP2_SETTINGS)


def flood(peer: socket.socket) -> None:
    while True:
        peer.sendall(bytes(1 << 20))


def flood_with_settings(peer: socket.socket) -> None:
    while True:
        peer.sendall(HTTP2_SETTINGS * 10_000)


@contextmanager
def attacker(path: Path, attack: Callable[[socket.socket], None]) -> Generator[list[socket.socket]]:
    """Does that to each connection. Yields the connections."""
    taken: list[socket.socket] = []

    def take(server: socket.socket) -> None:
        with suppress(OSError):
            while True:
                taken.append(server.accept()[0])
                threading.Thread(target=strike, args=(taken[-1],), daemon=True).start()

    def strike(peer: socket.socket) -> None:
        with suppress(OSError):
            attack(peer)

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        taker = threading.Thread(target=take, args=(server,), daemon=True)
        taker.start()
        yield taken
        server.shutdown(socket.SHUT_RDWR)
        taker.join()
    for each in taken:
        each.close()


@pytest.mark.parametrize("attack", [close_at_once, say_garbage, greet_and_fall_silent, flood, flood_with_settings])
async def test_no_service_whatever_it_does_costs_more_than_the_deadline(
    tmp_path: Path, attack: Callable[[socket.socket], None]
) -> None:
    path = tmp_path / "nvhcd.sock"
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with attacker(path, attack) as taken:
        begun_s = time.monotonic()
        said = await NvhcdClient(str(path), deadline_s=1.0).ask()
        took_s = time.monotonic() - begun_s
        assert isinstance(said, NoReply)
        assert len(said.why) < 600
        assert len(taken) < 10, "it is not asked again and again"
    assert took_s < 6.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 100_000


@pytest.mark.alone
async def test_a_service_that_has_left_a_call_unanswered_holds_up_later_restarts_for_half_a_second(
    tmp_path: Path,
) -> None:
    path = tmp_path / "nvhcd.sock"
    spec = JobSpec("j", ("x.py",), health=HealthChecks(str(path)))
    probe, so_far, found = NvhcdProbe(deadline_s=2.0), list[HealthFinding](), list[HealthFinding]()
    reported = anyio.Event()

    def report(findings: tuple[HealthFinding, ...]) -> None:
        so_far.extend(findings)
        reported.set()

    async def look() -> None:
        found.extend(await probe.look(spec, report))

    with attacker(path, greet_and_fall_silent):
        await look()
        assert so_far == [], "it may have a slow script"
        async with anyio.create_task_group() as looks:
            looks.start_soon(look)
            with anyio.fail_after(1.0):
                await reported.wait()
            assert len(found) == 1, "the call stays open"
    assert [(each.health, each.reason) for each in so_far] == [
        (Health.SKIPPED, f"nvhcd can't be asked: {path} has not answered the last call, nor this one so far")
    ]
    path.unlink()
    with service(path, lambda _: HEALTHY.SerializeToString()):
        await look()
        await look()
    assert [each.health for each in found] == [Health.SKIPPED, Health.SKIPPED, Health.HEALTHY, Health.HEALTHY]
    assert len(so_far) == 1


@pytest.mark.alone
async def test_a_service_that_has_not_greeted_holds_up_later_restarts_for_half_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvhcd_client, "GREETING_S", 1.0)
    path = tmp_path / "nvhcd.sock"
    spec = JobSpec("j", ("x.py",), health=HealthChecks(str(path)))
    probe, so_far = NvhcdProbe(), list[tuple[HealthFinding, ...]]()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()
        await probe.look(spec, so_far.append)
        assert so_far == []
        await probe.look(spec, so_far.append)
    assert len(so_far) == 1
    await probe.look(spec, so_far.append)
    path.unlink()
    await probe.look(spec, so_far.append)
    assert len(so_far) == 1, "nobody is there to be waited for"


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (wire.HealthCheckResponse(success=True, output="x" * 2_000_000).SerializeToString(), "it is larger than 1024"),
        (b"\xff\xff\xff\xff", "it is not a HealthCheckResponse"),
    ],
)
async def test_an_answer_that_cannot_be_used(tmp_path: Path, payload: bytes, why: str) -> None:
    path = tmp_path / "nvhcd.sock"
    with service(path, lambda _: payload):
        said = await NvhcdClient(str(path)).ask()
    assert isinstance(said, Unusable)
    assert said.why.startswith(why)


async def test_another_service_on_the_socket_is_no_answer(tmp_path: Path) -> None:
    path = tmp_path / "nvhcd.sock"
    with service(path, lambda _: b"", name="another.Service"):
        said = await NvhcdClient(str(path)).ask()
    assert isinstance(said, NoReply)
    assert "UNIMPLEMENTED" in said.why


SERVES = """
import ctypes, os, socket, sys
os.setgid(65534); os.setuid(65534)
if sys.argv[2] and ctypes.CDLL(None, use_errno=True).unshare(0x10000000):
    sys.exit(os.strerror(ctypes.get_errno()))
server = socket.socket(socket.AF_UNIX); server.bind(sys.argv[1]); server.listen(); os.chmod(sys.argv[1], 0o777)
print("serves", flush=True); sys.stdin.read()
"""
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can serve as another user")


@contextmanager
def served_by_nobody(*, in_namespace: bool = False) -> Generator[Path]:
    """Yields a socket that user 65534 serves, in a folder that everybody may write to."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        command = [sys.executable, "-c", SERVES, f"{folder}/nvhcd.sock", "x" * in_namespace]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            assert other.stdout is not None
            if not other.stdout.readline():
                pytest.skip("needs user namespaces")
            yield Path(folder, "nvhcd.sock")
            other.communicate()


@as_root
@pytest.mark.parametrize("in_namespace", [False, True], ids=["", "from a user namespace of its own"])
async def test_a_service_of_another_user_is_not_asked(in_namespace: bool) -> None:
    with served_by_nobody(in_namespace=in_namespace) as path:
        assert await NvhcdClient(str(path)).ask() == NoReply(
            f"{path} is served by user 65534, not by root or user {os.geteuid()}"
        )


@as_root
async def test_a_user_without_an_id_in_a_container_is_asked_if_nobody_else_may_put_a_socket_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So does the node's root appear in a user namespace."""
    monkeypatch.setattr(nvhcd_client, "GREETING_S", 0.2)
    monkeypatch.setattr(socket_user, "_in_user_namespace", lambda: True)
    with served_by_nobody() as path:
        refused = NoReply(
            f"{path} is served by a user without an id in this container, in a folder to which others may write"
        )
        asked = NoReply(f"{path} accepts connections, but has sent nothing within 0.2 s; it may hang")
        for owner, mode, said in (
            (0, 0o777, refused),
            (0, 0o775, refused),
            (0, 0o1777, refused),
            (0, 0o755, asked),
            (65534, 0o755, asked),
            (47111, 0o755, refused),
        ):
            os.chown(path.parent, owner, owner)
            path.parent.chmod(mode)
            assert await NvhcdClient(str(path)).ask() == said


ASK = """
import ctypes, os, sys
import anyio._backends._asyncio, nvhcd.nvhcd_pb2, supervisor.edges.rpc.grpc_client  # Later, the user may not read them.
import supervisor.edges.machine.processes.socket_stream
from supervisor.edges.machine.health.nvhcd_client import NvhcdClient
libc = ctypes.CDLL(None, use_errno=True)
os.setgroups([]); os.setgid(47111); os.setuid(47111)
libc.prctl(4, 1)  # PR_SET_DUMPABLE, for uid_map
if libc.unshare(0x10000000):
    sys.exit(os.strerror(ctypes.get_errno()))
with open("/proc/self/uid_map", "w") as file:
    file.write("12345 47111 1")
print(anyio.run(NvhcdClient(sys.argv[1]).ask))
"""


@as_root
async def test_in_a_real_user_namespace_the_service_of_the_nodes_root_is_asked() -> None:
    """With the node's processes in sight, as in an enroot container."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        path = Path(folder, "nvhcd.sock")
        with service(path, lambda _: HEALTHY.SerializeToString()):
            os.chmod(path, 0o666)
            done = await anyio.run_process([sys.executable, "-c", ASK, str(path)], check=False)
    if b"not permitted" in done.stderr:
        pytest.skip("needs user namespaces")
    assert done.stdout.decode().startswith("Reply(success=True"), done
