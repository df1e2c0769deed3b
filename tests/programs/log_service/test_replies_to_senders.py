"""Callers get their receipts, terms and troubles."""

from __future__ import annotations

import pytest
from holdfast_wire.log_frames import Alive, Terms, Trouble
from holdfast_wire.log_pieces import Receipt

from supervisor.programs.log_service import replies_to_senders as callers_module
from supervisor.programs.log_service.replies_to_senders import Callers
from tests.edges.peers.transport.test_cluster_line import until
from tests.programs.log_service.test_log_receiving import Caller, Taken, running

BYTES_MAX = 64 * 1024 * 1024


async def test_receipts_go_out_the_newest_of_each_stream_at_once():
    callers = Callers(bytes_max=BYTES_MAX)
    async with running(Taken(), callers) as receiver:
        caller = Caller(receiver, "node 1")
        for position in (2, 4):
            callers.send(1, Receipt(1, position))
        callers.send(1, Receipt(9, 1))
        callers.send(7, Receipt(1, 1))  # Nobody is there.
        await until(lambda: caller.of(Receipt))
        assert caller.of(Receipt) == [Receipt(1, 4), Receipt(9, 1)]


async def test_terms_shrink_with_the_number_of_callers_and_a_trouble_is_told_to_later_ones_too():
    callers = Callers(bytes_max=BYTES_MAX)
    async with running(Taken(), callers) as receiver:
        callers.tell_trouble("no space left")
        nodes = [Caller(receiver, f"node {number}") for number in range(40)]
        await until(lambda: all(each.of(Trouble) and each.of(Terms) for each in nodes))
        assert nodes[-1].of(Trouble) == [Trouble("no space left")]
        first = nodes[0].of(Terms)
        assert isinstance(first[0], Terms)
        newest = first[-1]
        assert isinstance(newest, Terms)
        assert newest.pause_ms > 0
        callers.tell_trouble("")
        await until(lambda: all(each.of(Trouble)[-1] == Trouble("") for each in nodes))


async def test_log_processes_of_this_node_which_may_be_older_hear_nothing_that_they_do_not_know(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(callers_module, "ALIVE_S", 0.01)
    known_here = Callers()
    async with running(Taken(), known_here) as ours, running(Taken(), Callers(bytes_max=BYTES_MAX)) as between_nodes:
        process, node = Caller(ours, ""), Caller(between_nodes, "node 1")
        await until(lambda: len(node.of(Alive)) > 2)
        known_here.tell_trouble("why")
        await until(lambda: process.heard)
        assert process.heard == [Trouble("why")]


async def test_a_wakeup_wakes_when_a_caller_comes_or_goes():
    callers = Callers()
    async with running(Taken(), callers) as receiver:
        caller = Caller(receiver, "node 1")
        await callers.changed.wait()
        assert callers.count == 1
        caller.line.end("a cable was pulled")
        while callers.count:
            await callers.changed.wait()
