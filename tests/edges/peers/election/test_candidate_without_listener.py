"""A leader is lost while a node can't listen for others: it goes on, and leads once it can."""

from __future__ import annotations

import errno
import itertools
import os
import socket

import anyio
import pytest

from supervisor.core import orders
from supervisor.core.cluster.cluster_messages import JobOpened, LeadershipTaken, NodeStands
from supervisor.edges.peers.election import elected_peers
from supervisor.edges.peers.transport import leader_listener
from supervisor.edges.peers.transport.cluster_link import PeerAddress
from tests.edges.peers.election.memory_backend import Memory
from tests.edges.peers.election.test_elected_peers import JOB, RULES, node


async def test_a_node_that_can_not_listen_when_the_leader_is_lost_goes_on_and_tries_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    memory, tries, missing = Memory(), itertools.count(1), anyio.Event()

    async def listen(address: PeerAddress) -> list[socket.socket] | None:
        match next(tries):
            case 1:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            case 2:
                return None  # as if its interface were down
            case _:
                missing.set()
                return await leader_listener.listen(address)

    async with node(memory, "b", begins=False) as b:
        assert b.peers is not None
        async with node(memory, "a") as a:
            await a.until(lambda: a.reports(LeadershipTaken))
            b.peers.report(JOB, JobOpened("b", RULES))
            await a.until(lambda: len(a.reports(NodeStands)) == 2)
            monkeypatch.setattr(elected_peers, "listen", listen)
        await b.until(lambda: b.reports(LeadershipTaken))
        assert missing.is_set()
        assert not b.ordered(orders.WindDown, orders.Conclude, orders.StandBack)
    (told,) = (each.getMessage() for each in caplog.records if "listen as its leader:" in each.getMessage())
    assert "raise the limit on open files" in told
