"""Which node gets which part of a decision about a wrapped call?"""

from __future__ import annotations

from supervisor.core import orders
from supervisor.core.cluster import call_orders
from supervisor.core.cluster.cluster_messages import Publish, Send
from supervisor.core.cluster.coordinator_states import State
from supervisor.core.facts import JobRules
from supervisor.core.wrapped_calls.call_actions import EndCall, Replace, Say, Tell
from supervisor.core.wrapped_calls.call_messages import Interrupt

STATE = State("job", cycle=4, rules=JobRules("job", 2), parts=("a", "b", "c"))


def test_each_node_is_told_of_its_own_ranks_in_the_order_of_the_decision() -> None:
    sent = call_orders.carry(STATE, Tell((5, 0, 1, 4), Interrupt(1, 0)))
    assert sent == (
        Send("c", orders.TellMembers(4, (5, 4), Interrupt(1, 0))),
        Send("a", orders.TellMembers(4, (0, 1), Interrupt(1, 0))),
    )


def test_the_end_of_a_call_concerns_every_node() -> None:
    settle = orders.SettleCall(4, 1, stands=True, reason="committed")
    assert call_orders.carry(STATE, EndCall(1, True, "committed")) == tuple(Send(node, settle) for node in "abc")


def test_what_people_read_names_cycle_and_iteration() -> None:
    (said,) = call_orders.carry(STATE, Say("call_committed", "done", 7, rank=1))
    assert isinstance(said, Publish)
    assert (said.event.cycle, said.event.iteration, said.event.rank) == (4, 7, 1)


def test_a_new_process_is_started_where_the_lost_one_was() -> None:
    said, *sent = call_orders.replace(STATE, Replace((("a", 1), ("c", 4)), takes_unit=True, reason="rank 1 was lost"))
    assert isinstance(said, Publish)
    text = said.event.reason
    assert text == "rank 1 was lost; a new process takes its place, restarts used 0 of 0"
    assert sent == [Send("a", orders.ReplaceRanks(4, (1,), text)), Send("c", orders.ReplaceRanks(4, (4,), text))]
