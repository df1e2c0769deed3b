"""A node one version older or newer joins, and both understand everything that both know."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio.abc import SocketStream
from holdfast_wire.framing import Decoder, encode
from holdfast_wire.v1 import cluster_pb2 as wire

from supervisor.core import orders
from supervisor.core.cluster.cluster_messages import NodeDown, NodeJoined
from supervisor.edges.peers.codec import cluster_versions
from supervisor.edges.peers.embedded import cluster_peers
from supervisor.edges.peers.embedded.cluster_peers import LeaderPeers
from supervisor.edges.peers.transport import cluster_line
from supervisor.edges.peers.transport.cluster_session import numbered, read_numbered
from supervisor.edges.peers.transport.preamble import CONNECTS_HERE
from tests.edges.peers.embedded.test_cluster_peers import JOB, LIMIT_S, Heard, again, free_port, peers


@pytest.fixture(autouse=True)
def leaves_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the server not wait: a stranger here confirms nothing."""
    monkeypatch.setattr(cluster_peers, "PARTING_S", 0.05)


NEVER = 900  # a number that no field or kind has


@pytest.mark.parametrize(
    ("newest", "oldest", "spoken"),
    [(2, 0, 2), (2, 2, 2), (3, 2, 3), (4, 3, 3), (5, 4, None), (4, 0, None), (5, 2, 3), (1, 0, None)],
)
def test_the_newest_version_that_both_speak(
    newest: int, oldest: int, spoken: int | None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cluster_versions, "NEWEST", 3)
    assert cluster_versions.common(newest, oldest) == spoken


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def field(number: int, value: bytes) -> bytes:
    """Encodes a field of any message, even one that no schema here has, as a newer version would."""
    return varint(number << 3 | 2) + varint(len(value)) + value


class Stranger:
    """A hand-made node of another version."""

    def __init__(self, stream: SocketStream) -> None:
        self._stream = stream
        self._decoder = Decoder(frame_bytes_max=cluster_line.FRAME_BYTES_MAX)
        self._frames: list[bytes] = []
        self._number = 0

    async def next(self) -> bytes:
        while not self._frames:
            self._frames = self._decoder.feed(await self._stream.receive())
        return self._frames.pop(0)

    async def send(self, payload: bytes) -> None:
        await self._stream.send(encode(payload, frame_bytes_max=cluster_line.FRAME_BYTES_MAX))

    async def join(self, name: str, newest: int, oldest: int | None, proof: bytes = b"") -> wire.ClusterFrame:
        assert wire.ClusterFrame.FromString(await self.next()).HasField("greeting")
        hello = wire.Hello(protocol_version=newest, job_id=JOB, node=name, incarnation="incarnation", proof=proof)
        if oldest is not None:
            hello.oldest_version = oldest
        await self.send(field(2, hello.SerializeToString() + field(NEVER, b"of a newer version")))
        return wire.ClusterFrame.FromString(await self.next())

    async def say(self, frame: bytes) -> None:
        self._number += 1
        await self.send(numbered(frame, number=self._number, received=0))

    async def hear(self) -> wire.ClusterFrame:
        """Returns the next order."""
        while True:
            payload, number, _ = read_numbered(await self.next())
            if number:
                return wire.ClusterFrame.FromString(payload)


@asynccontextmanager
async def stranger_and_leader() -> AsyncGenerator[tuple[Stranger, LeaderPeers, Heard]]:
    port = free_port()
    async with peers("a", port, tls=None) as (leader, at_leader):
        assert isinstance(leader, LeaderPeers)
        with anyio.fail_after(LIMIT_S):
            async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                await stream.send(CONNECTS_HERE)
                yield Stranger(stream), leader, at_leader


def reported(report: bytes) -> bytes:
    return field(7, field(1, JOB.encode()) + field(2, report))


async def test_an_older_node_that_names_no_range_joins(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cluster_versions, "OLDEST", 1)
    async with stranger_and_leader() as (old, leader, at_leader):
        answer = await old.join("old", newest=1, oldest=None)
        assert answer.welcome.protocol_version == 1
        await old.say(reported(field(2, wire.NodeJoined(node="old", cycle=-1).SerializeToString())))
        await at_leader.until(lambda: at_leader.events)
        assert at_leader.reports() == [NodeJoined("old", -1)]
        leader.send("old", JOB, again(1))
        assert (await old.hear()).ordered.order.join_again.next_cycle == 1


async def test_a_newer_node_joins_and_what_is_not_known_of_it_is_skipped_and_told_once(
    caplog: pytest.LogCaptureFixture,
):
    async with stranger_and_leader() as (new, leader, at_leader):
        answer = await new.join("new", newest=cluster_versions.NEWEST + 1, oldest=cluster_versions.NEWEST)
        assert answer.welcome.protocol_version == cluster_versions.NEWEST
        await new.say(field(NEVER, b"a frame of a newer version"))
        await new.say(reported(field(NEVER, b"a report of a newer version")))
        joined = wire.NodeJoined(node="new", cycle=3).SerializeToString() + field(NEVER, b"a newer field")
        await new.say(reported(field(2, joined)))
        await new.say(reported(field(4, wire.NodeDown(node="new", cycle=4).SerializeToString())))
        await at_leader.until(lambda: len(at_leader.events) == 2)
        assert at_leader.reports() == [NodeJoined("new", 3), NodeDown("new", 4)]
        leader.send("new", JOB, orders.JoinAgain(5, "why"))
        assert (await new.hear()).ordered.order.join_again.next_cycle == 5
    told = [each for each in caplog.messages if "skipped" in each]
    assert told == [f"job {JOB}: skipped a message of node new, which is newer; install the same version on all nodes"]


async def test_versions_too_far_apart_are_refused_with_both_named():
    async with stranger_and_leader() as (new, _, at_leader):
        answer = await new.join("new", newest=9, oldest=8)
        assert answer.refusal.reason == (
            "it speaks versions 8 to 9 of the protocol, the leader version 2; "
            "install versions of Holdfast that are closer"
        )
        assert not at_leader.events


async def test_version_1_which_proves_something_in_another_way_hears_of_versions_and_not_of_tokens():
    async with stranger_and_leader() as (old, _, at_leader):
        answer = await old.join("old", newest=1, oldest=1, proof=b"as version 1 made it")
        assert answer.refusal.reason.startswith("it speaks version 1 of the protocol, the leader version 2; ")
        assert not at_leader.events
