"""A rank's Wrapper at the worker socket: its messages reach the engine, and orders reach it without waiting."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from holdfast_wire.v1 import worker_pb2

from supervisor.core.node import node_messages
from supervisor.core.wrapped_calls import call_messages
from supervisor.edges.workers.channel import worker_connection
from tests.edges.workers.channel.test_worker_connection import Pair
from tests.edges.workers.channel.test_worker_connection import pair as pair
from tests.edges.workers.worker_side import JOB_ID, serve, until

REPORTED = worker_pb2.WorkerFrame(faults_reported=worker_pb2.FaultsReported(call=1, iteration=2))
BIG = call_messages.CallRefused(1, "x" * 60_000)


async def test_what_a_rank_says_reaches_the_engine_with_its_name(tmp_path: Path) -> None:
    async with serve(tmp_path) as served:
        rank = served.connect()
        await rank.join(3)
        await rank.send(REPORTED)
        await until(lambda: served.of(node_messages.RankSaid))
        assert served.of(node_messages.RankSaid) == [
            node_messages.RankSaid(JOB_ID, 0, 3, call_messages.FaultsReported(1, 2))
        ]


async def test_an_order_reaches_those_that_are_there(tmp_path: Path) -> None:
    async with serve(tmp_path) as served:
        ranks = [served.connect(), served.connect()]
        for local_rank, rank in enumerate(ranks):
            await rank.join(local_rank)
        await until(lambda: len(served.of(node_messages.ClientJoined)) == 2)
        served.server.tell_ranks(JOB_ID, 0, (0, 1, 2), call_messages.Interrupt(1, 4))
        for rank in ranks:
            frame = await rank.receive()
            assert frame is not None
            assert (frame.WhichOneof("body"), frame.interrupt.iteration) == ("interrupt", 4)


async def test_orders_come_whole_and_in_order_though_the_rank_reads_late(tmp_path: Path) -> None:
    async with serve(tmp_path) as served:
        rank = served.connect()
        await rank.join(0)
        await until(lambda: served.of(node_messages.ClientJoined))
        for iteration in range(50):  # three times the capacity of a socket
            served.server.tell_ranks(JOB_ID, 0, (0,), BIG)
            served.server.tell_ranks(JOB_ID, 0, (0,), call_messages.Interrupt(1, iteration))
        for iteration in range(50):
            big, small = await rank.receive(), await rank.receive()
            assert big is not None
            assert small is not None
            assert big.call_refused.reason == "x" * 60_000
            assert small.interrupt.iteration == iteration


async def test_a_rank_that_does_not_read_is_dropped_and_may_come_back(tmp_path: Path) -> None:
    async with serve(tmp_path) as served:
        rank = served.connect()
        await rank.join(0)
        await until(lambda: served.of(node_messages.ClientJoined))
        for _ in range(worker_connection.WAITING_BYTES_MAX // 60_000 + 100):
            served.server.tell_ranks(JOB_ID, 0, (0,), BIG)
        await until(lambda: served.of(node_messages.ClientLeft))
        again = served.connect()
        await again.join(0)


async def test_a_frame_that_waits_is_sent_before_what_comes_later(pair: Pair) -> None:
    connection, theirs = pair
    theirs.setblocking(False)
    first = b"a" * 4_000_000
    assert connection.send_soon(first)
    assert connection.must_flush
    received = bytearray()

    async def read() -> None:
        while len(received) < len(first) + 1:
            await anyio.wait_readable(theirs)
            received.extend(theirs.recv(1 << 20))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        tasks.start_soon(connection.send, b"b")
    assert bytes(received) == first + b"b"
    assert not connection.must_flush


async def test_a_gone_peer_is_told_at_once(pair: Pair) -> None:
    connection, theirs = pair
    theirs.close()
    assert not connection.send_soon(b"x")
    with pytest.raises(OSError, match=r"."):
        await connection.send(b"x")
