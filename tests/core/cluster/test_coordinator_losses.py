"""Nodes are lost while the others restart: cases found by the simulator."""

# pyright: reportUnusedExpression=false
from __future__ import annotations

import msgspec
import pytest

from supervisor.core.cluster import coordinator, coordinator_states, leader_takeover
from supervisor.core.cluster.cluster_messages import (
    DeadlineReached,
    Event,
    JobOpened,
    LeadershipTaken,
    MemberState,
    NodeFailed,
    NodeHeard,
    NodeJoined,
    NodeLost,
    NodeSilent,
    NodeStands,
    NodeSucceeded,
    Publish,
    Send,
    StoreServed,
    VerdictTaken,
)
from supervisor.core.cluster.coordinator_states import Gathering, Running
from supervisor.core.facts import (
    Assignment,
    JobRules,
    JobState,
    RendezvousRules,
    RestartPolicyName,
    RestartRules,
    Verdict,
)
from supervisor.core.leader_ledger import Ledger
from supervisor.core.orders import Conclude
from tests.core.playbook import Playbook

NODES = ("a", "b", "c")


@pytest.mark.parametrize(
    "before", [NodeSucceeded("c", 0), NodeFailed("c", 0, "rank 4 failed"), StoreServed("c", 0, "h", 1)]
)
def test_a_node_lost_in_a_round_that_is_open_takes_no_second_unit(before: Event) -> None:
    """Seed 570: a stopped leader loses two nodes at once, one of which had succeeded already."""
    play = Playbook(coordinator.step, coordinator.initial_state("job"), jitter=0.0)
    for node in NODES:
        play >> JobOpened(node, JobRules("job", 2, restart=RestartRules(max_restarts=3, min_nodes=3)))
        play >> NodeJoined(node, -1)
    play >> before
    play >> NodeLost("b", "node b is lost")
    assert coordinator.restarts_used(play.state) == 1
    play >> NodeLost("c", "node c is lost")
    assert coordinator.restarts_used(play.state) == 1


@pytest.mark.parametrize("is_served", [False, True])
def test_the_node_that_was_to_serve_the_store_is_not_tolerated_away(is_served: bool) -> None:
    """Found by the simulator: all others would wait for the store indefinitely."""
    rules = RestartRules(policy=RestartPolicyName.MIN_HEALTHY, max_restarts=3, min_nodes=2)
    play = Playbook(coordinator.step, coordinator.initial_state("job"), jitter=0.0)
    elastic = JobRules("job", 2, restart=rules, rendezvous=RendezvousRules(max_nodes=3, elastic=True))
    for node in ("a", "b", "c"):
        play >> JobOpened(node, elastic)
    for node in ("a", "b", "c"):
        play >> NodeJoined(node, -1)
    assert play.state.parts == ("a", "b", "c")
    if is_served:
        play >> StoreServed("a", 0, "10.0.0.1", 29500)
    play >> NodeFailed("a", 0, "its spawner was lost")
    said = [each.event.kind for each in play.of(Publish)]
    assert said == (["fault_tolerated"] if is_served else ["restart_decided"])


def test_a_lost_node_that_is_back_and_tells_its_old_fault_takes_no_second_unit() -> None:
    """Seed 9353: its fence had ended its workers; it reported that they failed late, before it reported its state."""
    play = Playbook(coordinator.step, coordinator.initial_state("job"), jitter=0.0)
    for node in ("a", "b"):
        play >> JobOpened(node, JobRules("job", 2, restart=RestartRules(max_restarts=3, min_nodes=2)))
        play >> NodeJoined(node, -1)
    play >> NodeLost("b", "node b is lost") >> NodeJoined("a", 0)
    play >> NodeFailed("b", 0, "rank 2 was killed by SIGKILL")
    assert [each.event.kind for each in play.of(Publish)] == ["fault_folded"]
    play >> NodeJoined("b", 0)
    assert (play.state.cycle, coordinator.restarts_used(play.state)) == (1, 1)


def test_no_cycle_is_placed_on_a_node_that_is_silent_already_and_one_fault_takes_one_unit() -> None:
    play = Playbook(coordinator.step, coordinator.initial_state("job"), jitter=0.0)
    rules = JobRules("job", 2, restart=RestartRules(max_restarts=3, min_nodes=2))
    for node in NODES:
        play >> JobOpened(node, rules)
        play >> NodeJoined(node, -1)
    assert play.state.parts == ("a", "b")
    play >> NodeSilent("b") >> NodeSilent("c")  # one switch
    play >> NodeLost("b", "node b is lost")
    play >> NodeJoined("a", 0)
    assert isinstance(play.state.phase, Gathering), "c is no place for a cycle"
    play.at(60.0) >> DeadlineReached()
    assert "node c is not heard at present" in play.of(Publish)[0].event.reason
    play >> NodeHeard("c")
    assert (play.state.parts, coordinator.restarts_used(play.state)) == (("a", "c"), 1)
    play >> NodeSilent("nobody") << ()


def test_a_node_that_was_silent_and_comes_as_another_process_takes_part_in_the_next_cycle() -> None:
    """Seed 91032081: its new connection took the old one's place, and its old fault came before its state."""
    play = Playbook(coordinator.step, coordinator.initial_state("job"), jitter=0.0)
    for node in ("a", "b"):
        play >> JobOpened(node, JobRules("job", 2, restart=RestartRules(max_restarts=3, min_nodes=2)))
        play >> NodeJoined(node, -1)
    play >> NodeSilent("b") >> NodeLost("b", "node b is lost: another process has come in its place")
    play >> NodeFailed("b", 0, "node b ends its workers, since another may take its place")
    play >> NodeJoined("a", 0) >> NodeJoined("b", 0)
    assert (play.state.parts, play.state.cycle, coordinator.restarts_used(play.state)) == (("a", "b"), 1, 1)


# --- a late node that cannot run its command -----------------------------------------------------------------------

ON_TWO = JobRules(
    "job", 2, restart=RestartRules(max_restarts=3, min_nodes=2), rendezvous=RendezvousRules(max_nodes=3, elastic=True)
)
REFUSAL = NodeFailed("c", -1, "cannot run train.py: no such file", restart_allowed=False, exit_code=2)
CONCLUDED = Conclude(Verdict(JobState.FAILED, 2, "cannot run train.py: no such file"))


def running_on_two() -> Playbook[coordinator.State]:
    play = Playbook(coordinator.step, coordinator.initial_state("job", leader="a"), jitter=0.0)
    for node in ("a", "b"):
        play >> JobOpened(node, ON_TWO)
        play >> NodeJoined(node, -1)
    play.at(30.0) >> DeadlineReached()
    assert (play.state.parts, play.state.cycle) == (("a", "b"), 0)
    return play


def test_a_late_node_that_cannot_run_its_command_ends_alone_and_the_next_restart_does_not_wait_for_it() -> None:
    play = running_on_two()
    play >> JobOpened("c", ON_TWO) >> REFUSAL
    assert play.of(Send) == [Send("c", CONCLUDED)]
    assert [each.event.kind for each in play.of(Publish)] == ["node_refused"]
    play >> VerdictTaken("c") << () >> NodeLost("c", "it is gone") << ()
    play.at(60.0) >> NodeFailed("b", 0, "rank 2 failed") >> NodeJoined("b", 0) >> NodeJoined("a", 0)
    assert (play.state.cycle, play.state.parts) == (1, ("a", "b")), "this round waits for no third node"


def test_a_node_that_cannot_run_its_command_while_a_round_is_open_ends_alone_and_nobody_waits_for_it() -> None:
    play = running_on_two()
    play.at(60.0) >> JobOpened("c", ON_TWO) >> NodeFailed("b", 0, "rank 2 failed")
    play >> NodeJoined("b", 0) >> NodeJoined("a", 0)
    assert isinstance(play.state.phase, Gathering), "the round waits for c"
    play >> REFUSAL
    assert Send("c", CONCLUDED) in play.last
    assert (play.state.cycle, play.state.parts) == (1, ("a", "b"))


def test_a_leader_whose_own_late_node_cannot_run_its_command_leads_on_and_runs_nothing() -> None:
    rules = JobRules("job", 2, restart=ON_TWO.restart, rendezvous=RendezvousRules(max_nodes=3, last_call_s=1.0))
    play = Playbook(coordinator.step, coordinator.initial_state("job", leader="c"), jitter=0.0)
    for node in ("c", "a", "b"):
        play >> JobOpened(node, rules)
    play >> NodeJoined("a", -1) >> NodeJoined("b", -1)
    play.at(30.0) >> DeadlineReached()
    assert play.state.parts == ("a", "b")
    play >> REFUSAL
    assert not play.of(Send)
    play.at(60.0) >> NodeFailed("b", 0, "rank 2 failed") >> NodeJoined("b", 0) >> NodeJoined("a", 0)
    assert (play.state.cycle, play.state.parts) == (1, ("a", "b"))


def test_a_new_leader_hears_the_refusal_after_the_nodes_state_and_goes_on_without_the_node() -> None:
    taken = LeadershipTaken(2, Ledger(0, 0, 0, parts=("a", "b"), witnesses=("a", "b"), term=1, leader="x"))
    state = leader_takeover.initial_state("job", taken, leader="a", now_s=0.0)
    play = Playbook(coordinator.step, state, jitter=0.0)
    play >> NodeStands("c", ON_TWO, MemberState.OPENED, -1) >> REFUSAL
    for rank, node in enumerate(("a", "b")):
        part = Assignment(0, rank, 2, 4, 2 * rank)
        play >> NodeStands(node, ON_TWO, MemberState.RUNNING, 0, part)
    assert Send("c", CONCLUDED) in play.last
    assert isinstance(play.state.phase, Running)


def test_if_every_node_was_started_again_and_cannot_run_its_command_the_job_ends_at_once() -> None:
    """As after the loss of all nodes at once: nobody is left who could go on."""
    rules = JobRules("job", 2, restart=RestartRules(max_restarts=3), rendezvous=RendezvousRules(max_nodes=2))
    taken = LeadershipTaken(2, Ledger(3, 0, 0, parts=("c", "d"), witnesses=("c", "d"), term=1, leader="d"))
    state = leader_takeover.initial_state("job", taken, leader="c", now_s=0.0)
    play = Playbook(coordinator.step, state, jitter=0.0)
    for node in ("c", "d"):
        play >> NodeStands(node, rules, MemberState.OPENED, -1) >> msgspec.structs.replace(REFUSAL, node=node)
    play.at(60.0) >> DeadlineReached()
    phase = play.state.phase
    assert isinstance(phase, coordinator_states.WindingDown | coordinator_states.Ended), phase
    verdict = phase.outcome if isinstance(phase, coordinator_states.WindingDown) else phase.verdict
    assert isinstance(verdict, Verdict)
    assert verdict.exit_code == 2
    assert verdict.reason.startswith("cannot run train.py: no such file")


def test_if_one_of_the_nodes_that_were_started_again_cannot_run_its_command_the_others_go_on() -> None:
    """Its file system may come later than those of the others; a refusal is known before they have joined."""
    rules = JobRules("job", 2, restart=RestartRules(max_restarts=3), rendezvous=RendezvousRules(max_nodes=2))
    taken = LeadershipTaken(2, Ledger(3, 0, 0, parts=("c", "d"), witnesses=("c", "d"), term=1, leader="d"))
    state = leader_takeover.initial_state("job", taken, leader="d", now_s=0.0)
    play = Playbook(coordinator.step, state, jitter=0.0)
    for node in ("c", "d"):
        play >> NodeStands(node, rules, MemberState.OPENED, -1)
    play >> REFUSAL
    play.at(60.0) >> DeadlineReached()
    assert Send("c", CONCLUDED) in play.last
    play >> NodeJoined("d", -1)
    play.at(120.0) >> DeadlineReached()
    assert isinstance(play.state.phase, Running)
    assert play.state.parts == ("d",)


def test_a_last_call_that_is_over_while_a_node_still_stops_its_workers_sets_no_timer() -> None:
    """The timer would fire again and again until those workers are gone."""
    play = running_on_two()
    play.at(60.0) >> JobOpened("c", ON_TWO) >> NodeFailed("b", 0, "rank 2 failed")
    play >> NodeJoined("b", 0) >> NodeJoined("a", 0)
    called_until_s = 60.0 + ON_TWO.rendezvous.last_call_s
    assert coordinator.next_deadline_s(play.state) == called_until_s
    part = Assignment(0, 0, 2, 4, 0)
    play >> NodeStands("d", ON_TWO, MemberState.RUNNING, 0, part)
    play.at(called_until_s) >> DeadlineReached()
    next_s = coordinator.next_deadline_s(play.state)
    assert next_s is not None
    assert next_s > called_until_s
    play.at(called_until_s + 1.0) >> NodeJoined("d", 0)
    assert play.state.cycle == 1, "the last call was over"
