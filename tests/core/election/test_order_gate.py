"""Orders go out in turn, after everything recorded ahead of them, and never from a leader whose time is up."""

# pyright: reportUnusedExpression=false

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.election.order_gate import (
    WRITE_AGAIN_S,
    Action,
    DeadlineReached,
    Deliver,
    EndLead,
    Event,
    LeadRenewed,
    LedgerChanged,
    LedgerDoubted,
    LedgerNotWritten,
    LedgerWritten,
    NodeForgotten,
    OrderGiven,
    State,
    WriteLedger,
    next_deadline_s,
    step,
)
from supervisor.core.leader_ledger import Ledger
from supervisor.core.orders import JoinAgain, Resign
from tests.core.playbook import Playbook


def given_to(node: str, cycle: int) -> OrderGiven:
    return OrderGiven(node, JoinAgain(cycle, "a reason"))


def changed(cycle: int) -> LedgerChanged:
    return LedgerChanged(Ledger(cycle))


def out(node: str, cycle: int) -> Deliver:
    return Deliver(node, JoinAgain(cycle, "a reason"))


def gate(valid_until_s: float = 60.0, witnesses: tuple[str, ...] = ()) -> Playbook[State]:
    return Playbook(step, State(valid_until_s, frozenset(witnesses)))


def test_an_order_leaves_at_once_and_one_behind_a_record_once_that_is_kept() -> None:
    play = gate()
    play >> given_to("a", 1) << out("a", 1)
    play >> LedgerChanged(Ledger(1)) << ()
    play >> LedgerChanged(Ledger(2)) << ()
    play >> given_to("a", 2) << ()
    play >> given_to("b", 2) << ()
    assert next_deadline_s(play.state) == 0.0
    play >> DeadlineReached() << WriteLedger(Ledger(2))
    play >> given_to("c", 2) << ()
    assert next_deadline_s(play.state) is None
    play >> LedgerWritten() << (out("a", 2), out("b", 2), out("c", 2))
    assert play.state.recorded == Ledger(2)
    assert play.state.waits_since_s is None


def test_a_ledger_that_changes_while_it_is_written_is_written_again_before_its_orders_leave() -> None:
    play = gate()
    play >> LedgerChanged(Ledger(1)) >> DeadlineReached() << WriteLedger(Ledger(1))
    play >> LedgerChanged(Ledger(2)) >> given_to("a", 2) >> DeadlineReached() << ()
    play >> LedgerWritten() << WriteLedger(Ledger(2))
    assert play.state.recorded is None
    play >> LedgerWritten() << out("a", 2)


def test_a_write_that_may_still_arrive_adds_its_witnesses_and_one_that_is_kept_alone_counts() -> None:
    play = gate(witnesses=("a",))
    play >> LedgerChanged(Ledger(1, witnesses=("b",))) >> DeadlineReached()
    assert play.state.witnesses == {"a", "b"}
    play >> LedgerNotWritten()
    assert play.state.witnesses == {"a", "b"}
    play.at(WRITE_AGAIN_S / 2) >> DeadlineReached() << ()
    play.at(WRITE_AGAIN_S) >> DeadlineReached() << WriteLedger(Ledger(1, witnesses=("b",)))
    play >> LedgerWritten()
    assert play.state.witnesses == {"b"}


def test_a_write_that_may_still_arrive_adds_nobody_while_what_is_kept_names_none() -> None:
    """Seed 60004828 of the simulator: the next leader finds no ledger, and need not meet anybody."""
    play = gate()
    play >> LedgerChanged(Ledger(1, witnesses=("a",))) >> DeadlineReached()
    assert play.state.witnesses == frozenset()
    play >> LedgerNotWritten()
    play.at(WRITE_AGAIN_S) >> DeadlineReached() << WriteLedger(Ledger(1, witnesses=("a",)))
    play >> LedgerWritten()
    assert play.state.witnesses == {"a"}


def test_a_leader_whose_time_is_up_orders_nothing_until_its_lead_is_renewed() -> None:
    play = gate(valid_until_s=1.0)
    play.at(1.0) >> given_to("a", 1) << ()
    play.at(3.0) >> given_to("b", 1) << ()
    assert play.state.waits_since_s == 1.0
    play >> LeadRenewed(2.0) << ()
    play >> LeadRenewed(4.0) << (out("a", 1), out("b", 1))


def test_what_waits_for_a_node_that_is_lost_never_comes_to_it() -> None:
    """Otherwise a node that comes back would begin a cycle that the others know has ended."""
    play = gate()
    play >> LedgerChanged(Ledger(1)) >> given_to("a", 1) >> given_to("b", 1) >> NodeForgotten("a") >> DeadlineReached()
    play >> LedgerWritten() << out("b", 1)


class Dumb:
    """The same rules with one list and no thrift: everything is decided again after each event."""

    def __init__(self) -> None:
        self.queue: list[OrderGiven | Ledger] = []
        self.is_writing: Ledger | None = None
        self.may_write_from_s = 0.0
        self.valid_until_s = 5.0

    def take(self, event: Event, now_s: float) -> list[Action]:
        match event:
            case OrderGiven():
                self.queue.append(event)
                if len(self.queue) > 1:
                    return []
            case LedgerChanged(ledger):
                if self.queue and isinstance(self.queue[-1], Ledger):
                    del self.queue[-1]
                self.queue.append(ledger)
                return []
            case LedgerWritten():
                if self.queue and self.queue[0] is self.is_writing:
                    del self.queue[0]
                self.is_writing = None
            case LedgerNotWritten():
                self.is_writing, self.may_write_from_s = None, now_s + WRITE_AGAIN_S
                return []
            case LeadRenewed(valid_until_s):
                self.valid_until_s = valid_until_s
            case NodeForgotten(node):
                self.queue = [each for each in self.queue if isinstance(each, Ledger) or each.node != node]
            case DeadlineReached() | LedgerDoubted():
                pass
        said: list[Action] = []
        while self.queue:
            first = self.queue[0]
            if isinstance(first, Ledger):
                if self.is_writing is None and now_s >= self.may_write_from_s:
                    self.is_writing = first
                    said.append(WriteLedger(first))
                return said
            if now_s >= self.valid_until_s:
                return said
            said.append(Deliver(first.node, first.order))
            del self.queue[0]
        return said


EVENTS = st.one_of(
    st.builds(given_to, st.sampled_from("ab"), st.integers(0, 9)),
    st.builds(changed, st.integers(0, 9)),
    st.sampled_from([LedgerWritten(), LedgerNotWritten(), DeadlineReached(), NodeForgotten("a")]),
    st.builds(LeadRenewed, st.floats(0, 20)),
)


@given(st.lists(st.tuples(st.floats(0, 1), EVENTS), max_size=40))
def test_it_does_the_same_as_its_slow_twin(told: list[tuple[float, Event]]) -> None:
    dumb, state, now_s = Dumb(), State(5.0), 0.0
    for after_s, event in told:
        now_s += after_s
        if state.writes is None and isinstance(event, LedgerWritten | LedgerNotWritten):
            continue
        state, actions = step(state, event, now_s=now_s)
        assert list(actions) == dumb.take(event, now_s)
        assert state.waiting == deque(dumb.queue)
        assert (state.waits_since_s is None) == (not state.waiting)


def test_the_answer_to_no_question_is_a_defect() -> None:
    with pytest.raises(AssertionError, match="one write"):
        step(State(1.0), LedgerWritten(), now_s=0.0)


def test_a_resignation_takes_effect_once_all_before_it_is_kept_and_the_leader_answers_only_while_it_is_sure() -> None:
    play = gate(witnesses=("a", "b"))
    play >> LedgerChanged(Ledger(2)) << ()  # without witnesses: the next leader need not meet any
    play >> OrderGiven("a", Resign("it hears too few")) << ()
    play >> DeadlineReached() << WriteLedger(Ledger(2))
    assert play.state.witnesses == frozenset()
    play >> LedgerWritten() << EndLead("it hears too few")


def test_a_write_under_way_as_the_ledger_is_doubted_is_made_again_whatever_its_answer() -> None:
    """Seed 31014021 of the simulator: the backend was restored between the write and its answer."""
    play = gate()
    play >> LedgerChanged(Ledger(2)) >> DeadlineReached() << WriteLedger(Ledger(2))
    play >> given_to("a", 3) >> LedgerDoubted() << ()
    play >> LedgerWritten() << WriteLedger(Ledger(2))
    play >> LedgerWritten() << out("a", 3)


def test_a_ledger_that_may_be_lost_is_written_again_and_only_what_this_lead_has_written() -> None:
    play = gate()
    play >> LedgerDoubted() << ()
    assert next_deadline_s(play.state) is None
    play >> LedgerChanged(Ledger(2)) >> LedgerDoubted() >> DeadlineReached() << WriteLedger(Ledger(2))
    play >> LedgerWritten() << ()
    play >> LedgerDoubted() >> DeadlineReached() << WriteLedger(Ledger(2))
    play >> given_to("a", 3) << ()
    play >> LedgerWritten() << out("a", 3)
