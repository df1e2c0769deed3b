"""Peers that flood, stall, send false lengths or never read affect only their own connection."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from holdfast_wire import page_layout
from holdfast_wire.framing import FrameTooLongError, encode
from holdfast_wire.v1 import worker_pb2

from supervisor.edges.machine.clock import Clock
from supervisor.edges.workers.channel import worker_connection, worker_server
from supervisor.edges.workers.channel.worker_connection import TokenBucket, WorkerConnection
from supervisor.edges.workers.channel.worker_frames import WorkerProtocolError
from supervisor.edges.workers.channel.worker_server import PICKLE
from tests.edges.workers.worker_side import JOB_ID, hello, serve, until


class FakeClock:
    def __init__(self) -> None:
        self.at_s = 100.0

    def now_s(self) -> float:
        return self.at_s

    def boot_ns(self) -> int:
        return 0

    def unix_ns(self) -> int:
        return 0


def test_a_bucket_lets_a_burst_through_and_then_so_many_a_second():
    clock = FakeClock()
    bucket = TokenBucket(clock)
    free = 0
    while bucket.take(1) == 0:
        free += 1
    assert free == worker_connection.FRAMES_BURST
    clock.at_s += 1000
    assert bucket.take(worker_connection.FRAMES_BURST + worker_connection.FRAMES_PER_S) == pytest.approx(1.0)


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    connection = WorkerConnection(ours, Clock())
    yield connection, theirs
    connection.close()
    theirs.close()


Pair = tuple[WorkerConnection, socket.socket]


async def test_frames_come_whole_in_any_chunking(pair: Pair):
    connection, theirs = pair
    frames = b"".join(encode(bytes([65 + n]) * n, frame_bytes_max=99) for n in range(5))
    got: list[bytes | None] = []

    async def read() -> None:
        got.extend([await connection.receive() for _ in range(6)])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        for n in range(len(frames)):
            theirs.send(frames[n : n + 1])
            await anyio.lowlevel.checkpoint()
        theirs.shutdown(socket.SHUT_WR)
    assert got == [b"", b"B", b"CC", b"DDD", b"EEEE", None]


async def test_a_frame_that_ends_or_stalls_inside_is_an_error(pair: Pair, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(worker_connection, "FRAME_TIMEOUT_S", 0.05)
    connection, theirs = pair
    theirs.send(b"\0\0\0\5ab")
    with pytest.raises(TimeoutError):
        await connection.receive()
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(WorkerProtocolError, match="ends inside"):
        await connection.receive()


async def test_a_length_above_the_limit_is_refused_at_the_header(pair: Pair):
    connection, theirs = pair
    theirs.send(b"\xff\xff\xff\xff")
    with pytest.raises(FrameTooLongError):
        await connection.receive()


async def test_a_peer_that_never_reads_blocks_nobody(pair: Pair, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(worker_connection, "FRAME_TIMEOUT_S", 0.1)
    connection, _ = pair

    async def send_on() -> None:
        for _ in range(1000):
            await connection.send(b"x" * 60_000)

    with pytest.raises(TimeoutError):
        await send_on()


@pytest.mark.alone
async def test_slow_loris_peers_are_dropped_and_ranks_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(worker_server, "HELLO_TIMEOUT_S", 0.4)
    async with serve(tmp_path) as served:
        slow = [served.connect() for _ in range(100)]
        for each in slow[::2]:
            await each.send_bytes(b"\0")
        rank = served.connect()
        began_s = time.monotonic()
        await rank.join(0)
        assert time.monotonic() - began_s < 2
        for each in slow:
            await each.is_dropped()
        counters = served.server.counters
        assert counters.crowded_out + counters.timed_out == 100
        assert counters.crowded_out >= 100 - worker_server.STRANGERS_MAX
        rank.stamp(page_layout.WORD_HEARTBEATS, 1)
        progress = served.server.read_progress(JOB_ID, 0, 0)
        assert progress is not None
        assert progress.heartbeats == 1


@pytest.mark.alone
async def test_beyond_its_burst_a_connection_is_read_at_a_rate(monkeypatch: pytest.MonkeyPatch):
    pauses: list[float] = []

    async def pause(seconds: float, *, why: str) -> None:
        assert why
        pauses.append(seconds)

    monkeypatch.setattr(worker_connection, "pause", pause)
    monkeypatch.setattr(worker_connection, "FRAMES_BURST", 10.0)
    ours, theirs = socket.socketpair()
    with theirs:
        connection = WorkerConnection(ours, FakeClock())
        theirs.sendall(20 * encode(b"1", frame_bytes_max=4096))
        for taken in range(1, 21):
            assert await connection.receive(timeout_s=30) == b"1"
            assert len(pauses) == max(0, taken - 9)
        connection.close()


async def test_a_flood_of_one_rank_slows_that_rank_only(tmp_path: Path):
    async with serve(tmp_path) as served:
        flooder, other = served.connect(), served.connect()
        await flooder.join(0)
        await other.join(1)
        one = worker_pb2.WorkerFrame(progress=worker_pb2.Progress(heartbeats=1)).SerializeToString()
        frame = encode(one, frame_bytes_max=4096)
        flooder.socket.setblocking(False)
        sent = 0
        with anyio.move_on_after(0.5):
            while True:
                try:
                    sent += flooder.socket.send(frame * 1000)
                except BlockingIOError:
                    await anyio.lowlevel.checkpoint()
        # Data that the server did not read is still in the socket: the flooder was slowed down.
        assert sent < 1_000_000
        control = worker_pb2.WorkloadControl(action=worker_pb2.WorkloadControl.CONTINUE, request_id=5)
        began_s = time.monotonic()
        await other.send(worker_pb2.WorkerFrame(workload_control=control))
        answer = await other.receive()
        assert answer is not None
        assert answer.accepted.request_id == 5
        assert time.monotonic() - began_s < 1


async def test_only_hello_counts_before_welcome(tmp_path: Path):
    async with serve(tmp_path) as served:
        early = served.connect()
        await early.send(worker_pb2.WorkerFrame(goodbye=worker_pb2.Goodbye()))
        await early.is_dropped()
        twice = served.connect()
        await twice.join(0)
        await twice.send(hello(0))
        await twice.is_dropped()
        await until(lambda: served.server.counters.malformed == 2)


KINDS = [field.name for field in worker_pb2.WorkerFrame.DESCRIPTOR.fields if field.message_type is not None]


async def test_the_client_of_the_other_product_is_named_with_what_to_import(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async with serve(tmp_path) as served:
        other = served.connect()
        other.socket.send(encode(b"\x80\x05\x95" + bytes(121), frame_bytes_max=200))
        await other.is_dropped()
        await until(lambda: served.server.counters.malformed == 1)
    assert "write from worker_client import RankMonitorClient" in caplog.text
    assert not any(worker_pb2.WorkerFrame(**{name: {}}).SerializeToString().startswith(PICKLE) for name in KINDS)


async def test_what_waits_can_be_looked_at_before_it_is_received(pair: Pair):
    connection, peer = pair
    assert connection.waiting() == []
    frames = [encode(word, frame_bytes_max=100) for word in (b"one", b"two", b"three")]
    peer.sendall(frames[0] + frames[1][:3])
    assert await connection.receive() == b"one"
    peer.sendall(frames[1][3:] + frames[2] + b"\0\0")
    assert connection.waiting() == [b"two", b"three"]
    assert [await connection.receive(), connection.waiting(), await connection.receive()] == [
        b"two",
        [b"three"],
        b"three",
    ]
    peer.close()
    assert connection.waiting() == []


async def test_what_came_while_we_stood_still_counts_though_the_time_is_over(pair: Pair):
    connection, peer = pair
    peer.sendall(b"\0\0\0\3a")

    async def stand_still() -> None:
        await anyio.lowlevel.checkpoint()
        peer.sendall(b"bc")
        time.sleep(0.3)  # noqa: ASYNC251 the loop itself is blocked

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stand_still)
        assert await connection.receive(timeout_s=0.2) == b"abc"


async def test_a_closed_connection_ends_for_the_peer_even_if_there_is_a_copy_of_the_socket():
    """A process that was started and has not executed yet has such a copy."""
    ours, theirs = socket.socketpair()
    with ours.dup(), theirs:
        connection = WorkerConnection(ours, Clock())
        connection.send_last(b"last")
        connection.close()
        theirs.settimeout(5)
        assert (theirs.recv(10), theirs.recv(10)) == (b"last", b"")
        connection.close()


async def test_one_who_gives_up_in_the_midst_of_a_frame_leaves_its_rest_to_the_next(pair: Pair):
    connection, peer = pair
    peer.setblocking(False)
    big = b"b" * 1_000_000
    with anyio.move_on_after(0.05) as given_up:
        await connection.send(big)
    assert given_up.cancelled_caught
    assert connection.must_flush
    received = bytearray()

    async def read() -> None:
        while len(received) < len(big) + 3:
            await anyio.wait_readable(peer)
            received.extend(peer.recv(1 << 20))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        tasks.start_soon(connection.send, b"end")
    assert bytes(received) == big + b"end"
    assert not connection.must_flush
