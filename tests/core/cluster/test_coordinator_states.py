"""Parts go to nodes with the processes that they have then, and a lost node keeps what it had reported."""

from __future__ import annotations

import msgspec
import pytest

from supervisor.core.cluster import coordinator, hang_evidence
from supervisor.core.cluster.cluster_messages import JobOpened, NodeFailed, NodeJoined, NodeLost
from supervisor.core.cluster.coordinator_states import (
    Ended,
    Gathering,
    Hang,
    TakingOver,
    after_pause,
    said,
    with_member,
    with_parts,
    without,
)
from supervisor.core.cluster.node_states import Member, MemberState
from supervisor.core.cluster.restart_policy import SHORT_CYCLES_FREE
from supervisor.core.facts import JobRules, JobState, NodeFacts, RestartRules, Verdict
from supervisor.core.wrapped_calls import call_state
from supervisor.core.wrapped_calls.call_state import LastCall, Rebuilding, Restarting, Resting, Running
from tests.core.playbook import Playbook


def test_a_part_is_given_to_a_node_and_to_the_process_that_it_has_then():
    state = coordinator.initial_state("j", leader="a")
    state = with_member(state, "a", Member(MemberState.RUNNING, facts=NodeFacts(process="p1")))
    given = with_parts(state, ("a", "unknown"))
    assert (given.parts, given.processes) == (("a", "unknown"), ("p1", ""))


def test_a_lost_node_keeps_what_it_had_reported():
    reported = Member(MemberState.RUNNING, cycle=4, excluded="bad memory")
    state = with_member(coordinator.initial_state("j", leader="a"), "a", reported)
    state = without(state, NodeLost("a", "node a is lost", comes_again=True))
    assert state.members["a"] == msgspec.structs.replace(reported, state=MemberState.LOST, comes_again=True)


def test_what_is_said_before_the_first_cycle_belongs_to_it():
    state = coordinator.initial_state("j", leader="a")
    assert said(state, "rendezvous_waits", "1 of 2 nodes").event.cycle == 0
    later = msgspec.structs.replace(state, cycle=3)
    assert said(later, "rendezvous_waits", "1 of 2 nodes").event.cycle == 3


def test_a_pause_moves_what_was_still_awaited_and_nothing_else():
    taking = hang_evidence.Taking({}, {}, until_s=101.0, budget_s=1.0, accused={})
    gathering = Gathering("a fault", until_s=900.0, not_before_s=110.0, last_call_until_s=50.0, tell_at_s=120.0)
    state = coordinator.initial_state("j", leader="a")
    state = msgspec.structs.replace(state, phase=gathering, evidence=taking, hang=Hang({}, 102.0), others_until_s=103.0)
    state = after_pause(state, 100.0, 2100.0)
    assert state.phase == msgspec.structs.replace(gathering, until_s=2900.0, tell_at_s=2120.0)
    assert (taking.until_s, state.hang.until_s if state.hang else None) == (2101.0, 2102.0)
    assert state.others_until_s == 2103.0
    assert after_pause(state, 2103.0, 2110.0).others_until_s == 2103.0, "they had had their time"
    for phase in (Ended(Verdict(JobState.STOPPED, 1, "x"), 160.0), TakingOver(160.0)):
        moved = after_pause(msgspec.structs.replace(state, phase=phase), 100.0, 2100.0).phase
        assert moved == msgspec.structs.replace(phase, until_s=2160.0)


@pytest.mark.parametrize(
    ("phase", "later"),
    [
        (Rebuilding(101.0), Rebuilding(2101.0)),
        (LastCall(101.0), LastCall(2101.0)),
        (Restarting(101.0), Restarting(2101.0)),
        (Restarting(), Restarting()),
        (Resting(101.0), Resting(101.0)),
        (Running(), Running()),
    ],
)
def test_a_pause_moves_what_a_wrapped_call_awaits_but_not_its_delay(phase: call_state.Phase, later: call_state.Phase):
    calls = call_state.State(2, phase)
    after_pause(msgspec.structs.replace(coordinator.initial_state("j"), calls=calls), 100.0, 2100.0)
    assert calls.phase == later


@pytest.mark.parametrize(("phase", "began_at_s"), [(Running(), 2099.0), (LastCall(101.0), 99.0)])
def test_an_iteration_that_was_suspended_has_run_no_longer_by_it(phase: call_state.Phase, began_at_s: float):
    calls = call_state.State(2, phase, began_at_s=99.0, interrupted_at_s=99.5)
    after_pause(msgspec.structs.replace(coordinator.initial_state("j"), calls=calls), 100.0, 2100.0)
    assert (calls.began_at_s, calls.interrupted_at_s) == (began_at_s, 99.5)


def test_cycles_that_die_young_are_slowed_although_each_was_suspended():
    rules = JobRules("j", 1, restart=RestartRules(max_restarts=9))
    play: Playbook[coordinator.State] = Playbook(coordinator.step, coordinator.initial_state("j"), jitter=0.0)
    play = (play >> JobOpened("a", rules)) >> NodeJoined("a", -1)
    for cycle in range(SHORT_CYCLES_FREE + 1):
        play.state = after_pause(play.state, play.now_s + 1.0, play.now_s + 3600.0)
        play = (play.at(play.now_s + 3600.0) >> NodeFailed("a", cycle, "x")) >> NodeJoined("a", cycle)
    assert isinstance(play.state.phase, Gathering)
    assert play.state.phase.not_before_s is not None, "it waits"
