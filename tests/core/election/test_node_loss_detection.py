"""A leader declares a node lost in time, and none that it could not hear: it may be new, or may have stalled."""

# pyright: reportUnusedExpression=false

from __future__ import annotations

import random

import msgspec
import pytest

from supervisor.core.cluster.cluster_messages import NodeHeard, NodeLost, NodeSilent
from supervisor.core.election import node_loss_detection
from supervisor.core.election.link_silence import LATE_S, SILENCE_S, UNCONFIRMED_S
from supervisor.core.election.node_loss_detection import (
    CHECK_S,
    LOST_S,
    STALLS_MAX,
    AskHeard,
    DeadlineReached,
    EndLink,
    GiveUp,
    Heard,
    Link,
    LinkLost,
    LinkUp,
    NodeDropped,
    NodeKnown,
    Report,
    State,
)
from supervisor.core.fence_times import FENCE_S
from tests.core.playbook import Playbook

B = Link("b")
RELAY = Link("b", is_relay=True)
CLOSED = "the other side has closed the connection"


def links(now_s: float = 0.0) -> Playbook[State]:
    return Playbook(node_loss_detection.step, node_loss_detection.initial_state(now_s=now_s)).at(now_s)


def keep_time(play: Playbook[State], until_s: float) -> list[node_loss_detection.Action]:
    """Reaches each deadline in time; returns what was done."""
    done: list[node_loss_detection.Action] = []
    while (deadline_s := node_loss_detection.next_deadline_s(play.state)) < until_s:
        play.at(max(deadline_s, play.now_s)) >> DeadlineReached()
        done += play.last
    play.at(until_s)
    return done


def lost(why: str) -> tuple[GiveUp, Report]:
    return GiveUp("b"), Report(NodeLost("b", f"node b is lost: {why}"))


def test_a_node_whose_connection_ended_is_lost_after_the_window_and_says_why() -> None:
    play = links()
    assert keep_time(play, 8.0) == []
    play >> LinkUp(B) << ()
    assert keep_time(play, 9.0) == []
    play >> LinkLost(B, CLOSED, heard_at_s=8.5) << Report(NodeSilent("b"))
    assert keep_time(play, 8.5 + LOST_S) == []
    play >> DeadlineReached() << lost(CLOSED)
    play >> LinkLost(B, CLOSED, heard_at_s=8.5) << ()


def test_a_node_that_comes_back_is_heard_again_and_not_lost() -> None:
    play = links()
    play >> LinkUp(B) >> LinkLost(B, CLOSED, heard_at_s=0.0)
    keep_time(play, 3.0)
    play >> LinkUp(B) << Report(NodeHeard("b"))
    assert keep_time(play, 5.6) == [AskHeard(B)]
    play >> LinkUp(B) << (), "its new connection came before the end of the old one was noticed"


def test_a_silent_connection_is_ended_and_the_loss_tells_the_whole_silence() -> None:
    play = links()
    play >> LinkUp(B)
    assert keep_time(play, SILENCE_S) == []
    play >> DeadlineReached() << AskHeard(B)
    play >> Heard(B, at_s=2.0) << ()
    assert keep_time(play, 2.0 + SILENCE_S) == []
    play >> DeadlineReached() << AskHeard(B)
    play >> Heard(B, at_s=2.0) << EndLink(B, "nothing was heard for 2.5 s")
    play >> LinkLost(B, "nothing was heard for 2.5 s", heard_at_s=2.0) << Report(NodeSilent("b"))
    assert keep_time(play, 2.0 + LOST_S) == []
    play >> DeadlineReached() << lost("nothing was heard for 5.0 s")


def test_a_node_that_confirms_nothing_is_reconnected() -> None:
    play = links()
    play >> LinkUp(B)
    why = f"it has confirmed nothing for {UNCONFIRMED_S + 1.0} s"
    play.at(0.1) >> Heard(B, at_s=0.1, waits_since_s=0.1 - UNCONFIRMED_S - 1.0) << EndLink(B, why)
    play >> LinkLost(B, why, heard_at_s=0.1)
    keep_time(play, 0.1 + LOST_S)
    play >> DeadlineReached() << lost(why)


def test_a_silent_relay_is_ended_and_is_no_lost_node() -> None:
    play = links()
    play >> LinkUp(B) >> LinkUp(RELAY)
    assert keep_time(play, SILENCE_S + 0.1) == [AskHeard(B), AskHeard(RELAY)]
    play >> Heard(B, at_s=2.0) << ()
    play >> Heard(RELAY, at_s=0.0) << EndLink(RELAY, "nothing was heard for 2.6 s")
    play >> LinkLost(RELAY, "", heard_at_s=0.0) << ()
    play >> Heard(RELAY, at_s=0.0) << ()


def test_a_node_that_does_not_come_back_to_the_leaders_new_process_is_lost() -> None:
    play = links(now_s=100.0)
    play >> NodeKnown("b") << Report(NodeSilent("b"))
    assert keep_time(play, 100.0 + LOST_S) == []
    play >> DeadlineReached() << lost(node_loss_detection.NOT_BACK)


def test_a_dropped_node_is_lost_at_once() -> None:
    play = links()
    play >> LinkUp(B)
    why = "another process has come in its place"
    gives_up, told = lost(why)
    assert isinstance(told, Report)
    comes = msgspec.structs.replace(told.report, comes_again=True)
    play >> NodeDropped("b", why, comes_again=True) << (gives_up, Report(comes))
    assert keep_time(play, 20.0) == []


def test_a_new_leader_waits_for_a_whole_window() -> None:
    play = links(now_s=100.0)
    play >> LinkUp(B) >> LinkLost(B, CLOSED, heard_at_s=0.0)
    assert keep_time(play, 100.0 + LOST_S) == []


@pytest.mark.parametrize(("heard_at_s", "lost_at_s"), [(8.5, 73.5), (9.0, 74.0), (7.0, 72.0)])
def test_the_time_in_which_the_leader_stalled_is_no_silence(heard_at_s: float, lost_at_s: float) -> None:
    play = links()
    play >> LinkUp(B)
    keep_time(play, 9.0)
    play >> LinkLost(B, CLOSED, heard_at_s=heard_at_s)
    keep_time(play, 10.01)
    stalled_at_s = node_loss_detection.next_deadline_s(play.state)
    play.at(stalled_at_s + 60.0) >> DeadlineReached() << ()
    assert keep_time(play, lost_at_s - 0.001) == []
    play.at(lost_at_s + 0.001) >> DeadlineReached()
    assert play.last == lost(CLOSED)


def test_whatever_comes_first_after_a_stall_nothing_is_judged_before_the_rest_is_heard() -> None:
    for event in (LinkUp(Link("c")), LinkLost(B, CLOSED, heard_at_s=0.0), DeadlineReached()):
        play = links()
        play >> LinkUp(B)
        play.at(30.0) >> event
        assert len(play.state.stalls) == 1
        play >> DeadlineReached() << ()
        assert node_loss_detection.next_deadline_s(play.state) == 30.0 + CHECK_S


def test_what_is_remembered_is_bounded() -> None:
    play = links()
    for number in range(3 * STALLS_MAX):
        play.at(number * 10.0) >> DeadlineReached()
        play >> LinkUp(B) >> LinkLost(B, CLOSED, heard_at_s=number * 10.0)
        play >> LinkUp(B)
    assert len(play.state.stalls) == STALLS_MAX
    assert len(play.state.links) == 1
    keep_time(play, play.now_s + 2 * LOST_S)
    assert not play.state.checks
    assert not play.state.silences


def test_a_node_has_ended_its_workers_before_it_is_lost() -> None:
    assert FENCE_S + LATE_S < LOST_S


@pytest.mark.parametrize("is_noticed", [False, True])
@pytest.mark.parametrize("others_come", [False, True])
def test_a_leader_whose_turns_are_all_late_still_finds_a_lost_node(*, is_noticed: bool, others_come: bool) -> None:
    play = links()
    play >> LinkUp(B)
    if is_noticed:
        play >> LinkLost(B, CLOSED, heard_at_s=0.0)
    listened_s = 0.0
    while not play.of(GiveUp):
        due_s = node_loss_detection.next_deadline_s(play.state)
        listened_s += due_s - play.now_s
        assert listened_s < 2 * LOST_S
        for number in range(4 if others_come else 0):
            play.at(due_s + LATE_S + 0.01 * number) >> LinkUp(Link("c")) << ()
        play.at(due_s + LATE_S + 0.05) >> DeadlineReached()
        if AskHeard(B) in play.last and (play >> Heard(B, at_s=0.0)).of(EndLink):
            play >> LinkLost(B, "nothing was heard", heard_at_s=0.0)
    assert listened_s >= LOST_S


def test_a_leader_whose_turns_are_all_late_hears_what_came_two_turns_before() -> None:
    play = links()
    play >> LinkUp(B)
    heard_at_s = 0.0
    for _ in range(100):
        before_s = play.now_s
        play.at(node_loss_detection.next_deadline_s(play.state) + 20.0) >> DeadlineReached()
        if AskHeard(B) in play.last:
            assert not (play >> Heard(B, at_s=heard_at_s)).of(EndLink)
        heard_at_s = before_s  # what has come since is handled after this turn


def in_one_long_turn(play: Playbook[State], until_s: float) -> None:
    """Has other nodes come, one by one, while nothing is read."""
    while play.now_s < until_s:
        play.at(play.now_s + CHECK_S + 2 * LATE_S) >> LinkUp(Link("c"))


def test_no_connection_is_ended_for_what_was_not_read_in_one_long_turn() -> None:
    play = links()
    play >> LinkUp(B)
    keep_time(play, SILENCE_S - 0.1)
    in_one_long_turn(play, 10.0)
    play >> DeadlineReached()
    if AskHeard(B) in play.last:
        play >> Heard(B, at_s=0.0) << ()
    assert keep_time(play, play.now_s + CHECK_S) == [], "what has come is read now, and then handled"


def test_no_node_is_lost_in_one_long_turn_in_which_its_new_connection_waits() -> None:
    play = links()
    play >> LinkUp(B) >> LinkLost(B, CLOSED, heard_at_s=0.0)
    keep_time(play, 1.0)
    in_one_long_turn(play, 30.0)
    play >> DeadlineReached() << ()
    assert GiveUp("b") not in keep_time(play, play.now_s + 2 * CHECK_S)
    play >> LinkUp(B) << Report(NodeHeard("b"))


def test_a_node_that_comes_back_soon_after_a_stall_is_not_lost_though_the_next_turn_is_late_too() -> None:
    play = links()
    play >> LinkUp(B) >> LinkLost(B, CLOSED, heard_at_s=0.0)
    keep_time(play, LOST_S - 0.01)
    play.at(60.0) >> DeadlineReached() << ()
    play.at(61.0) >> DeadlineReached() << ()
    play >> LinkUp(B) << Report(NodeHeard("b"))


@pytest.mark.parametrize("late_share", [0.1, 0.6])
def test_a_node_is_lost_once_the_leader_has_listened_for_a_window_in_vain(late_share: float) -> None:
    for seed in range(300):
        draw = random.Random(seed)
        play = links()
        play >> LinkUp(B)
        stalls: list[tuple[float, float]] = []
        gone_s, is_down = draw.uniform(0.0, 6.0), False
        while not play.of(GiveUp):
            due_s = node_loss_detection.next_deadline_s(play.state)
            if not is_down and due_s >= gone_s:
                gone_s, is_down = max(gone_s, play.now_s), True
                play.at(gone_s) >> LinkLost(B, CLOSED, heard_at_s=gone_s)
                continue
            late_s = draw.uniform(1.0, 8.0) if draw.random() < late_share else 0.0
            play.at(due_s + late_s) >> DeadlineReached()
            stalls += [(due_s, due_s + late_s)] if late_s else []
        rests_s = CHECK_S * sum(to_s > gone_s for _, to_s in stalls)  # what was said during a stall is heard first
        away_s = sum(max(0.0, to_s - max(from_s, gone_s)) for from_s, to_s in stalls)
        listened_s = play.now_s - gone_s - away_s
        assert LOST_S - 1e-6 <= listened_s <= LOST_S + rests_s + 1e-6, (seed, stalls, gone_s)
