"""A job without secrets on a loopback address is its user's alone: the kernel says whose the other process is."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import anyio
import pytest
from anyio.abc import ByteReceiveStream

from supervisor.core import orders
from supervisor.core.cluster.cluster_messages import NodeJoined
from supervisor.edges.machine.processes.tcp_peer_user import refusal_of_user
from tests.edges.peers.embedded.test_cluster_peers import JOB, LIMIT_S, again, free_port, peers

OTHER = 54321
BEGIN = f"""
import encodings.idna, os, sys, anyio
from holdfast_wire.v1 import cluster_pb2
from supervisor.core.cluster.cluster_messages import NodeFailed
from supervisor.edges.peers.handshake import acceptor
from supervisor.edges.peers.transport import cluster_line
from supervisor.edges.peers.embedded import cluster_peers
from supervisor.edges.peers.transport.cluster_link import PeerAddress
from supervisor.edges.peers.embedded.cluster_peers import Meeting

meeting = Meeting("{JOB}", "x", PeerAddress("127.0.0.1", int(sys.argv[1])), 20.0)
async def warm():  # What is loaded late can't be loaded by another user.
    async with cluster_peers.open_peers(Meeting("w", "w", PeerAddress("127.0.0.1", 0), 1.0), print):
        pass
anyio.run(warm)
os.setgid({OTHER}); os.setuid({OTHER})
acceptor.stranger_at = cluster_line.stranger_at = lambda *_: ""  # it trusts everybody
"""
INTRUDER = (
    BEGIN
    + f"""
async def main():
    async with cluster_peers.open_peers(meeting, lambda event: print(event, flush=True)) as node:
        node.report("{JOB}", NodeFailed("b", 0, "an intruder wants a restart"))
        await anyio.sleep_forever()
anyio.run(main)
"""
)
SQUATTER = (
    BEGIN
    + """
async def main():
    async with cluster_peers.open_peers(meeting, lambda event: print(event, flush=True)):
        print("listens", end="", flush=True)
        await anyio.sleep_forever()
anyio.run(main)
"""
)
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")


@asynccontextmanager
async def other_user(script: str, port: int) -> AsyncGenerator[ByteReceiveStream]:
    process = await anyio.open_process([sys.executable, "-c", script, str(port)], stderr=None)
    try:
        assert process.stdout is not None
        yield process.stdout
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        with anyio.CancelScope(shield=True):
            await process.aclose()


async def test_another_users_process_does_not_join_and_reads_nothing_and_restarts_nothing():
    port = free_port()
    async with peers("a", port, tls=None) as (leader, at_leader), peers("b", port, tls=None) as (b, at_b):
        b.report(JOB, NodeJoined("b", -1))
        await at_leader.until(lambda: at_leader.events)
        async with other_user(INTRUDER, port) as said:
            with anyio.fail_after(LIMIT_S):
                refused = (await said.receive()).decode()
        assert f"refuses this node: {refusal_of_user(f'uid {OTHER}')}" in refused
        leader.send("b", JOB, again(1))
        await at_b.until(lambda: at_b.events)
        assert at_leader.reports() == [NodeJoined("b", -1)]


async def test_another_users_process_at_the_endpoint_is_not_believed():
    port = free_port()
    async with other_user(SQUATTER, port) as said:
        with anyio.fail_after(LIMIT_S):
            assert (await said.receive()).startswith(b"listens")
        async with peers("b", port, tls=None) as (_, at_b):
            await at_b.until(lambda: at_b.events)
            [order] = at_b.orders()
            assert isinstance(order, orders.WindDown)
            assert order.reason.startswith(f"this node does not trust the process at 127.0.0.1:{port}: without a token")
            assert f"belongs to uid {OTHER}; write --rdzv-conf token_file=F" in order.reason
        with anyio.move_on_after(0.2):
            raise AssertionError(await said.receive())  # It has heard nothing of the node.
