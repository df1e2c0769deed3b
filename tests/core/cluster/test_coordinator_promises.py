"""What does a job on many nodes promise? One budget, one end for all, and no node from another round in this one."""

# pyright: reportUnusedExpression=false
from __future__ import annotations

import pytest

from supervisor.core.cluster import coordinator, job_termination
from supervisor.core.cluster.cluster_messages import (
    JobOpened,
    NodeDown,
    NodeFailed,
    NodeJoined,
    NodeLost,
    NodeStopped,
    NodeSucceeded,
    Send,
    StopAsked,
    VerdictTaken,
)
from supervisor.core.facts import JobRules, JobState, RendezvousRules, RestartRules, Verdict
from supervisor.core.orders import Conclude, JoinAgain, StartCycle, WindDown
from tests.core.playbook import Playbook

Play = Playbook[coordinator.State]


def running(*, max_restarts: int = 3, **restart: object) -> Play:
    """Nodes a and b train, c is a spare, and d has the job and is not ready."""
    rules = JobRules(
        "job",
        2,
        restart=RestartRules(max_restarts=max_restarts, min_nodes=2, **restart),  # pyright: ignore[reportArgumentType]
        rendezvous=RendezvousRules(4, last_call_s=0.0),
    )
    play: Play = Playbook(coordinator.step, coordinator.initial_state("job"), jitter=0.0)
    for node in "abcd":
        play >> JobOpened(node, rules)
    for node in "abc":
        play >> NodeJoined(node, -1)
    assert play.state.parts == ("a", "b")
    return play


def orders(play: Play, kind: type) -> dict[str, object]:
    return {each.node: each.order for each in play.of(Send) if isinstance(each.order, kind)}


def restarted(play: Play, failing: str, nodes: str, cycle: int) -> None:
    play >> NodeFailed(failing, cycle, f"rank on {failing} died")
    for node in nodes:
        play >> NodeJoined(node, cycle)


def ended(play: Play, nodes: str) -> Verdict:
    """Every node stops, learns the end and confirms it."""
    for node in nodes:
        play >> NodeStopped(node, all_succeeded=False)
    told = orders(play, Conclude)
    assert sorted(told) == list(nodes), "also spares, and nodes that wait in the rendezvous"
    (verdict,) = {order.verdict for order in told.values() if isinstance(order, Conclude)}
    for node in nodes:
        play >> VerdictTaken(node)
    assert job_termination.is_over(play.state)
    return verdict


def test_a_node_that_steps_in_has_what_is_left_of_the_jobs_budget() -> None:
    play = running()
    first = play.state.parts
    restarted(play, first[0], "".join(first), 0)
    play >> NodeLost(first[1], "its node is gone") >> NodeJoined(first[0], 1)
    told = orders(play, StartCycle)
    assert sorted(told) == ["a", "c"]
    assert {order.restarts_used for order in told.values() if isinstance(order, StartCycle)} == {2}
    restarted(play, first[0], "".join(play.state.parts), 2)
    play >> NodeFailed(play.state.parts[0], 3, "rank 0 died")
    assert {type(order) for order in orders(play, WindDown).values()} == {WindDown}
    assert coordinator.restarts_used(play.state) == 3


@pytest.mark.parametrize(
    ("restart", "code"), [({"max_restarts": 0}, 1), ({"max_no_progress_cycles": 1, "no_restart_exit_code": 93}, 93)]
)
def test_the_end_is_the_same_for_all_nodes_and_the_first_reason_wins(restart: dict[str, int], code: int) -> None:
    play = running(**restart)
    play >> NodeFailed(play.state.parts[0], 0, "rank 0 died", training_iteration=5)
    if code == 93:  # progress is measured from the first known number
        for node in play.state.parts:
            play >> NodeJoined(node, 0)
        play >> NodeFailed(play.state.parts[0], 1, "rank 0 died", training_iteration=5)
    assert sorted(orders(play, WindDown)) == [*"abcd"]
    play >> NodeFailed(play.state.parts[1], play.state.cycle, "rank 2 died", exit_code=7) << ()
    play >> StopAsked("holdfast run got SIGTERM", 15)
    verdict = ended(play, "abcd")
    assert (verdict.state, verdict.exit_code) == (JobState.FAILED, code)
    assert verdict.reason.startswith("rank 0 died; ")


def test_no_node_succeeds_where_another_fails_for_good() -> None:
    play = running(max_restarts=0)
    first, second = play.state.parts
    play >> NodeSucceeded(first, 0)
    play >> NodeFailed(second, 0, "rank 2 died")
    assert ended(play, "abcd").exit_code == 1


def test_two_nodes_that_fail_at_once_open_one_round() -> None:
    play = running()
    first, second = play.state.parts
    play >> NodeFailed(first, 0, "x")
    again = orders(play, JoinAgain)
    assert sorted(again) == [*"abcd"]
    play >> NodeFailed(second, 0, "y")
    assert not orders(play, JoinAgain)
    assert coordinator.restarts_used(play.state) == 1


def test_a_node_that_dies_after_it_joined_takes_no_part_and_a_slow_one_of_the_last_round_does_not_either() -> None:
    play = running()
    first, second = play.state.parts
    play >> NodeFailed(first, 0, "x") >> NodeJoined(first, 0)
    play >> NodeLost(first, "its node is gone")
    play >> NodeJoined(second, 0)
    assert first not in orders(play, StartCycle)
    before = play.state.parts
    for late in (NodeJoined(second, 0), NodeFailed(second, 0, "late"), NodeSucceeded(second, 0), NodeDown(second, 0)):
        play >> late << ()
    assert play.state.parts == before
    assert coordinator.restarts_used(play.state) == 1
