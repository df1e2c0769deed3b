"""Of a hang and a later failure on another node, the hang is the fault, unless it proves false."""

# pyright: reportUnusedExpression=false
from __future__ import annotations

import msgspec
import pytest

from supervisor.core.cluster import coordinator, hang_precedence
from supervisor.core.cluster.cluster_messages import (
    DeadlineReached,
    JobOpened,
    NodeDown,
    NodeFailed,
    NodeJoined,
    NodeLost,
    NodeSucceeded,
    Publish,
    RestartAsked,
    Send,
    StacksTaken,
    StacksWanted,
)
from supervisor.core.cluster.coordinator_states import Running, WindingDown
from supervisor.core.facts import Evidence, JobRules, RestartPolicyName, RestartRules
from supervisor.core.orders import ActOnHang, StartCycle
from tests.core.cluster.test_coordinator_calls import entered, running
from tests.core.playbook import Playbook

NOTICED = "rank 1 sent no heartbeat for 5.0 s (limit 5.0 s)"
HANG = f"rank 1 is stopped; first noticed: {NOTICED}"
CRASH = "rank 2 exited with code 1"
BUDGET_S = 0.25


def three_nodes(**rules: object) -> Playbook[coordinator.State]:
    play = Playbook(coordinator.step, coordinator.initial_state("job"), jitter=0.0)
    restart = RestartRules(**({"max_restarts": 3, "min_nodes": 3} | rules))  # pyright: ignore[reportArgumentType]
    play >> JobOpened("a", JobRules("job", 1, restart=restart))
    for node in ("a", "b", "c"):
        play >> NodeJoined(node, -1)
    assert len(play.of(Send)) == 3
    return play


def hanging(node: str = "b", **rules: object) -> Playbook[coordinator.State]:
    return three_nodes(**rules) >> StacksWanted(node, 0, (1,), BUDGET_S, NOTICED)


def decided(play: Playbook[coordinator.State]) -> list[str]:
    return [each.event.reason for each in play.of(Publish) if each.event.kind == "restart_decided"]


def folded(play: Playbook[coordinator.State]) -> list[str]:
    return [each.event.reason for each in play.of(Publish) if each.event.kind == "fault_folded"]


def test_a_failure_elsewhere_waits_and_belongs_to_the_restart_of_the_hang() -> None:
    play = hanging()
    play >> NodeFailed("c", 0, CRASH, first_failure=CRASH) << ()
    for node in ("a", "b", "c"):
        play >> StacksTaken(node, 0, Evidence())
    assert play.of(Send) == [Send("b", ActOnHang(0))]
    play >> NodeJoined("c", 0) << ()
    play >> NodeFailed("b", 0, HANG)
    assert decided(play) == [f"{HANG}; restarting at once, restarts used 1 of 3"]
    assert folded(play) == [f"{CRASH}; it belongs to the restart that is under way"]
    assert (coordinator.restarts_used(play.state), play.state.first_failure) == (1, "")
    play >> NodeJoined("a", 0) >> NodeJoined("b", 0)
    assert [each.node for each in play.of(Send) if isinstance(each.order, StartCycle)] == ["a", "b", "c"]
    assert play.state.hang is None


def test_it_also_waits_while_the_hung_ranks_are_ended() -> None:
    play = hanging()
    for node in ("a", "b", "c"):
        play >> StacksTaken(node, 0, Evidence())
    play.at(2.0) >> NodeFailed("c", 0, CRASH) << ()
    play.at(2.1) >> NodeFailed("b", 0, HANG)
    assert decided(play) == [f"{HANG}; restarting at once, restarts used 1 of 3"]


def test_the_first_hang_decides_for_all() -> None:
    play = hanging("b") >> StacksWanted("c", 0, (2,), BUDGET_S, "rank 2 sent no heartbeat")
    play >> NodeFailed("a", 0, "rank 0 exited with code 1") << ()
    play >> NodeFailed("c", 0, HANG)
    assert decided(play) == [f"{HANG}; restarting at once, restarts used 1 of 3"]
    assert len(folded(play)) == 1
    play >> NodeFailed("b", 0, HANG)
    assert len(folded(play)) == 1
    assert coordinator.restarts_used(play.state) == 1


def test_a_hang_that_ends_by_itself_leaves_the_failure_as_the_fault() -> None:
    play = hanging()
    play >> NodeFailed("c", 0, CRASH, first_failure=CRASH) << ()
    play >> NodeSucceeded("a", 0)
    assert not decided(play)
    play >> NodeSucceeded("b", 0)
    assert decided(play) == [f"{CRASH}; restarting at once, restarts used 1 of 3"]
    assert play.state.first_failure == CRASH


def test_a_job_does_not_succeed_while_a_failure_waits() -> None:
    play = hanging("a") >> NodeFailed("c", 0, CRASH) >> NodeSucceeded("b", 0)
    play >> NodeSucceeded("a", 0)
    assert not isinstance(play.state.phase, WindingDown)
    assert len(decided(play)) == 1


def test_nobody_waits_longer_than_a_hang_may_take_to_be_reported() -> None:
    play = hanging()
    play >> NodeFailed("c", 0, CRASH) << ()
    until_s = BUDGET_S + hang_precedence.ENDED_S
    play.at(until_s - 0.01) >> DeadlineReached()
    assert isinstance(play.state.phase, Running)
    assert coordinator.next_deadline_s(play.state) == until_s
    play.at(until_s) >> DeadlineReached()
    assert decided(play) == [f"{CRASH}; restarting at once, restarts used 1 of 3"]


def test_a_hang_of_long_ago_that_was_none_holds_nothing_back() -> None:
    play = hanging()
    play.at(BUDGET_S + hang_precedence.ENDED_S) >> DeadlineReached()
    assert play.state.hang is None
    play >> NodeFailed("c", 0, CRASH)
    assert len(decided(play)) == 1


@pytest.mark.parametrize(
    "fault",
    [
        NodeLost("c", "node c is lost"),  # It may be why the others hang.
        NodeFailed("c", 0, "the ranks have asked to end; then rank 2 exited with code 1", restart_allowed=False),
        NodeFailed("b", 0, "the spawner was lost: killed"),  # The node of the hang itself.
        RestartAsked("asked"),
    ],
    ids=lambda fault: type(fault).__name__,
)
def test_what_does_not_wait(fault: NodeLost | NodeFailed | RestartAsked) -> None:
    play = hanging() >> fault
    assert not isinstance(play.state.phase, Running)
    assert play.state.hang is None


def test_a_failure_that_waited_belongs_to_the_restart_that_another_fault_has_begun() -> None:
    play = hanging() >> NodeFailed("c", 0, CRASH) >> NodeDown("c", 0) >> NodeLost("a", "node a is lost")
    assert len(decided(play)) == 1
    assert folded(play) == [f"{CRASH}; it belongs to the restart that is under way"]


def test_each_failure_counts_where_the_hang_is_tolerated() -> None:
    play = hanging(policy=RestartPolicyName.MIN_HEALTHY)
    rules = msgspec.structs.replace(play.state.policy.rules, min_nodes=1)
    play.state = msgspec.structs.replace(play.state, policy=msgspec.structs.replace(play.state.policy, rules=rules))
    play >> NodeFailed("c", 0, CRASH) << ()
    play >> NodeFailed("b", 0, HANG)
    tolerated = [each.event.reason for each in play.of(Publish) if each.event.kind == "fault_tolerated"]
    assert [reason.split("; going on")[0] for reason in tolerated] == [HANG, CRASH]


def test_a_wrapped_call_has_its_own_rules() -> None:
    play = three_nodes() >> StacksWanted("b", 0, (1,), BUDGET_S)  # a silence in it
    play >> NodeFailed("c", 0, CRASH)
    assert len(decided(play)) == 1
    play = entered(running("a", "b"), "a", "b") >> StacksWanted("b", 0, (2,), BUDGET_S, NOTICED)
    play >> NodeFailed("a", 0, CRASH)
    assert len(decided(play)) == 1
