"""Rounds, fences, units: with one node, and with the seams for more."""

# pyright: reportUnusedExpression=false
from __future__ import annotations

import pytest

from supervisor.core.announcements import CycleBegan, CycleEnded
from supervisor.core.cluster import coordinator
from supervisor.core.cluster.cluster_messages import (
    Action,
    DeadlineReached,
    Event,
    JobOpened,
    MemberState,
    NodeCordoned,
    NodeDown,
    NodeExcluded,
    NodeFailed,
    NodeJoined,
    NodeLost,
    NodeStopped,
    NodeSucceeded,
    Publish,
    RestartAsked,
    Send,
    StopAsked,
    StoreServed,
    VerdictTaken,
)
from supervisor.core.cluster.coordinator_states import Running
from supervisor.core.facts import (
    Assignment,
    Cause,
    JobRules,
    JobState,
    RendezvousRules,
    RestartPolicyName,
    RestartRules,
    Verdict,
)
from supervisor.core.orders import Conclude, JoinAgain, Order, StartCycle, UseStore, WindDown
from tests.core.playbook import Playbook


def opened(min_nodes: int = 1, **rules: object) -> Playbook[coordinator.State]:
    play = Playbook(coordinator.step, coordinator.initial_state("job"), jitter=0.0)
    restart = RestartRules(**({"max_restarts": 3, "min_nodes": min_nodes} | rules))  # pyright: ignore[reportArgumentType]
    play >> JobOpened("a", JobRules("job", 2, restart=restart)) << ()
    return play


def running(*nodes: str, **rules: object) -> Playbook[coordinator.State]:
    nodes = nodes or ("a",)
    play = opened(len(nodes), **rules)
    for node in nodes:
        play >> NodeJoined(node, -1)
    assert len(cycles(play)) == len(nodes)
    return play


def ordered(play: Playbook[coordinator.State], kind: type[Order]) -> list[str]:
    """Returns the nodes that got such an order."""
    return [each.node for each in play.of(Send) if isinstance(each.order, kind)]


def cycles(play: Playbook[coordinator.State]) -> list[tuple[str, Assignment]]:
    return [(each.node, each.order.assignment) for each in play.of(Send) if isinstance(each.order, StartCycle)]


def concluded(play: Playbook[coordinator.State]) -> Verdict:
    """Makes every node report that it has stopped."""
    for node in play.state.members:
        play >> NodeStopped(node, all_succeeded=False)
    (verdict,) = {each.order.verdict for each in play.of(Send)}
    return verdict


def until_the_round_is_given_up(play: Playbook[coordinator.State]) -> list[str]:
    """Returns what people are told meanwhile."""
    said: list[str] = []
    while not ordered(play, WindDown):
        due_s = coordinator.next_deadline_s(play.state)
        assert due_s is not None
        play.at(due_s) >> DeadlineReached()
        said += [each.event.reason for each in play.of(Publish)]
    return said


def decisions(play: Playbook[coordinator.State]) -> tuple[Action, ...]:
    return tuple(action for action in play.last if not isinstance(action, Publish))


def test_one_node_is_ordered_as_soon_as_it_joins() -> None:
    play = opened()
    began = CycleBegan(0, ("a",))
    play >> NodeJoined("a", -1) << (began, Send("a", StartCycle(Assignment(0, world_size=2), "first start")))
    play >> NodeJoined("a", -1) << ()


def test_ranks_follow_the_sorted_names_and_extra_nodes_wait() -> None:
    play = opened(2)
    play >> NodeJoined("c", -1) << ()
    play >> NodeJoined("b", -1)
    assert [(node, part.group_rank, part.first_rank) for node, part in cycles(play)] == [("b", 0, 0), ("c", 1, 2)]
    assert {part.world_size for _, part in cycles(play)} == {4}
    play >> NodeJoined("a", -1) << ()  # a spare interrupts nothing
    play >> NodeFailed("c", 0, "x")
    play >> NodeJoined("b", 0) << ()
    play >> NodeDown("c", 0)
    assert ordered(play, StartCycle) == ["a", "b"]


def test_reports_that_overtake_the_opening_are_kept() -> None:
    play = Playbook(coordinator.step, coordinator.initial_state("job"), jitter=0.0)
    play >> NodeJoined("a", -1) << ()
    play >> JobOpened("a", JobRules("job", 1))
    assert ordered(play, StartCycle) == ["a"]


def test_a_newcomer_that_disagrees_is_refused_and_nobody_else_notices() -> None:
    play = running("a", "b")  # with 2 workers each
    play >> JobOpened("c", JobRules("job", 3))
    (refusal,) = play.of(Send)
    assert refusal.node == "c"
    assert isinstance(refusal.order, Conclude)
    assert refusal.order.verdict.reason == (
        "node c has --nproc-per-node 3, and the other nodes of the job have 2; start it with the same"
    )
    play >> NodeJoined("d", -1) >> VerdictTaken("c")
    assert not ordered(play, WindDown)
    assert isinstance(play.state.phase, Running)


def test_a_lost_node_is_a_fault_and_nobody_waits_for_it() -> None:
    play = running("a", "b")
    play >> JobOpened("c", play.state.rules) >> NodeJoined("c", -1)
    play >> NodeLost("b", "node b is lost")
    assert sorted(ordered(play, JoinAgain)) == ["a", "c"]
    play >> NodeJoined("a", 0)
    assert [node for node, _ in cycles(play)] == ["a", "c"]
    play >> NodeLost("b", "said twice") << ()
    assert coordinator.restarts_used(play.state) == 1


def test_the_next_round_is_opened_before_anybody_has_stopped() -> None:
    play = running()
    play >> NodeFailed("a", 0, "rank 1 died")
    reason = "rank 1 died; restarting at once, restarts used 1 of 3"
    assert decisions(play) == (CycleEnded(0, ("a",)), Send("a", JoinAgain(1, reason)))
    began = CycleBegan(1, ("a",))
    play >> NodeJoined("a", 0) << (began, Send("a", StartCycle(Assignment(1, world_size=2), reason, 1)))


def test_one_fault_takes_one_unit_however_many_nodes_it_takes() -> None:
    play = running("a", "b", "c")
    play >> NodeFailed("b", 0, "rank 2 died")
    for node in ("a", "c"):
        play >> NodeFailed(node, 0, "connection lost")
        assert decisions(play) == ()
        assert [each.event.kind for each in play.of(Publish)] == ["fault_folded"]
    assert coordinator.restarts_used(play.state) == 1
    for node in ("a", "b", "c"):
        play >> NodeJoined(node, 0)
    assert len(cycles(play)) == 3


def test_a_cycle_waits_until_nobody_runs_the_last_one() -> None:
    play = running("a", "b")
    play >> NodeFailed("a", 0, "x")
    play >> NodeJoined("spare", -1) << ()
    play >> NodeJoined("a", 0) << ()
    play >> NodeJoined("b", 0)
    assert ordered(play, StartCycle) == ["a", "b"]


def test_what_an_older_cycle_reports_changes_nothing() -> None:
    play = running()
    play >> NodeFailed("a", 0, "x")
    play >> NodeJoined("a", 0)
    before = play.state
    for event in (NodeFailed("a", 0, "x"), NodeJoined("a", 0), NodeSucceeded("a", 0), NodeFailed("a", 7, "x")):
        play >> event << ()
    assert play.state == before


def test_a_fault_between_two_cycles_is_a_new_one() -> None:
    """A spawner that can't be started must not be retried indefinitely."""
    play = opened(max_restarts=2)
    for used in (1, 2):
        play >> NodeFailed("a", -1, "no python")
        again = JoinAgain(0, f"no python; restarting at once, restarts used {used} of 2")
        assert decisions(play)[0] == Send("a", again)
    play >> NodeFailed("a", -1, "no python")
    verdict = Verdict(JobState.FAILED, 1, "no python; restarts used 2 of 2")
    assert decisions(play) == (Send("a", WindDown(verdict.reason, verdict=verdict)),)
    assert concluded(play) == verdict


def test_no_spare_steps_in_while_something_of_the_last_cycle_is_left() -> None:
    """Ranks that react to SIGTERM late still train and write checkpoints."""
    play = running("a", "b")
    play >> NodeJoined("spare", -1) << ()
    play >> NodeSucceeded("b", 0)
    play >> NodeFailed("a", 0, "rank 0 died")
    play >> NodeJoined("a", 0) << ()
    play >> NodeJoined("b", 0)
    assert ordered(play, StartCycle) == ["a", "b"]
    play >> NodeFailed("b", 1, "rank 2 died")
    play >> NodeJoined("a", 1) << ()
    play >> NodeDown("b", 0) << ()
    play >> NodeDown("b", 1)
    assert ordered(play, StartCycle) == ["a", "spare"]


def test_a_node_that_lost_its_spawner_while_it_was_ready_is_not_ready() -> None:
    play = opened(2, policy=RestartPolicyName.MIN_HEALTHY)
    for node in ("c", "b", "a"):
        play >> NodeJoined(node, -1)
    play >> NodeFailed("b", 0, "rank 0 died")
    play >> NodeJoined("b", 0)
    play >> NodeFailed("b", 0, "the spawner was lost")
    play >> NodeDown("b", 0)
    assert ordered(play, StartCycle) == []
    play >> NodeJoined("c", 0)
    assert ordered(play, StartCycle) == ["a", "c"]


def test_a_node_that_wants_no_restart_is_heard_though_its_fault_belongs_to_another() -> None:
    play = running("a", "b")
    play >> NodeFailed("a", 0, "rank 0 died")
    play >> NodeFailed("b", 0, "Holdfast hit a defect of its own", restart_allowed=False)
    assert concluded(play) == Verdict(JobState.FAILED, 1, "Holdfast hit a defect of its own")


def test_a_node_that_ends_the_job_by_itself_ends_it_everywhere() -> None:
    """Its report has crossed the order of a new cycle, so it is fenced."""
    play = running("a", "b")
    play >> NodeFailed("a", -1, "Holdfast hit a defect of its own", restart_allowed=False) << ()
    play >> NodeStopped("a", all_succeeded=False) << ()
    play >> VerdictTaken("a")
    assert ordered(play, WindDown) == ["a", "b"]
    play >> NodeStopped("b", all_succeeded=False)
    (verdict,) = {each.order.verdict for each in play.of(Send)}
    assert verdict.reason == "node a has given up the job"


GIVEN_UP = (
    NodeFailed("c", 0, "Holdfast hit a defect of its own", restart_allowed=False),
    NodeStopped("c", all_succeeded=False),
    VerdictTaken("c"),
)


@pytest.mark.parametrize("reports", [GIVEN_UP, GIVEN_UP[1:]])
@pytest.mark.parametrize("is_open", [False, True])
def test_a_spare_that_ran_an_older_cycle_and_ends_the_job_by_itself_ends_it_nowhere_else(
    reports: tuple[Event, ...], is_open: bool
) -> None:
    play = opened(2) >> NodeJoined("c", -1) >> NodeJoined("b", -1) >> NodeJoined("a", -1)
    play >> NodeCordoned("c", "a bad fan") >> NodeFailed("b", 0, "rank 0 died")
    play >> NodeJoined("c", 0) >> NodeJoined("b", 0) >> NodeCordoned("c", "")
    assert (play.state.cycle, play.state.parts) == (1, ("a", "b"))
    assert (play.state.members["c"].cycle, play.state.members["c"].state) == (0, MemberState.JOINED)
    if is_open:
        play >> NodeFailed("b", 1, "rank 0 died")
    for report in reports:
        play >> report
        assert ordered(play, WindDown) == []
    assert play.state.members["c"].state is MemberState.REFUSED
    if is_open:
        play >> NodeJoined("a", 1) >> NodeJoined("b", 1)
        assert ordered(play, StartCycle) == ["a", "b"]


def test_a_delay_is_waited_for_once_and_ends_by_itself() -> None:
    play = running(backoff_base_s=4.0, max_no_progress_cycles=0, max_restarts=9)
    for cycle in range(5):
        play >> NodeFailed("a", cycle, "x")
        play >> NodeJoined("a", cycle)
        assert cycles(play)
    play.at(3.0) >> NodeFailed("a", 5, "x")
    assert coordinator.next_deadline_s(play.state) == 7.0
    play >> NodeJoined("a", 5) << ()
    play.at(6.9) >> DeadlineReached() << ()
    play.at(7.0) >> DeadlineReached()
    assert [part.cycle for _, part in cycles(play)] == [6]
    assert coordinator.next_deadline_s(play.state) is None


def test_a_delay_holds_back_new_spawners_too() -> None:
    play = opened(max_restarts=9)
    for _ in range(5):
        play >> NodeFailed("a", -1, "no python")
    play >> NodeFailed("a", -1, "no python")
    assert decisions(play) == ()
    assert coordinator.next_deadline_s(play.state) == 0.5
    play.at(0.5) >> DeadlineReached()
    assert ordered(play, JoinAgain) == ["a"]
    assert (coordinator.next_deadline_s(play.state) or 0.0) > play.state.rules.rendezvous.join_timeout_s, (
        "nobody is waited for without end"
    )


def test_a_person_restarts_without_a_unit() -> None:
    play = running()
    play >> RestartAsked("new code")
    assert ordered(play, JoinAgain) == ["a"]
    play >> NodeJoined("a", 0)
    assert cycles(play)
    assert coordinator.restarts_used(play.state) == 0


def test_success_needs_every_node() -> None:
    play = running("a", "b")
    play >> NodeSucceeded("b", 0)
    assert decisions(play) == ()
    play >> NodeSucceeded("b", 0) << ()
    play >> NodeSucceeded("a", 0)
    assert ordered(play, WindDown) == ["a", "b"]
    assert concluded(play) == Verdict(JobState.SUCCEEDED, 0, "all ranks exited with code 0")


def test_a_node_that_was_done_runs_again_when_another_fails() -> None:
    play = running("a", "b")
    play >> NodeSucceeded("b", 0)
    play >> NodeFailed("a", 0, "x")
    play >> NodeJoined("a", 0) << ()
    play >> NodeJoined("b", 0)
    assert len(cycles(play)) == 2


def test_an_excluded_node_is_missed_at_its_next_fault() -> None:
    play = running()
    play >> NodeExcluded("a", "rank 1 asked to exclude node a: bad link") << ()
    play >> NodeFailed("a", 0, "rank 0 died")
    reason = "rank 0 died; rank 1 asked to exclude node a: bad link; 0 nodes are left where 1 is needed"
    assert concluded(play) == Verdict(JobState.FAILED, 1, reason)


def test_a_rank_that_shuts_the_job_down_gives_its_exit_code_though_an_excluded_node_leaves_too_few() -> None:
    play = running("a", "b")
    play >> NodeExcluded("a", "bad link") << ()
    play >> NodeFailed("b", 0, "rank 2 asked to shut the workload down", restart_allowed=False, exit_code=93)
    reason = "rank 2 asked to shut the workload down; bad link; 1 node is left where 2 are needed"
    assert concluded(play) == Verdict(JobState.FAILED, 93, reason)


def test_an_excluded_node_is_replaced_by_a_spare() -> None:
    play = running("a", "b")
    play >> NodeJoined("c", -1)
    play >> NodeExcluded("a", "bad link") << ()
    play >> NodeFailed("a", 0, "x")
    play >> NodeJoined("a", 0)
    assert ordered(play, Conclude) == ["a"], "it ends for itself"
    play >> NodeJoined("b", 0)
    assert ordered(play, StartCycle) == ["b", "c"]
    play >> VerdictTaken("a") << ()
    assert ordered(play >> StopAsked("enough", 0), WindDown) == ["b", "c"]


def test_a_node_that_is_unfit_at_the_start_leaves_alone_and_the_round_stays_open() -> None:
    play = Playbook(coordinator.step, coordinator.initial_state("job"), jitter=0.0)
    rules = JobRules("job", 2, restart=RestartRules(min_nodes=2), rendezvous=RendezvousRules(max_nodes=3))
    play >> JobOpened("a", rules)
    play >> JobOpened("b", rules)
    play >> NodeExcluded("b", "node b is unhealthy")
    (said,) = [each.order.verdict for each in play.of(Send) if isinstance(each.order, Conclude)]
    assert (said.exit_code, said.reason) == (0, "node b is unhealthy; the job goes on without it")
    for node in ("a", "c"):
        play >> JobOpened(node, rules)
        play >> NodeJoined(node, -1)
    play.at(5.0) >> DeadlineReached()
    assert play.state.parts == ("a", "c")


def test_an_unfit_leader_stays_to_lead_and_takes_no_part() -> None:
    play = Playbook(coordinator.step, coordinator.initial_state("job", leader="a"), jitter=0.0)
    rules = JobRules("job", 2, restart=RestartRules(min_nodes=2), rendezvous=RendezvousRules(max_nodes=3))
    for node in ("a", "b", "c"):
        play >> JobOpened(node, rules)
    play >> NodeExcluded("a", "node a is unhealthy") << ()
    for node in ("a", "b", "c"):
        play >> NodeJoined(node, -1)
    play.at(5.0) >> DeadlineReached()
    assert play.state.parts == ("b", "c")
    for node in ("b", "c"):
        play >> NodeSucceeded(node, 0)
    for node in ("a", "b", "c"):
        play >> NodeStopped(node, all_succeeded=node != "a")
    ends = {each.node: each.order.verdict for each in play.of(Send) if isinstance(each.order, Conclude)}
    assert {node: (each.state, each.exit_code) for node, each in ends.items()} == {
        "a": (JobState.SUCCEEDED, 0), "b": (JobState.SUCCEEDED, 0), "c": (JobState.SUCCEEDED, 0),
    }  # fmt: skip


def test_a_leader_that_was_excluded_too_late_to_be_left_out_ends_as_the_job_does() -> None:
    play = running("a", "b")
    play >> NodeExcluded("a", "rank 1 asked to exclude node a") << ()
    for node in ("a", "b"):
        play >> NodeSucceeded(node, 0)
    for node in ("a", "b"):
        play >> NodeStopped(node, all_succeeded=True)
    assert concluded(play).exit_code == 0


@pytest.mark.parametrize("nodes", [("a",), ("a", "b", "c")])
def test_min_healthy_restarts_a_group_that_has_no_node_to_spare(nodes: tuple[str, ...]) -> None:
    play = running(*nodes, policy=RestartPolicyName.MIN_HEALTHY)
    play >> NodeFailed("a", 0, "x")
    assert ordered(play, JoinAgain)


def test_a_spare_that_fails_takes_no_unit() -> None:
    play = running()
    play >> NodeJoined("b", -1)
    play >> NodeFailed("b", -1, "its spawner was lost")
    assert decisions(play) == ()
    assert coordinator.restarts_used(play.state) == 0


def test_nodes_that_do_not_join_are_not_waited_for_without_end() -> None:
    play = running("a", "b")
    play.at(10.0) >> NodeFailed("a", 0, "x")
    play >> NodeJoined("a", 0) << ()
    said = until_the_round_is_given_up(play)
    assert said[0] == (
        "1 of 2 nodes have joined (a); workers of the last cycle may still run on b; "
        "the job ends if this lasts another 890 s"
    )
    assert len(said) == 6, "ever more rarely"
    assert play.now_s == 10.0 + 15.0 + 900.0
    assert ordered(play, WindDown) == ["a", "b"]
    assert concluded(play).reason == (
        "x; restarting at once, restarts used 1 of 3; the nodes for the next cycle did not join in time: "
        "1 of 2 nodes have joined (a); workers of the last cycle may still run on b"
    )


def test_the_other_nodes_learn_where_the_store_is() -> None:
    play = running("a", "b", "c")
    play >> StoreServed("a", 0, "a.cluster", 29500)
    use = UseStore(0, "a.cluster", 29500)
    assert play.last == (Send("b", use), Send("c", use))
    play >> StoreServed("a", 7, "a.cluster", 1) << ()


@pytest.mark.parametrize("again", [False, True])
def test_the_failure_that_came_first_on_any_node_is_named_at_a_restart(again: bool) -> None:
    """Also if a node has another fault before the others have joined."""
    play = running("a", "b")
    play >> NodeFailed("a", 0, "rank 0 lost its peer", first_failure="rank 0 lost its peer")
    play >> NodeJoined("a", 0, Cause("rank 0 lost its peer", 0.5))
    if again:
        play >> NodeFailed("a", 0, "its spawner was lost") >> NodeJoined("a", 0)
        assert coordinator.restarts_used(play.state) == 2
    play >> NodeJoined("b", 0, Cause("rank 3 raised", 2.0))
    assert [each.event.reason for each in play.of(Publish)] == [
        "rank 3 raised; it came before what was seen first: rank 0 lost its peer"
    ]
    assert ordered(play, StartCycle) == ["a", "b"]
