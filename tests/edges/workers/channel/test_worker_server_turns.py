"""While the engine has no room for another message, the ranks' own sockets hold the messages, and none is lost."""

from __future__ import annotations

from pathlib import Path

import anyio
from holdfast_wire.framing import encode
from holdfast_wire.v1 import worker_pb2

from supervisor.core.node import node_messages
from tests.edges.workers.worker_side import accept, serve, until

REPORTED = worker_pb2.WorkerFrame(faults_reported=worker_pb2.FaultsReported(call=1, iteration=2))


async def test_a_request_is_accepted_once_the_engine_says_so_and_not_before(tmp_path: Path) -> None:
    turns = anyio.Semaphore(1)  # for ClientJoined
    async with serve(tmp_path, turns=turns, accepts=False) as served:
        rank = served.connect()
        await rank.join(0)
        await rank.send(worker_pb2.WorkerFrame(workload_control=worker_pb2.WorkloadControl(request_id=7)))
        turns.release()
        await until(lambda: served.of(node_messages.ControlRequested))
        with anyio.move_on_after(0.1) as early:
            await rank.receive()
        assert early.cancelled_caught, "the engine has it, and has not kept it yet"
        (asked,) = served.of(node_messages.ControlRequested)
        assert asked.request_id == 7
        accept(served.server, asked)
        answer = await rank.receive()
        assert answer is not None
        assert answer.accepted.request_id == 7


async def test_a_rank_whose_words_wait_fills_its_own_socket_and_is_heard_to_the_end(tmp_path: Path) -> None:
    turns = anyio.Semaphore(1)
    async with serve(tmp_path, turns=turns) as served:
        rank = served.connect()
        await rank.join(0)
        frames = encode(REPORTED.SerializeToString(), frame_bytes_max=100) * 50_000
        sent = 0
        with anyio.move_on_after(0.2):
            while sent < len(frames):
                await anyio.wait_writable(rank.socket)
                sent += rank.socket.send(frames[sent:])
        assert sent < len(frames)
        assert served.of(node_messages.RankSaid) == []
        for _ in range(600):
            turns.release()
        await until(lambda: len(served.of(node_messages.RankSaid)) == 600)


async def test_a_client_of_which_the_engine_has_not_heard_does_not_leave(tmp_path: Path) -> None:
    turns = anyio.Semaphore(0)
    async with serve(tmp_path, turns=turns) as served:
        waiting, again = served.connect(), served.connect()
        await waiting.join(0)
        await again.join(0)  # the newest one speaks for the rank
        await waiting.is_dropped()
        turns.release()
        await until(lambda: served.posted)
        again.close()
        await until(lambda: len(served.posted) == 2)
        assert [type(event) for event in served.posted] == [node_messages.ClientJoined, node_messages.ClientLeft]
