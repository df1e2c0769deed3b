"""Are the cycles of a job announced in order and once each, whatever ends them and whoever leads?"""

# pyright: reportUnusedExpression=false
from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.core.announcements import CycleBegan, CycleEnded, LeadChanged, PartsChanged
from supervisor.core.cluster import coordinator, coordinator_announcements
from supervisor.core.cluster.cluster_messages import (
    Event,
    JobOpened,
    MemberState,
    NodeCordoned,
    NodeExcluded,
    NodeFailed,
    NodeJoined,
    NodeLost,
    NodeStopped,
    NodeSucceeded,
    RestartAsked,
    Send,
    StopAsked,
)
from supervisor.core.facts import JobRules, RendezvousRules, RestartRules
from supervisor.core.leader_ledger import Ledger
from supervisor.core.orders import Conclude, JoinAgain
from supervisor.engine.recovery import record_text
from tests.core.cluster import test_lost_node_replacement
from tests.core.new_leader import IN_CYCLE_4, new_leader, of_nodes, stands
from tests.core.playbook import Playbook

Play = Playbook[coordinator.State]
CYCLES = (CycleBegan, PartsChanged, CycleEnded)
RULES = JobRules(
    "job", 2, restart=RestartRules(max_restarts=9, min_nodes=2), rendezvous=RendezvousRules(4, last_call_s=0.0)
)


def running() -> Play:
    """Nodes a and b train; c is a spare, and d has been cordoned."""
    play: Play = Playbook(coordinator.step, coordinator.initial_state("job"), jitter=0.0)
    for node in "abcd":
        play >> JobOpened(node, RULES)
    play >> NodeCordoned("d", "by an operator")
    for node in "dcb":
        play >> NodeJoined(node, -1)
    return play


def test_a_cycle_begins_with_its_nodes_by_group_rank_and_those_that_stand_by():
    play = running()
    assert play.of(*CYCLES) == [CycleBegan(0, ("b", "c"))]
    play >> NodeJoined("a", -1)
    assert play.of(*CYCLES) == []
    play >> NodeFailed("b", 0, "rank 1 died")
    assert play.of(*CYCLES) == [CycleEnded(0, ("b", "c"))]
    play >> NodeJoined("b", 0) >> NodeJoined("c", 0)
    assert play.of(*CYCLES) == [CycleBegan(1, ("a", "b"), standby=("c",))]


def test_an_announcement_comes_before_the_orders_of_its_decision():
    play = running() >> NodeFailed("b", 0, "rank 1 died")
    first, *rest = play.of(CycleEnded, Send)
    assert first == CycleEnded(0, ("b", "c"))
    assert rest


def test_a_lost_node_does_not_write_to_the_log_of_the_cycle_any_more():
    play = running() >> NodeLost("b", "node b is lost")
    assert play.of(*CYCLES) == [CycleEnded(0, ("c",))]


def test_where_the_next_cycle_begins_at_once_both_are_announced():
    play = running() >> NodeJoined("a", -1) >> NodeFailed("b", 0, "rank 1 died") >> NodeJoined("b", 0)
    assert play.of(*CYCLES) == []
    play >> NodeLost("c", "node c is lost")
    assert play.of(*CYCLES) == [CycleBegan(1, ("a", "b"))]


@pytest.mark.parametrize("end", [StopAsked("enough", 0), NodeFailed("b", 0, "the end", restart_allowed=False)])
def test_a_cycle_ends_once_with_the_job(end: Event):
    play = running() >> end
    assert play.of(*CYCLES) == [CycleEnded(0, ("b", "c"))]
    for node in "abcd":
        play >> NodeStopped(node, all_succeeded=False)
        assert play.of(*CYCLES) == []


def test_it_ends_once_its_last_node_has_succeeded():
    play = running() >> NodeSucceeded("b", 0)
    assert play.of(*CYCLES) == []
    play >> NodeSucceeded("c", 0)
    assert play.of(*CYCLES) == [CycleEnded(0, ("b", "c"))]


def test_orders_to_a_node_that_takes_no_part_end_no_cycle():
    play = running() >> JobOpened("e", JobRules("job", 4, restart=RULES.restart, rendezvous=RULES.rendezvous))
    assert [each for each in play.of(Send) if isinstance(each.order, Conclude)], "it disagrees, and is told so"
    assert play.of(*CYCLES) == []
    play >> NodeExcluded("a", "its disk is broken") >> NodeJoined("a", -1)
    assert play.of(*CYCLES) == []
    play >> NodeLost("a", "node a is lost") >> stands("a", 0, cycle=-1)
    assert [each for each in play.of(Send) if isinstance(each.order, JoinAgain)], "it is to stop what it runs"
    assert play.of(*CYCLES) == []


def test_a_node_that_takes_the_part_of_a_lost_one_changes_the_parts():
    play = test_lost_node_replacement.spare(test_lost_node_replacement.call("a", "b"), "c") >> NodeLost(
        "b", "node b is lost"
    )
    assert play.state.parts == ("a", "c")
    assert play.of(*CYCLES) == [PartsChanged(0, ("a", "c"))]


def test_a_node_whose_part_is_vacant_has_a_part_and_does_not_stand_by_too():
    play = test_lost_node_replacement.tolerated("c", "a", "b", "c") >> NodeJoined("c", 0)
    test_lost_node_replacement.spare(play >> NodeLost("b", "node b is lost"), "d")
    (changed,) = play.of(PartsChanged)
    assert isinstance(changed, PartsChanged)
    assert (changed.nodes, changed.standby) == (("a", "d", "c"), ())


# --- who leads -----------------------------------------------------------------------------------------------------


def test_a_lead_is_announced_with_the_last_cycle_of_any_leader():
    assert coordinator_announcements.lead_taken(coordinator.initial_state("job")) == LeadChanged(leads=True)
    assert coordinator_announcements.lead_taken(new_leader().state) == LeadChanged(leads=True, cycle=4)
    assert coordinator_announcements.lead_lost() == LeadChanged(leads=False)


LED = of_nodes(IN_CYCLE_4, "a", "b")


def test_a_new_leader_does_not_announce_again_the_cycle_that_goes_on_and_announces_its_end():
    play = new_leader(LED) >> stands("a", 0) >> stands("b", 1)
    assert play.of(*CYCLES) == []
    play >> NodeFailed("b", 4, "rank 1 died")
    assert play.of(*CYCLES) == [CycleEnded(4, ("a", "b"))]


def test_a_cycle_that_ended_while_nobody_led_is_ended_by_the_new_leader():
    play = new_leader(LED) >> stands("a", 0)
    play >> stands("b", 1, MemberState.FAILED, reason="rank 1 died")
    assert play.of(*CYCLES) == [CycleEnded(4, ("a", "b"))]


@pytest.mark.parametrize(
    "decided", [{"opened": 5}, {"stop_signal": 15, "stop_reason": "enough"}], ids=["a restart", "a stop"]
)
def test_an_end_that_the_leader_before_has_recorded_is_not_announced_again(decided: dict[str, object]):
    ledger = Ledger(cycle=4, restarts_used=1, parts=("a", "b"), **({"opened": 4} | decided))  # pyright: ignore
    play = new_leader(ledger) >> stands("a", 0)
    assert play.of(*CYCLES) == []
    play >> stands("b", 1)
    assert play.of(*CYCLES) == []


# --- a supervisor that returns -------------------------------------------------------------------------------------

EVENTS: tuple[Callable[[str, int], Event], ...] = (
    lambda node, _: JobOpened(node, RULES),
    NodeJoined,
    NodeJoined,
    lambda node, cycle: NodeFailed(node, cycle, "a rank died"),
    lambda node, _: NodeLost(node, "it is lost"),
    NodeSucceeded,
    lambda node, _: RestartAsked(f"by an operator at {node}"),
    lambda node, _: NodeCordoned(node, "by an operator"),
    lambda node, _: NodeStopped(node, all_succeeded=False),
)
LIVES = st.lists(st.tuples(st.sampled_from(EVENTS), st.sampled_from("abc"), st.integers(0, 1)), max_size=40)


def announced(life: list[tuple[Callable[[str, int], Event], str, int]], *, returns_at: frozenset[int]) -> list[object]:
    """Plays the life of a job whose supervisor is replaced before some events."""
    play: Play = Playbook(coordinator.step, coordinator.initial_state("job"), jitter=0.0)
    found: list[object] = []
    for node in "abc":
        play >> JobOpened(node, RULES) >> NodeJoined(node, -1)
        found += play.of(*CYCLES)
    for number, (make, node, back) in enumerate(life):
        if number in returns_at:
            kept = record_text.read(record_text.write(play.state))
            assert isinstance(kept, coordinator.State)
            play = Playbook(coordinator.step, kept, jitter=0.0)
        play >> make(node, play.state.cycle - back)
        found += play.of(*CYCLES)
    return found


@settings(max_examples=300)
@given(LIVES, st.frozensets(st.integers(0, 39)))
def test_a_supervisor_that_returns_announces_what_is_next_and_nothing_twice(
    life: list[tuple[Callable[[str, int], Event], str, int]], returns_at: frozenset[int]
):
    found = announced(life, returns_at=returns_at)
    assert found == announced(life, returns_at=frozenset())
    cycles = [each for each in found if isinstance(each, CycleBegan | CycleEnded)]
    assert [each.cycle for each in cycles] == [number // 2 for number in range(len(cycles))]
    assert all(isinstance(each, CycleEnded) == bool(number % 2) for number, each in enumerate(cycles))
