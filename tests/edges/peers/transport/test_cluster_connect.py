"""After a connection that went silent, both sides send small segments; before, the network decides."""

from __future__ import annotations

import contextlib
import socket

import anyio
import pytest
from anyio import to_thread

from supervisor.core.election import link_silence
from supervisor.edges.peers.stream import cluster_client
from supervisor.edges.peers.stream.cluster_client import ClusterClient
from supervisor.edges.peers.transport import cluster_connect
from supervisor.edges.peers.transport.cluster_connect import SEGMENT_BYTES_SMALL
from supervisor.edges.peers.transport.cluster_line import Line
from supervisor.edges.peers.transport.cluster_link import PeerAddress
from supervisor.edges.peers.transport.name_lookup import Found

LIMIT_S = 20.0


def segment_bytes(of: socket.socket) -> int:
    return of.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)


async def accepted(server: socket.socket) -> socket.socket:
    with anyio.fail_after(LIMIT_S):
        return (await to_thread.run_sync(server.accept))[0]


async def test_the_other_side_sends_small_segments_where_this_one_asks_for_it():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        for is_careful in (False, True):
            line = Line()
            await cluster_connect.connect(lambda line=line: line, "localhost", port, is_careful=is_careful)
            with await accepted(server) as taken:
                assert (segment_bytes(taken) <= SEGMENT_BYTES_SMALL) == is_careful
                line.send(b"x" * 4 * SEGMENT_BYTES_SMALL)
                assert await to_thread.run_sync(taken.recv, SEGMENT_BYTES_SMALL)
            line.end("enough")


async def test_nobody_who_listens_is_an_os_error():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionRefusedError):
            await cluster_connect.connect(Line, "127.0.0.1", probe.getsockname()[1], is_careful=True)


async def test_after_an_address_that_does_not_answer_the_next_is_tried(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cluster_connect, "NEXT_AFTER_S", 0.1)
    with contextlib.ExitStack() as opened:
        silent = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        server = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        _fill(silent, opened)
        found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", each.getsockname()) for each in (silent, silent, server)]

        async def look_up(*_: object, **__: object) -> list[Found]:
            return found

        monkeypatch.setattr(cluster_connect, "look_up", look_up)
        line = Line()
        with anyio.fail_after(LIMIT_S):
            await cluster_connect.connect(lambda: line, "leader", 1, is_careful=False)
        with await accepted(server):
            line.end("enough")


def _fill(server: socket.socket, fillers: contextlib.ExitStack) -> None:
    """Connects until the server's queue is full, so that it drops the next packets."""
    while True:
        sock = fillers.enter_context(socket.socket())
        sock.settimeout(0.3)
        try:
            sock.connect(server.getsockname())
        except TimeoutError:
            return


async def test_a_leader_that_says_nothing_is_tried_again_with_small_segments(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cluster_client, "INTRODUCED_S", 0.2)
    monkeypatch.setattr(link_silence, "ALIVE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = ClusterClient(
            PeerAddress("127.0.0.1", server.getsockname()[1]),
            job_id="job", own_name="b", on_order=lambda _: None, on_lost=lambda _: None,
        )  # fmt: skip
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: client.run(join_timeout_s=LIMIT_S))
            with await accepted(server) as first, await accepted(server) as second:
                assert segment_bytes(first) > SEGMENT_BYTES_SMALL >= segment_bytes(second)
            tasks.cancel_scope.cancel()
