"""A node ignores what it hears after its time is up: the leader may have replaced it meanwhile."""

from __future__ import annotations

import time

import anyio
import pytest

from supervisor.core import orders
from supervisor.core.election import leader_loss_detection, link_silence
from tests.edges.peers.embedded.test_cluster_peers import JOB, again, free_port, peers


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
