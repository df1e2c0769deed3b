"""A leader that hears too few nodes, while the others are enough for a cycle, lets another node lead."""

# pyright: reportUnusedExpression=false

from __future__ import annotations

import msgspec
import pytest

from supervisor.core.cluster import coordinator, leader_resignation
from supervisor.core.cluster.cluster_messages import (
    DeadlineReached,
    Event,
    JobOpened,
    MemberState,
    NodeCordoned,
    NodeExcluded,
    NodeFailed,
    NodeJoined,
    NodeLost,
    NodeStopped,
    Record,
    Send,
    VerdictTaken,
)
from supervisor.core.cluster.coordinator_states import Gathering, Running, TakingOver
from supervisor.core.facts import JobRules, RestartRules
from supervisor.core.fence_times import TAKE_OVER_S
from supervisor.core.leader_ledger import Ledger
from supervisor.core.orders import Resign, WindDown
from tests.core.new_leader import IN_CYCLE_4, kinds, new_leader, of_nodes, orders_to, stands
from tests.core.playbook import Playbook


def leading(*others: str, needed: int) -> Playbook[coordinator.State]:
    """Returns node a, which leads a job in its first cycle."""
    play = new_leader(Ledger())
    rules = JobRules("job", 1, restart=RestartRules(max_restarts=3, min_nodes=needed))
    for node in ("a", *others):
        play >> JobOpened(node, rules)
    for node in ("a", *others):
        play >> NodeJoined(node, -1)
    play.at(TAKE_OVER_S) >> DeadlineReached()
    assert isinstance(play.state.phase, Running)
    return play


def lose(play: Playbook[coordinator.State], *nodes: str) -> None:
    for node in nodes:
        play >> NodeLost(node, f"node {node} is lost")


def last_ledger(play: Playbook[coordinator.State]) -> Ledger:
    return play.of(Record)[-1].ledger


def test_a_leader_that_hears_nobody_records_that_it_resigns_and_says_why() -> None:
    play = leading("b", "c", "d", needed=3)
    lose(play, "b")
    assert not orders_to(play, Resign), "the others may be lost: three of four are heard"
    lose(play, "c")
    assert orders_to(play, Resign) == ["a"]
    assert "leader_resigned" in kinds(play)
    (order,) = (each.order for each in play.of(Send) if isinstance(each.order, Resign))
    assert "hears 2 of 4 nodes, and a cycle needs 3" in order.reason
    assert play.last.index(play.of(Record)[0]) < play.last.index(Send("a", order)), "it is recorded first"
    # Nobody hears it any more once that is recorded, so the next leader need not meet one of its nodes.
    assert (last_ledger(play).resigned, last_ledger(play).witnesses) == (("a",), ())
    assert last_ledger(play).restarts_used == 1, "one fault uses one restart, whoever leads"
    lose(play, "d")
    assert not orders_to(play, Resign), "once is enough"


def test_a_leader_keeps_the_lead_if_the_others_are_too_few_or_kept_out() -> None:
    play = leading("b", "c", needed=3)
    lose(play, "b", "c")
    assert not orders_to(play, Resign)
    play = leading("b", "c", "d", needed=3)
    play >> NodeCordoned("d", "a bad fan")
    lose(play, "b", "c")
    assert not orders_to(play, Resign)


def test_a_leader_that_is_not_elected_has_nobody_to_resign_for() -> None:
    rules = JobRules("job", 1, restart=RestartRules(max_restarts=3, min_nodes=2))
    play = Playbook(coordinator.step, coordinator.initial_state("job", leader="a"), jitter=0.0)
    for node in ("a", "b", "c"):
        play >> JobOpened(node, rules)
        play >> NodeJoined(node, -1)
    lose(play, "b", "c")
    assert isinstance(play.state.phase, Gathering)
    assert not orders_to(play, Resign)


def test_each_node_resigns_once_and_only_a_few_until_a_cycle_is_ordered() -> None:
    paid = Ledger(4, 5, 2)
    for resigned, resigns in (((), True), (("b",), True), (("a",), False), (("b", "c", "d"), False)):
        assert len(resigned) <= leader_resignation.RESIGNATIONS_MAX
        play = new_leader(msgspec.structs.replace(of_nodes(paid, "b", "c"), witnesses=(), resigned=resigned))
        play >> stands("a", None, MemberState.JOINED)
        play.at(TAKE_OVER_S) >> DeadlineReached()
        assert isinstance(play.state.phase, Gathering)
        assert orders_to(play, Resign) == (["a"] if resigns else [])
    play >> stands("b", 0, MemberState.JOINED)
    play >> stands("c", 1, MemberState.JOINED)
    assert isinstance(play.state.phase, Running)
    assert last_ledger(play).resigned == ()


def test_a_new_leader_that_meets_none_of_the_nodes_that_it_waits_for_resigns() -> None:
    play = new_leader(of_nodes(IN_CYCLE_4, "b", "c"))
    play >> stands("a", None, MemberState.JOINED)
    play.at(TAKE_OVER_S) >> DeadlineReached()
    assert isinstance(play.state.phase, TakingOver)
    assert orders_to(play, Resign) == ["a"]
    # The leader before may still lead, so the next one has to meet one of its nodes.
    assert (last_ledger(play).resigned, last_ledger(play).witnesses) == (("a",), ("b", "c"))
    play.at(TAKE_OVER_S + 1.0) >> DeadlineReached()
    assert not orders_to(play, Resign)


def test_a_leader_that_hears_enough_nodes_but_none_that_it_may_replace_resigns_and_only_once() -> None:
    """The cycle went on without these nodes. Elected, they would wait for its nodes until the job ends."""
    for resigned, resigns in (((), True), (("a",), False)):
        play = new_leader(msgspec.structs.replace(of_nodes(IN_CYCLE_4, "c", "d"), resigned=resigned))
        play >> stands("a", 0, MemberState.JOINED, cycle=3)
        play >> stands("b", 1, MemberState.JOINED, cycle=3)
        play.at(TAKE_OVER_S) >> DeadlineReached()
        assert orders_to(play, Resign) == (["a"] if resigns else [])
        assert ("leader_resigned" in kinds(play)) is resigns


# --- its own node leaves -------------------------------------------------------------------------------------------


def without_ranks(*spares: str) -> Playbook[coordinator.State]:
    """Returns leader c, which has taken over cycle 4 of nodes a and b."""
    play = new_leader(of_nodes(IN_CYCLE_4, "a", "b"), "c")
    for spare in ("c", *spares):
        play >> stands(spare, None, MemberState.JOINED)
    play >> stands("a", 0, store_host="h", store_port=1) >> stands("b", 1)
    assert isinstance(play.state.phase, Running)
    return play


GIVEN_UP = (
    NodeFailed("c", -1, "Holdfast hit a defect of its own", restart_allowed=False),
    NodeStopped("c", all_succeeded=False),
    VerdictTaken("c"),
)


@pytest.mark.parametrize("reports", [GIVEN_UP, GIVEN_UP[1:]])
@pytest.mark.parametrize("is_open", [False, True])
def test_an_elected_leader_without_ranks_that_ends_the_job_by_itself_ends_it_nowhere_else(
    reports: tuple[Event, ...], is_open: bool
) -> None:
    play = without_ranks("d")
    if is_open:
        play >> NodeFailed("b", 4, "rank 2 died")
    resigns, ledgers = list[str](), list[Ledger]()
    for report in reports:
        play >> report
        assert not orders_to(play, WindDown)
        resigns += orders_to(play, Resign)
        ledgers += [each.ledger for each in play.of(Record)]
    assert resigns == ["c"]
    play = new_leader(ledgers[-1], leader="d")
    state = MemberState.JOINED if is_open else MemberState.RUNNING
    play >> stands("d", None, MemberState.JOINED) >> stands("a", 0, state) >> stands("b", 1, state)
    assert isinstance(play.state.phase, Running)
    assert (play.state.cycle, play.state.parts) == (5 if is_open else 4, ("a", "b"))


def test_a_leader_that_was_not_elected_ends_the_job_with_its_own_part() -> None:
    rules = JobRules("job", 1, restart=RestartRules(max_restarts=3, min_nodes=2))
    play = Playbook(coordinator.step, coordinator.initial_state("job", leader="c"), jitter=0.0)
    for node in ("a", "b", "c"):
        play >> JobOpened(node, rules)
    for node in ("a", "b", "c"):
        play >> NodeJoined(node, -1)
    assert play.state.parts == ("a", "b")
    for report in GIVEN_UP:
        play >> report
    assert orders_to(play, WindDown) == ["a", "b", "c"]


@pytest.mark.parametrize("is_first", [True, False])
def test_an_elected_leader_whose_own_node_is_excluded_gives_up_the_lead_and_the_next_one_lets_it_go(
    is_first: bool,
) -> None:
    play = without_ranks() >> NodeExcluded("c", "its disk is broken")
    assert orders_to(play, Resign) == ["c"]
    (ledger,) = [each.ledger for each in play.of(Record)]
    excluded = stands("c", None, MemberState.JOINED, excluded="its disk is broken")
    play = new_leader(ledger)
    play >> stands("a", 0)
    for each in (excluded, stands("b", 1)) if is_first else (stands("b", 1), excluded):
        play >> each
    assert isinstance(play.state.phase, Running)
    (order,) = (each.order for each in play.of(Send) if each.node == "c")
    assert order.verdict.exit_code == 0
