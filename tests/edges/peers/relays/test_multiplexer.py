"""Many connections share one: their bytes arrive complete and in order, and an error in one ends only that one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import anyio
import anyio.lowlevel
import pytest
from holdfast_wire import framing

from supervisor.edges.peers.relays.multiplexer import PART_BYTES_MAX, ChannelTransport, Kind, Multiplexer
from supervisor.edges.peers.relays.relay_client import RelayClient
from supervisor.edges.peers.relays.relay_downstream import TICK, RelayDownstream
from supervisor.edges.peers.transport.cluster_line import FRAME_BYTES_MAX, Line
from tests.edges.peers.transport.test_cluster_line import nothing

LIMIT_S = 30.0


class Wire(asyncio.Transport):
    """Carries written data to the line on the other side, in the next turn of the event loop."""

    def __init__(self, other: Line) -> None:
        super().__init__()
        self._other = other
        self.writes = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes += 1
        asyncio.get_running_loop().call_soon(self._other.data_received, bytes(data))

    def abort(self) -> None:
        asyncio.get_running_loop().call_soon(self._other.connection_lost, None)

    def close(self) -> None:
        self.abort()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ignores the limits."""

    def pause_reading(self) -> None:
        """Does nothing: it buffers nothing."""

    def resume_reading(self) -> None:
        """Does nothing."""


def wired() -> tuple[Line, Line, Wire]:
    near, far = Line(), Line()
    wire = Wire(far)
    near.connection_made(wire)
    far.connection_made(Wire(near))
    return near, far, wire


async def until(condition: Callable[[], object]) -> None:
    with anyio.fail_after(LIMIT_S):
        while not condition():
            await anyio.lowlevel.checkpoint()


Parts = list[tuple[Kind, int, bytes]]


def multiplexers(near: Line, far: Line) -> tuple[Multiplexer, Parts]:
    heard: Parts = []

    def take(kind: Kind, channel: int, data: bytes) -> None:
        heard.append((kind, channel, data))

    multiplexer = Multiplexer(near, on_part=take, on_end=nothing)
    Multiplexer(far, on_part=take, on_end=nothing)
    return multiplexer, heard


async def test_what_is_said_in_one_turn_leaves_in_one_piece_and_in_order():
    near, far, wire = wired()
    multiplexer, heard = multiplexers(near, far)
    said: Parts = [(Kind.DATA, number % 7, b"%d" % number) for number in range(100)]
    for part in said:
        multiplexer.put(*part)
    await until(lambda: len(heard) == 100)
    assert heard == said
    assert wire.writes == 1


async def test_much_of_one_channel_comes_in_parts_of_a_frame():
    near, far, _ = wired()
    multiplexer, heard = multiplexers(near, far)
    data = bytes(range(256)) * (PART_BYTES_MAX * 3 // 256)
    multiplexer.put(Kind.DATA, 5, data + b"end")
    await until(lambda: b"".join(part for _, _, part in heard).endswith(b"end"))
    assert b"".join(part for _, _, part in heard) == data + b"end"
    assert {channel for _, channel, _ in heard} == {5}


@pytest.mark.parametrize("payload", [b"\x02\0\0", b"\x02\0\0\0\1\0\0\0\x09short"])
async def test_a_multiplexer_that_is_cut_ends_the_connection_and_a_kind_of_a_newer_version_is_skipped(payload: bytes):
    near, far, _ = wired()
    _, heard = multiplexers(near, far)
    newer = b"\x63\0\0\0\1\0\0\0\3abc" + b"\x04\0\0\0\0\0\0\0\2ok"
    for each in (newer, payload):
        near.data_received(framing.encode(each, frame_bytes_max=FRAME_BYTES_MAX))
    assert heard == [(Kind.BEAT, 0, b"ok")]
    assert near.ended == "cannot read a multiplexer: its last part is cut"


class Leader:
    """The leader's side of one relay; it listens to the nodes' lines as they come."""

    def __init__(self, line: Line) -> None:
        self.lines: list[Line] = []
        self.frames: list[bytes] = []
        self.ends: list[str] = []
        self.joined = self.left = 0
        self.downstream = RelayDownstream(
            line, make_line=self._make, on_joined=self._join, on_left=self._leave, on_end=self.ends.append
        )

    def _make(self) -> Line:
        line = Line(greeting=b"welcome")
        line.listen(self.frames.append, nothing, nothing)
        self.lines.append(line)
        return line

    def _join(self) -> None:
        self.joined += 1

    def _leave(self) -> None:
        self.left += 1


def relays_side(line: Line) -> tuple[Multiplexer, Parts]:
    heard: Parts = []
    multiplexer = Multiplexer(
        line, on_end=nothing,
        on_part=lambda kind, channel, data: heard.append((kind, channel, data)),
    )  # fmt: skip
    return multiplexer, heard


async def test_a_downstream_credits_the_nodes_that_were_heard_and_answers_the_tick():
    near, far, _ = wired()
    leader = Leader(near)
    multiplexer, heard = relays_side(far)
    for channel in (1, 2):
        multiplexer.put(Kind.OPEN, channel)
    await until(lambda: len(heard) == 2)
    long_ago_s = asyncio.get_running_loop().time() - 100
    for line in leader.lines:
        line.heard_at_s = long_ago_s
    multiplexer.put(Kind.BEAT, 0, TICK.pack(9) + TICK.pack(2) + TICK.pack(77))
    await until(lambda: len(heard) == 3)
    assert heard[2] == (Kind.BEAT, 0, TICK.pack(9))
    assert [line.heard_at_s == long_ago_s for line in leader.lines] == [True, False]
    multiplexer.put(Kind.CLOSE, 1)
    await until(lambda: leader.left)
    assert [bool(line.ended) for line in leader.lines] == [True, False]


async def test_one_channel_that_is_broken_leaves_the_others_and_a_broken_downstream_ends_all():
    near, far, _ = wired()
    leader = Leader(near)
    multiplexer, heard = relays_side(far)
    for channel in (1, 2):
        multiplexer.put(Kind.OPEN, channel)
    multiplexer.put(Kind.DATA, 1, b"\xff\xff\xff\xff a frame that is too long")
    multiplexer.put(Kind.DATA, 2, framing.encode(b"well", frame_bytes_max=100))
    await until(lambda: leader.frames)
    assert leader.frames == [b"well"]
    await until(lambda: (Kind.CLOSE, 1, b"") in heard)
    multiplexer.put(Kind.BEAT, 0, b"odd")
    await until(lambda: leader.ends)
    assert leader.ends == ["cannot read the heartbeats of a relay"]
    assert (leader.joined, leader.left) == (2, 2)
    assert leader.lines[1].ended == "its relay is lost: cannot read the heartbeats of a relay"


async def test_the_line_of_a_node_by_a_relay_has_its_heartbeats_apart_and_ends_with_its_reason():
    near, far, _ = wired()
    beats: list[bytes] = []
    relay_client = RelayClient(near, on_beat=beats.append)
    heard: Parts = []
    relay = Multiplexer(
        far, on_end=nothing,
        on_part=lambda kind, channel, data: heard.append((kind, channel, data)),
    )  # fmt: skip
    relay_client.beat(b"I live")
    relay.put(Kind.BEAT, 0, b"so it is")
    relay.put(Kind.DATA, 0, framing.encode(b"a word", frame_bytes_max=100))
    assert await relay_client.line.receive() == b"a word"
    await until(lambda: heard)
    assert (heard, beats) == ([(Kind.BEAT, 0, b"I live")], [b"so it is"])
    relay_client.line.end("the test ends it")
    assert relay_client.line.ended == "the test ends it"
    await until(lambda: far.ended)
    assert heard[1:] == [(Kind.CLOSE, 0, b"")]


async def test_a_branch_that_was_closed_says_nothing_more():
    near, far, _ = wired()
    multiplexer, heard = multiplexers(near, far)
    transport = ChannelTransport(multiplexer, 3)
    transport.write(b"one")
    transport.close()
    transport.write(b"two")
    transport.abort()
    multiplexer.put(Kind.BEAT, 0)
    await until(lambda: len(heard) == 3)
    assert heard == [(Kind.DATA, 3, b"one"), (Kind.CLOSE, 3, b""), (Kind.BEAT, 0, b"")]
