"""When does a round close? With enough of the right nodes, a last call for others, and a message about missing ones."""

# pyright: reportUnusedExpression=false
from __future__ import annotations

import msgspec
import pytest

from supervisor.core.cluster import coordinator
from supervisor.core.cluster.cluster_messages import (
    DeadlineReached,
    JobOpened,
    NodeCordoned,
    NodeDown,
    NodeExcluded,
    NodeFailed,
    NodeJoined,
    NodeLost,
    NodeStopped,
    Publish,
    RestartAsked,
    Send,
    StopAsked,
    VerdictTaken,
)
from supervisor.core.cluster.coordinator_states import WindingDown
from supervisor.core.facts import JobRules, NodeFacts, RendezvousRules, RestartRules, Verdict
from supervisor.core.orders import Conclude, JoinAgain, StartCycle, WindDown
from supervisor.core.stop_verdict import STOP_FOLLOWS_S
from tests.core.playbook import Playbook

Play = Playbook[coordinator.State]


def job(min_nodes: int, max_nodes: int, **rendezvous: object) -> JobRules:
    return JobRules(
        "job",
        2,
        restart=RestartRules(max_restarts=9, min_nodes=min_nodes),
        rendezvous=RendezvousRules(max_nodes, **rendezvous),  # pyright: ignore[reportArgumentType]
    )


def playing(rules: JobRules, *nodes: str) -> Play:
    play: Play = Playbook(coordinator.step, coordinator.initial_state("job"), jitter=0.0)
    return come(play, rules, *nodes)


def come(play: Play, rules: JobRules, *nodes: str) -> Play:
    """Nodes open the job and join. "c@X" is in the NVLink domain X."""
    for name in nodes:
        node, _, domain = name.partition("@")
        facts = NodeFacts(ord(node), domain=domain)
        play >> JobOpened(node, msgspec.structs.replace(rules, facts=facts)) >> NodeJoined(node, -1)
    return play


def ordered(play: Play) -> str:
    return "".join(each.node for each in play.of(Send) if isinstance(each.order, StartCycle))


def said(play: Play, kind: str) -> list[str]:
    return [each.event.reason for each in play.of(Publish) if each.event.kind == kind]


def pass_deadline(play: Play) -> Play:
    due_s = coordinator.next_deadline_s(play.state)
    assert due_s is not None
    return play.at(due_s) >> DeadlineReached()


# --- the last call -------------------------------------------------------------------------------------------------


def test_a_job_of_a_fixed_size_begins_at_once() -> None:
    assert ordered(playing(job(2, 2), "b", "a")) == "ab"


def test_the_first_round_waits_a_moment_for_nodes_that_come_before_others() -> None:
    rules = job(2, 4)
    play = playing(rules, "c", "d")
    assert ordered(play) == ""
    come(play.at(0.5), rules, "a")
    assert ordered(play) == ""
    assert coordinator.next_deadline_s(play.state) == 1.0, "a newcomer does not extend it"
    assert ordered(pass_deadline(play)) == "ac"
    assert said(play, "nodes_placed") == ["cycle 0 runs on a, c; spare: d"]


def test_the_first_round_closes_at_once_when_all_have_come() -> None:
    play = playing(job(2, 3), "c", "b", "a")
    assert (ordered(play), play.now_s) == ("ab", 0.0)


def test_more_nodes_than_asked_for_wait_as_spares() -> None:
    rules = job(2, 3)
    play = come(playing(rules, "a", "b", "c"), rules, "d", "e")
    assert play.last == ()
    play >> NodeLost("a", "x") >> NodeJoined("b", 0)
    assert ordered(play) == "bc"


def test_a_last_call_ends_if_there_are_too_few_again() -> None:
    rules = job(2, 3)
    play = playing(rules, "a", "b")
    play.at(0.5) >> NodeLost("b", "x")
    play.at(1.0) >> DeadlineReached() << ()
    come(play.at(5.0), rules, "c")
    assert coordinator.next_deadline_s(play.state) == 6.0
    assert ordered(pass_deadline(play)) == "ac"


def test_a_node_of_the_last_cycle_is_preferred_to_a_spare_for_a_moment() -> None:
    """It has lost its spawner and is back soon; if no node is coming, there is no wait."""
    rules = job(2, 3)
    for comes_back in (True, False):
        play = playing(rules, "a", "b", "c")
        play >> NodeFailed("a", 0, "its spawner was lost") >> NodeDown("a", 0) >> NodeJoined("b", 0)
        assert ordered(play) == ""
        if comes_back:
            play.at(0.4) >> NodeJoined("a", 0)
            assert ordered(play) == "ab"
        else:
            assert ordered(pass_deadline(play)) == "bc"
            assert said(play, "nodes_placed") == ["cycle 1 runs on b, c (c in; a out)"]


def test_a_restart_with_all_nodes_there_waits_for_nobody() -> None:
    play = playing(job(2, 3), "a", "b", "c")
    play >> NodeFailed("a", 0, "x") >> NodeJoined("a", 0) >> NodeJoined("b", 0)
    assert ordered(play) == "ab"


# --- what is missing -----------------------------------------------------------------------------------------------


def test_the_wrong_nodes_are_told_of_at_once_and_waited_for() -> None:
    rules = job(2, 4, segment=2, join_timeout_s=60.0)
    play = playing(rules, "a@X", "b@Y")
    assert said(play, "rendezvous_waits") == [
        "2 of 2 nodes have joined; 0 of 1 segments of 2 nodes are complete; "
        "NVLink domain X has 1 node and lacks 1, Y has 1 node and lacks 1; the job ends if this lasts another 60 s"
    ]
    come(play, rules, "c@Z")
    assert play.last == (), "once is enough"
    come(play, rules, "d@Y")
    assert ordered(play) == "bd"


def test_an_infeasible_round_ends_with_what_is_missing() -> None:
    play = playing(job(2, 2, segment=2, join_timeout_s=5.0), "a@X", "b")
    while not play.of(Send):
        pass_deadline(play)
    (text,) = {each.order.reason for each in play.of(Send) if isinstance(each.order, WindDown)}
    assert text == (
        "first start; the nodes for the next cycle did not join in time: 2 of 2 nodes have joined; "
        "0 of 1 segments of 2 nodes are complete; NVLink domain X has 1 node and lacks 1; "
        "node b is in no NVLink domain that is known (check nvidia-smi -q or write --rdzv-conf nvlink_domain=NAME)"
    )


def test_the_join_timeout_is_the_configured_one() -> None:
    play = playing(job(2, 2, join_timeout_s=3.0), "a")
    assert coordinator.next_deadline_s(play.state) == 3.0, "no workers have to stop before a first start"
    come(play, job(2, 2, join_timeout_s=3.0), "b")
    play >> NodeLost("b", "x")
    assert coordinator.next_deadline_s(play.state) == 15.0 + 3.0


def test_a_lost_node_is_replaced_by_one_that_comes_later() -> None:
    rules = job(2, 2)
    play = playing(rules, "a", "b")
    play >> NodeLost("b", "x") >> NodeJoined("a", 0)
    assert ordered(play) == ""
    come(play.at(300.0), rules, "z")
    assert ordered(play) == "az"
    assert coordinator.restarts_used(play.state) == 1


# --- order and size ------------------------------------------------------------------------------------------------


def test_a_spare_steps_in_in_the_infrastructures_order_unless_ranks_are_kept() -> None:
    for keeps, expected in ((False, "bcd"), (True, "dbc")):
        play = playing(job(3, 4, keep_ranks=keeps), "a", "b", "c", "d")
        play >> NodeLost("a", "x") >> NodeJoined("b", 0) >> NodeJoined("c", 0)
        assert ordered(play) == expected


def test_an_elastic_job_takes_who_is_there_and_a_latecomer_at_the_next_restart() -> None:
    rules = job(2, 4, elastic=True)
    play = playing(rules, "a", "b", "c")
    assert ordered(pass_deadline(play)) == "abc"
    come(play.at(60.0), rules, "d", "e")
    assert play.last == (), "a spare never interrupts training"
    play >> RestartAsked("more nodes")
    for node in "abc":
        play >> NodeJoined(node, 0)
    assert ordered(play) == "abcd"
    for lost in "acd":
        play >> NodeLost(lost, "x")
    play >> NodeJoined("b", 1)
    assert ordered(play) == "be"


def test_an_elastic_job_shrinks_by_whole_segments() -> None:
    rules = job(2, 5, elastic=True, segment=2)
    play = playing(rules, "a@X", "b@X", "c@Y", "d@Y", "e@X")
    assert ordered(play) == "abcd"
    play >> NodeLost("b", "x") >> NodeLost("e", "x")
    for node in "acd":
        play >> NodeJoined(node, 0)
    assert ordered(play) == "cd"


def test_a_job_goes_on_without_excluded_nodes_while_there_may_be_enough() -> None:
    play = playing(job(2, 3), "a", "b", "c")
    play >> NodeExcluded("a", "rank 0 asked to exclude node a") >> NodeFailed("a", 0, "x")
    play >> NodeJoined("a", 0) >> NodeJoined("b", 0)
    assert ordered(play) == "bc"
    play >> NodeExcluded("b", "rank 0 asked to exclude node b") >> NodeFailed("b", 1, "x")
    (order, *_) = {each.order for each in play.of(Send)}
    assert isinstance(order, WindDown)
    assert order.reason.endswith("1 node is left where 2 are needed")


def test_a_job_whose_round_an_excluded_node_leaves_with_too_few_names_the_fault_that_opened_it() -> None:
    play = playing(job(2, 2), "a", "b") >> NodeFailed("a", 0, "rank 0 raised", first_failure="rank 0 raised")
    play >> NodeExcluded("b", "its disk is broken")
    assert isinstance(play.state.phase, WindingDown)
    assert isinstance(play.state.phase.outcome, Verdict)
    fault = "rank 0 raised; restarting at once, restarts used 1 of 9"
    assert play.state.phase.outcome.reason == f"{fault}; its disk is broken; 1 node is left where 2 are needed"


# --- refusals ------------------------------------------------------------------------------------------------------


def test_a_duplicate_rank_is_the_newcomers_error_alone() -> None:
    rules = job(2, 3)
    play = playing(rules, "a", "b")
    play >> JobOpened("x", msgspec.structs.replace(rules, facts=NodeFacts(ord("a"), "SLURM_PROCID")))
    (refused,) = play.of(Send)
    assert (refused.node, type(refused.order)) == ("x", Conclude)
    assert said(play, "node_refused") == [
        "node x has SLURM_PROCID 97, and so has node a of the job; give each node its own, or none"
    ]
    play >> NodeJoined("x", -1) << ()  # its spawner was ready before it read that
    play >> NodeFailed("x", -1, "it ends") << ()
    play >> VerdictTaken("x") << ()
    assert ordered(pass_deadline(play)) == "ab"


def test_the_leaders_own_rules_count_even_if_another_node_came_first() -> None:
    rules = job(1, 1)
    play: Play = Playbook(coordinator.step, coordinator.initial_state("job", leader="a"), jitter=0.0)
    play >> JobOpened("b", msgspec.structs.replace(rules, local_world_size=4)) >> NodeJoined("b", -1) << ()
    play >> JobOpened("a", rules)
    assert [each.node for each in play.of(Send) if isinstance(each.order, Conclude)] == ["b"]
    play >> NodeJoined("a", -1)
    assert ordered(play) == "a"


def test_a_refused_node_may_come_again_with_the_right_settings() -> None:
    rules = job(2, 2)
    play = playing(rules, "a")
    play >> JobOpened("b", msgspec.structs.replace(rules, local_world_size=4))
    come(play, rules, "b")
    assert ordered(play) == "ab"


# --- a node that fails and is not needed ---------------------------------------------------------------------------


def fail(play: Play, node: str, cycle: int = -1) -> Play:
    """A node loses its spawner, or cannot start one."""
    return play >> NodeFailed(node, cycle, f"no spawner on {node}") >> NodeDown(node, cycle)


def called_back(play: Play) -> list[str]:
    return [each.node for each in play.of(Send) if isinstance(each.order, JoinAgain)]


def test_a_spare_without_a_spawner_uses_no_restart() -> None:
    play = playing(job(2, 2), "a", "b", "c")
    play >> NodeDown("c", -1)
    play >> NodeFailed("a", 0, "rank 0 died")
    assert [called_back(fail(play, "c")) for _ in range(3)] == [["c"], [], []], "it has one more try"
    play >> NodeJoined("a", 0) >> NodeJoined("b", 0)
    assert ordered(play) == "ab"
    assert coordinator.restarts_used(play.state) == 1


def test_a_node_that_a_spare_replaces_may_lose_its_spawner_meanwhile() -> None:
    play = playing(job(2, 3), "a", "b", "c")
    play >> NodeFailed("a", 0, "the spawner was lost") >> NodeDown("a", 0)
    fail(fail(play, "a", 0), "a", 0)
    play >> NodeJoined("b", 0)
    assert ordered(play) == "bc", "it is not awaited"
    assert coordinator.restarts_used(play.state) == 1


def test_a_surplus_node_does_not_end_the_first_start() -> None:
    rules = msgspec.structs.replace(job(2, 3), restart=RestartRules(max_restarts=0, min_nodes=2))
    play = playing(rules, "a")
    for node in "bc":
        play >> JobOpened(node, rules)
    play >> NodeFailed("c", -1, "no python")
    assert said(play, "spare_failed") == ["node c, which cycle 0 does not need: no python"]
    play >> NodeDown("c", -1) >> NodeJoined("b", -1)
    assert ordered(pass_deadline(play)) == "ab"


@pytest.mark.parametrize("event", [NodeLost("a", "gone"), NodeCordoned("a", "hot"), NodeExcluded("a", "slow")])
@pytest.mark.parametrize("is_down", [True, False])
def test_a_node_that_was_not_needed_tries_again_once_it_is(event: object, is_down: bool) -> None:
    play = playing(job(2, 2), "a")
    play >> JobOpened("b", job(2, 2)) >> JobOpened("c", job(2, 2)) >> NodeFailed("c", -1, "no python")
    play >> NodeDown("c", -1) >> NodeFailed("c", -1, "no python")
    for each in (NodeDown("c", -1), event) if is_down else (event, NodeDown("c", -1)):
        play >> each
    assert [(each.node, each.order) for each in play.of(Send) if each.node != "a"] == [
        ("c", JoinAgain(0, "first start"))
    ]
    play >> NodeDown("c", -1) << ()
    play >> NodeFailed("c", -1, "no python")
    assert coordinator.restarts_used(play.state) == 1, "now it is needed"


def test_an_elastic_round_waits_a_moment_for_the_second_try_of_a_node() -> None:
    for fails_again in (False, True):
        play = playing(job(2, 3, elastic=True), "a", "b", "c")
        play >> NodeFailed("a", 0, "rank 0 died") >> NodeDown("c", 0)
        assert called_back(fail(play, "c", 0)) == ["c"]
        play >> NodeJoined("a", 0) >> NodeJoined("b", 0)
        assert ordered(play) == ""
        play >> NodeJoined("c", 0) if not fails_again else fail(play, "c", 0)
        assert ordered(play) == ("ab" if fails_again else "abc"), "nothing more is awaited"
        assert coordinator.restarts_used(play.state) == 1


def test_an_elastic_round_waits_a_moment_for_a_node_that_failed_in_the_last_one() -> None:
    play = playing(job(2, 3, elastic=True), "a", "b", "c")
    play >> NodeFailed("a", 0, "rank 0 died") >> NodeDown("c", 0)
    fail(fail(play, "c", 0), "c", 0) >> NodeJoined("a", 0) >> NodeJoined("b", 0)
    assert ordered(play) == "ab"
    play >> NodeFailed("a", 1, "rank 0 died")
    assert "c" in called_back(play)
    play >> NodeJoined("a", 1) >> NodeJoined("b", 1)
    assert ordered(play) == ""
    assert ordered(play >> NodeJoined("c", 0)) == "abc"


def test_an_elastic_round_does_not_wait_for_a_cordoned_node() -> None:
    play = playing(job(2, 3, elastic=True), "a", "b", "c")
    play >> NodeCordoned("c", "hot") >> NodeFailed("a", 0, "rank 0 died") >> NodeDown("c", 0)
    fail(play, "c", 0) >> NodeJoined("a", 0) >> NodeJoined("b", 0)
    assert ordered(play) == "ab"


def test_a_round_that_waits_for_a_node_has_those_that_were_not_needed_try_again() -> None:
    play = playing(job(2, 2), "a")
    play >> JobOpened("b", job(2, 2)) >> JobOpened("c", job(2, 2))
    fail(fail(play, "c"), "c")
    assert called_back(pass_deadline(play)) == ["c"]
    assert len(said(play, "rendezvous_waits")) == 1
    fail(fail(play, "c"), "c")
    assert called_back(pass_deadline(play)) == ["c"], "and again when people next learn of the wait"
    assert ordered(play >> NodeJoined("c", -1)) == "ac"
    assert coordinator.restarts_used(play.state) == 0


def test_two_nodes_are_not_set_aside_for_each_other() -> None:
    play = playing(job(2, 2), "a")
    play >> JobOpened("b", job(2, 2)) >> JobOpened("c", job(2, 2))
    fail(fail(play, "c"), "b")
    assert coordinator.restarts_used(play.state) == 1


# --- a fault that may be a stop ------------------------------------------------------------------------------------


def terminated() -> Play:
    """A rank was ended by SIGTERM, which nobody here has sent."""
    play = playing(job(2, 2), "a", "b")
    play >> NodeFailed("a", 0, "rank 0 was killed by SIGTERM", may_be_stop=True)
    assert said(play, "restart_decided") == []
    return play


def test_a_rank_that_a_scheduler_has_ended_with_the_job_is_no_restart() -> None:
    play = terminated() >> StopAsked("the launcher got SIGTERM", 15)
    assert said(play, "restart_decided") == []
    assert coordinator.restarts_used(play.state) == 0
    for node in "ab":
        play >> NodeStopped(node, all_succeeded=False)
        assert said(play, "restart_decided") == []
    assert {each.order.verdict.exit_code for each in play.of(Send) if isinstance(each.order, Conclude)} == {143}


def test_a_rank_that_is_ended_with_the_job_while_the_nodes_join_is_no_restart_either() -> None:
    play = terminated() >> NodeJoined("a", 0)
    play >> NodeFailed("a", 0, "rank 1 was killed by SIGTERM", may_be_stop=True)
    assert (coordinator.restarts_used(play.state), said(play, "restart_decided")) == (2, [])
    play >> StopAsked("the launcher got SIGTERM", 15)
    assert coordinator.restarts_used(play.state) == 0
    play = pass_deadline(terminated()) >> NodeJoined("a", 0)
    play >> NodeFailed("a", 0, "rank 1 was killed by SIGTERM", may_be_stop=True)
    play >> StopAsked("the launcher got SIGTERM", 15)
    assert coordinator.restarts_used(play.state) == 1, "people know of the first one"


def test_a_restart_that_never_came_about_is_none() -> None:
    play = terminated() >> NodeFailed("a", 0, "its spawner has ended", restart_allowed=False)
    assert said(play, "restart_decided") == []
    assert coordinator.restarts_used(play.state) == 0


def test_a_restart_after_such_an_end_is_told_once_it_begins_or_soon() -> None:
    play = terminated()
    play >> NodeJoined("a", 0)
    play >> NodeJoined("b", 0)
    assert ordered(play) == "ab", "it is not slowed"
    assert [text.endswith("at once, restarts used 1 of 9") for text in said(play, "restart_decided")] == [True]
    play = terminated()
    assert coordinator.next_deadline_s(play.state) == STOP_FOLLOWS_S
    assert len(said(pass_deadline(play), "restart_decided")) == 1
    play >> NodeJoined("a", 0) >> NodeJoined("b", 0)
    assert (ordered(play), said(play, "restart_decided")) == ("ab", [])
