"""A line passes frames on in turn, buffers little that nobody reads, and ends once, with a reason."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress

import anyio
import anyio.lowlevel
import pytest
import uvloop
from holdfast_wire import framing

from supervisor.edges.peers.codec.cluster_frames import ClusterProtocolError
from supervisor.edges.peers.transport import cluster_line
from supervisor.edges.peers.transport.cluster_line import (
    FRAME_BYTES_MAX,
    SHARE_MAX,
    UNSENT_BYTES_MAX,
    Line,
    LinkLostError,
)

LIMIT_S = 30.0


@asynccontextmanager
async def line_and_peer(frame_bytes_max: int = FRAME_BYTES_MAX) -> AsyncGenerator[tuple[Line, socket.socket]]:
    loop = asyncio.get_running_loop()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        peer = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
    peer.setblocking(False)
    line = Line(frame_bytes_max=frame_bytes_max)
    await loop.connect_accepted_socket(lambda: line, accepted)
    with peer, anyio.fail_after(LIMIT_S):
        yield line, peer
        line.end("the test is over")
        await asyncio.sleep(0)


def nothing(*_: object) -> None:
    return


def frame(payload: bytes) -> bytes:
    return framing.encode(payload, frame_bytes_max=FRAME_BYTES_MAX)


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await anyio.lowlevel.checkpoint()


async def test_frames_are_received_in_order_first_by_the_one_who_waits_then_by_the_one_who_listens():
    async with line_and_peer() as (line, peer):
        peer.send(b"".join(frame(b"%d" % number) for number in range(5)))
        assert [await line.receive(), await line.receive()] == [b"0", b"1"]
        heard: list[bytes] = []
        line.listen(heard.append, nothing, nothing)
        assert heard == [b"2", b"3", b"4"]
        peer.send(frame(b"5"))
        await until(lambda: len(heard) == 4)


async def test_one_line_that_says_much_leaves_the_others_their_turn():
    async with line_and_peer() as (line, peer):
        heard: list[bytes] = []
        turns: list[int] = []
        line.listen(heard.append, nothing, nothing)
        peer.send(b"".join(frame(b"%d" % number) for number in range(5 * SHARE_MAX)))
        while len(heard) < 5 * SHARE_MAX:
            await asyncio.sleep(0)
            turns.append(len(heard))
        assert heard == [b"%d" % number for number in range(5 * SHARE_MAX)]
        assert max(after - before for before, after in zip([0, *turns], turns, strict=False)) <= SHARE_MAX


async def test_of_somebody_who_is_not_introduced_little_is_kept():
    async with line_and_peer(frame_bytes_max=100) as (line, peer):
        peer.send(frame(b"x" * 101))
        with pytest.raises(LinkLostError, match="cannot take a frame of 101 bytes"):
            await line.receive()
    async with line_and_peer(frame_bytes_max=100) as (line, peer):
        many = frame(b"x" * 100) * 1000
        with suppress(BlockingIOError):  # once nobody takes what the kernel holds
            while True:
                peer.send(many)
                await asyncio.sleep(0)
        assert await line.receive() == b"x" * 100


async def test_who_does_not_read_is_told_by_the_line_and_costs_little():
    async with line_and_peer() as (line, peer):
        writable: list[bool] = []
        line.listen(nothing, nothing, lambda: writable.append(line.is_writable))
        sent = 0
        while line.is_writable:
            line.send(b"x" * 10_000)
            sent += 10_000 + framing.HEADER_BYTES
            await asyncio.sleep(0)
        assert not writable
        received = 0
        while received < sent:
            try:
                received += len(peer.recv(1 << 20))
            except BlockingIOError:
                await asyncio.sleep(0.001)
        await until(lambda: writable)
        assert writable == [True]
        assert sent > UNSENT_BYTES_MAX


@pytest.mark.parametrize("error", [ClusterProtocolError("no peer of ours"), RuntimeError("a defect")])
async def test_whatever_a_frame_meets_ends_this_line_alone(error: Exception, caplog: pytest.LogCaptureFixture):
    async with line_and_peer() as (line, peer), line_and_peer() as (other, others_peer):
        ends: list[str] = []

        def refuse(_: bytes) -> None:
            raise error

        line.listen(refuse, ends.append, nothing)
        peer.send(frame(b"1") + frame(b"2"))
        assert await line.until_ended() == (str(error) if isinstance(error, ClusterProtocolError) else ends[0])
        assert len(ends) == 1
        others_peer.send(frame(b"3"))
        assert await other.receive() == b"3"
    assert ("has met a defect" in caplog.text) == isinstance(error, RuntimeError)


async def test_an_end_is_told_with_its_reason_also_to_one_who_listens_later():
    async with line_and_peer() as (line, peer):
        peer.close()
        assert await line.until_ended() == "the other side has closed the connection"
        ends: list[str] = []
        line.listen(nothing, ends.append, nothing)
        assert ends == ["the other side has closed the connection"]
        line.send(b"nobody gets this")
        with pytest.raises(LinkLostError, match="has closed the connection"):
            await line.receive()
        assert line.address("peername") in ("127.0.0.1", "")
    assert cluster_line.INTRODUCTION_BYTES_MAX < FRAME_BYTES_MAX


@pytest.mark.parametrize("which", ["sockname", "peername"])
def test_a_line_that_its_peer_has_ended_has_no_address_and_says_so_without_an_error(which: str):
    async def ended() -> str:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            ours = socket.create_connection(listener.getsockname())
            peer, _ = listener.accept()
        ours.setblocking(False)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # its end is a reset
        peer.close()
        line = Line()
        await asyncio.get_running_loop().create_connection(lambda: line, sock=ours)
        with anyio.fail_after(LIMIT_S):
            await until(lambda: line.ended)
        return line.address(which)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(ended()) in ("", "127.0.0.1")
