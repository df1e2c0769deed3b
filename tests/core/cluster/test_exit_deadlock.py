"""All nodes look at ranks that linger in a restart: when are they ended, and when never?"""

# pyright: reportUnusedExpression=false
from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.cluster import coordinator, exit_deadlock
from supervisor.core.cluster.cluster_messages import (
    DeadlineReached,
    LeaveAsked,
    NodeDown,
    NodeFailed,
    NodeJoined,
    NodeLost,
    Publish,
    RestartAsked,
    Send,
    StacksTaken,
    StacksWanted,
    StopAsked,
    WorkersLinger,
)
from supervisor.core.facts import Evidence, StackGroup
from supervisor.core.orders import EndDeadlocked, TakeStacks
from supervisor.core.process_facts import Frame, ProcessFacts, ProcessState, RankFacts
from tests.core.cluster.test_coordinator import running
from tests.core.playbook import Playbook

Play = Playbook[coordinator.State]
LOST = NodeLost("c", "node c is lost: nothing was heard for 5.0 s")
SCRIPT = Frame("/app/train.py", "train", 3)
WAITS = (SCRIPT, Frame("/x/torch/distributed/distributed_c10d.py", "all_reduce", 9))
TAKE = TakeStacks(0, (), exit_deadlock.BUDGET_S, exit_deadlock.APART_S)


def three_nodes() -> Play:
    """Nodes a, b and c with two ranks each, in cycle 0."""
    return running("a", "b", "c")


def taken(node: str, *ranks: int, frames: tuple[Frame, ...] = WAITS, cycle: int = 0) -> StacksTaken:
    process = ProcessFacts(ProcessState.SLEEPING, is_still=True, is_idle=True)
    facts = tuple(RankFacts(rank, process) for rank in ranks)
    return StacksTaken(node, cycle, Evidence((StackGroup(ranks, "a stack", frames),), facts=facts))


def ended(play: Play) -> list[str]:
    return [each.node for each in play.of(Send) if isinstance(each.order, EndDeadlocked)]


def asked(play: Play) -> list[str]:
    return [each.node for each in play.of(Send) if each.order == TAKE]


def test_all_nodes_with_workers_are_asked_once_and_ended_once_nobody_can_go_on() -> None:
    play = three_nodes() >> LOST
    play.at(0.3) >> WorkersLinger("a", 0)
    assert asked(play) == ["a", "b"]
    play.at(0.31) >> WorkersLinger("b", 0) << ()
    play.at(1.1) >> taken("a", 0, 1) << ()
    play.at(1.2) >> taken("b", 2, 3)
    assert ended(play) == ["a", "b"]
    (said,) = play.of(Publish)
    assert said.event.reason == (
        "ranks 0, 1, 2 and 3 wait in all_reduce for ranks that are gone, so no handler for SIGTERM can run there; "
        "ranks 0, 1, 2 and 3 are ended without waiting any longer"
    )


def test_a_rank_elsewhere_that_is_not_stuck_keeps_all_alive_and_a_later_look_counts() -> None:
    play = three_nodes() >> LOST
    play.at(0.3) >> WorkersLinger("a", 0)
    play >> taken("a", 0, 1)
    play >> taken("b", 2, 3, frames=(SCRIPT,)) << ()
    play.at(1.2) >> WorkersLinger("a", 0)
    assert asked(play) == ["a", "b"]
    play.at(2.0) >> taken("b", 3)
    play >> taken("a", 0)
    assert ended(play) == ["a", "b"]


def test_an_answer_that_comes_late_may_be_about_another_moment() -> None:
    play = three_nodes() >> LOST
    play.at(0.3) >> WorkersLinger("a", 0)
    play.at(1.0) >> taken("a", 0, 1)
    play.at(2.0) >> WorkersLinger("a", 0) << ()
    play.at(2.1) >> taken("b", 2, 3) << ()
    play.at(2.2) >> WorkersLinger("a", 0)
    assert asked(play) == ["a", "b"], "nothing is under way any more"


def test_an_answer_about_a_hang_says_nothing_about_ranks_that_linger() -> None:
    """It shows what the ranks did before the fault; since then, they may save."""
    play = three_nodes() >> StacksWanted("a", 0, (0,), 1.0)
    play >> taken("a", 0, 1) >> taken("c", 4, 5)
    play.at(1.2) >> DeadlineReached()
    play.at(1.3) >> NodeFailed("a", 0, "rank 0 hung")
    play >> NodeJoined("c", 0)
    play.at(1.6) >> WorkersLinger("b", 0)
    play >> taken("b", 2, 3)
    play >> taken("a", 1)
    assert not ended(play)
    play.at(2.5) >> WorkersLinger("b", 0)
    assert asked(play) == ["a", "b"], "no answer is outstanding any more"


def test_where_no_stacks_are_wanted_nobody_is_asked() -> None:
    play = three_nodes()
    state = msgspec.structs.replace(play.state, rules=msgspec.structs.replace(play.state.rules, evidence_budget_s=0.0))
    play.state = state
    play >> LOST
    play.at(0.3) >> WorkersLinger("a", 0) << ()


def test_a_node_that_has_emptied_is_not_asked() -> None:
    play = three_nodes() >> LOST >> NodeJoined("b", 0)
    play.at(0.3) >> WorkersLinger("a", 0)
    assert asked(play) == ["a"]
    play.at(1.1) >> taken("a", 0, 1)
    assert ended(play) == ["a"]


def test_a_look_that_the_next_cycle_overtakes_ends_nobody() -> None:
    play = three_nodes() >> NodeFailed("c", 0, "rank 4 failed")
    play.at(0.3) >> WorkersLinger("a", 0)
    for node in ("a", "b", "c"):
        play >> NodeJoined(node, 0)
    assert play.state.cycle == 1
    for node, rank in (("a", 0), ("b", 2), ("c", 4)):
        play >> taken(node, rank)
        assert not ended(play)


# While the workers of the other nodes still end, this one has a fault again.
AGAIN = (NodeJoined("c", 0), NodeFailed("c", 0, "the spawner was lost"), NodeDown("c", 0))


def test_a_second_fault_while_workers_linger_changes_nothing_for_them() -> None:
    play = three_nodes() >> NodeFailed("c", 0, "rank 4 failed")
    for event in AGAIN:
        play >> event
    assert coordinator.restarts_used(play.state) == 2
    play.at(0.3) >> WorkersLinger("a", 0)
    assert asked(play) == ["a", "b"]
    play.at(1.1) >> taken("a", 0, 1)
    for event in AGAIN:
        play >> event
    play.at(1.2) >> taken("b", 2, 3)
    assert ended(play) == ["a", "b"]


GRACE = [
    (RestartAsked("an operator"),),
    (StopAsked("an operator", 0),),
    (StopAsked("preempted", 15),),
    (NodeFailed("c", 0, "rank 4 was ended by SIGTERM", may_be_stop=True),),
    (LeaveAsked("c", "an operator", with_ranks=True),),
    (LOST, StopAsked("an operator", 0)),
    (RestartAsked("an operator"), *AGAIN),
    (NodeFailed("c", 0, "rank 4 was ended by SIGTERM", may_be_stop=True), *AGAIN),
    (),
]
LATER = [
    *(WorkersLinger(node, cycle) for node in "ab" for cycle in (0, 1)),
    taken("a", 0, 1), taken("b", 2, 3), taken("c", 4, 5), DeadlineReached(),
]  # fmt: skip


@given(st.sampled_from(GRACE), st.lists(st.tuples(st.sampled_from(LATER), st.floats(0.0, 1.0)), max_size=12))
def test_nobody_is_ended_early_after_a_request_or_what_may_be_a_stop(
    before: tuple[object, ...], later: list[tuple[object, float]]
) -> None:
    play = three_nodes()
    for event in before:
        play >> event
    for event, after_s in later:
        play.at(play.now_s + after_s) >> event
        assert not ended(play)


@given(
    st.lists(st.tuples(st.sampled_from([*LATER, taken("b", 2, 3, frames=(SCRIPT,))]), st.floats(0.0, 1.0)), max_size=16)
)
def test_ranks_are_ended_only_if_all_were_seen_stuck_within_one_look(later: list[tuple[object, float]]) -> None:
    play = three_nodes() >> LOST
    seen: dict[str, tuple[float, object]] = {}
    asked_s = None
    for event, after_s in later:
        play.at(play.now_s + after_s) >> event
        if asked(play):
            asked_s, seen = play.now_s, {}
        if isinstance(event, StacksTaken) and asked_s is not None:
            seen.setdefault(event.node, (play.now_s, event))
        if ended(play):
            assert asked_s is not None
            assert {seen["a"][1] == taken("a", 0, 1), seen["b"][1] == taken("b", 2, 3)} == {True}
            assert max(seen["a"][0], seen["b"][0]) - asked_s < 2 * exit_deadlock.APART_S
