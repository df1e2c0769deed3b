"""When does a node follow a leader no longer, or not obey it? One that was stalled may have been replaced meanwhile."""

from __future__ import annotations

import time

import anyio
import pytest

from supervisor.core import orders
from supervisor.core.cluster.cluster_messages import NodeJoined
from supervisor.core.election import leader_loss_detection, link_silence
from supervisor.core.node.node_messages import Ordered
from supervisor.core.session_state import JobSessions
from supervisor.edges.peers.codec import cluster_codec
from supervisor.edges.peers.embedded import cluster_peers
from supervisor.edges.peers.embedded.cluster_peers import Meeting
from supervisor.edges.peers.stream.session_store import SessionStore
from supervisor.edges.peers.transport.cluster_link import PeerAddress
from tests.edges.peers.embedded.test_cluster_peers import JOB, LIMIT_S, TLS, Heard, again, free_port, peers


async def test_an_order_that_a_node_hears_only_after_it_stood_still_is_not_obeyed(monkeypatch: pytest.MonkeyPatch):
    """Found by the simulator: the node began a cycle that the others had left, in parallel to their next one."""
    monkeypatch.setattr(leader_loss_detection, "FENCE_S", 1.0)
    monkeypatch.setattr(link_silence, "ALIVE_S", 0.1)
    port = free_port()
    async with peers("a", port) as (leader, _), peers("b", port) as (_, at_b):
        await at_b.until(lambda: at_b.fences)
        leader.send("b", JOB, again(0))
        await at_b.until(at_b.orders)
        leader.send("b", JOB, again(1))
        await anyio.lowlevel.checkpoint()  # it is in the node's socket now
        time.sleep(1.5)  # noqa: ASYNC251 - the node's loop is blocked
        await at_b.until(lambda: len(at_b.orders()) > 1)
        assert at_b.orders()[0] == again(0)
        assert isinstance(at_b.orders()[1], orders.StandBack), "the leader is lost to it"


@pytest.mark.parametrize(("term", "stays"), [(None, True), (7, True), (8, False)])  # None: of an earlier version
async def test_a_node_goes_on_under_a_leader_that_returns_as_an_earlier_version(term: int | None, stays: bool):
    port, at_a, at_b = free_port(), Heard(), Heard()
    endpoint = PeerAddress("127.0.0.1", port)
    leaders = SessionStore(None, JobSessions(leads=True, term=term))
    nodes = SessionStore(None, JobSessions(incarnation="of b", term=7))
    leads, follows = Meeting(JOB, "a", endpoint, LIMIT_S, TLS), Meeting(JOB, "b", endpoint, LIMIT_S, TLS)
    async with (
        cluster_peers.open_peers(leads, at_a.post, leaders) as leader,
        cluster_peers.open_peers(follows, at_b.post, nodes) as node,
    ):
        node.report(JOB, NodeJoined("b", 0))
        await (at_a.until(at_a.reports) if stays else at_b.until(at_b.orders))
        if stays:
            leader.send("b", JOB, again(1))
            await at_b.until(at_b.orders)
            assert at_b.orders() == [again(1)]
        else:
            why = f"the leader at {endpoint} is lost: another process leads there now"
            assert at_b.orders() == [orders.WindDown(why, at_once=True)]


async def test_what_only_a_newer_leader_says_is_skipped_and_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    encode, newer, port = cluster_codec.encode, Ordered(JOB, again(9)), free_port()
    new_kind = b"\xa2\x38\x03new"  # field 900
    monkeypatch.setattr(cluster_codec, "encode", lambda frame: new_kind if frame == newer else encode(frame))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    async with peers("a", port) as (leader, _), peers("b", port) as (_, at_b):
        await at_b.until(lambda: at_b.fences)
        for cycle in (9, 9, 1):
            leader.send("b", JOB, again(cycle))
        await at_b.until(at_b.orders)
        assert at_b.orders() == [again(1)]
    told = [each for each in caplog.messages if "skipped" in each]
    assert told == [
        f"job {JOB}: skipped a message of the leader, which is newer; install the same version on all nodes"
    ]
