"""Wrapped calls within cycles: which reports count, what does a new process cost, what does a tolerated node mean?"""

# pyright: reportUnusedExpression=false
from __future__ import annotations

import msgspec

from supervisor.core.cluster import coordinator
from supervisor.core.cluster.cluster_messages import (
    CallReport,
    JobOpened,
    NodeFailed,
    NodeJoined,
    NodeStopped,
    NodeSucceeded,
    Publish,
    Send,
)
from supervisor.core.facts import JobRules, RestartPolicyName, RestartRules
from supervisor.core.orders import Conclude, ReplaceRanks, TellMembers
from supervisor.core.wrapped_calls.call_messages import (
    BeginIteration,
    CallEnter,
    CallSettings,
    Entered,
    Interrupt,
    Interruption,
    IterationBegan,
    Lost,
    Told,
    Word,
)
from tests.core.playbook import Playbook


def running(*nodes: str, **rules: object) -> Playbook[coordinator.State]:
    restart = RestartRules(**({"max_restarts": 1, "min_nodes": len(nodes)} | rules))  # pyright: ignore[reportArgumentType]
    play = Playbook(coordinator.step, coordinator.initial_state("job"), jitter=0.0)
    play >> JobOpened(nodes[0], JobRules("job", 2, restart=restart))
    for node in nodes:
        play >> NodeJoined(node, -1)
    return play


def told(play: Playbook[coordinator.State]) -> list[TellMembers]:
    return [each.order for each in play.of(Send) if isinstance(each.order, TellMembers)]


def report(node: str, *told: tuple[int, Word], cycle: int = 0) -> CallReport:
    return CallReport(node, cycle, tuple(Told(member, word) for member, word in told))


def entered(play: Playbook[coordinator.State], *nodes: str) -> Playbook[coordinator.State]:
    size = 2 * len(nodes)
    for place, node in enumerate(nodes):
        members = (2 * place, 2 * place + 1)
        play >> report(node, *((member, CallEnter(1, member, size, CallSettings())) for member in members))
    assert {each.order for each in told(play)} == {Entered(1)}
    for place, node in enumerate(nodes):
        members = (2 * place, 2 * place + 1)
        play >> report(node, *((member, IterationBegan(1, 0, member, size, member, size)) for member in members))
    return play


KILLED = Lost(Interruption.TERMINATED, "was killed by SIGKILL", failed=True)


def test_the_ranks_of_all_nodes_make_one_call() -> None:
    play = entered(running("a", "b"), "a", "b")
    play >> report("b", (3, KILLED))
    interrupted = [each for each in told(play) if isinstance(each.order, Interrupt)]
    assert {member for each in interrupted for member in each.members} == {0, 1, 2}


def test_a_new_process_takes_a_unit_and_its_event_names_the_iteration() -> None:
    play = entered(running("a"), "a") >> report("a", (1, KILLED))
    (order,) = [each.order for each in play.of(Send) if isinstance(each.order, ReplaceRanks)]
    assert (order.cycle, order.members) == (0, (1,))
    assert coordinator.restarts_used(play.state) == 1
    assert coordinator.current_iteration(play.state) == 0
    kinds = {each.event.kind: each.event for each in play.of(Publish)}
    assert kinds["rank_replaced"].reason.endswith("a new process takes its place, restarts used 1 of 1")


def test_reports_of_another_cycle_change_nothing() -> None:
    play = running("a") >> report("a", (0, CallEnter(1, 0, 2, CallSettings())), cycle=3) << ()
    play >> NodeFailed("a", 0, "rank 0 failed")
    play >> report("a", (0, CallEnter(1, 0, 2, CallSettings()))) << ()


def test_a_node_that_min_healthy_lets_go_is_lost_to_the_call() -> None:
    play = entered(running("a", "b", policy=RestartPolicyName.MIN_HEALTHY), "a", "b")
    rules = msgspec.structs.replace(play.state.policy.rules, min_nodes=1)
    play.state = msgspec.structs.replace(play.state, policy=msgspec.structs.replace(play.state.policy, rules=rules))
    play >> NodeFailed("b", 0, "node b: the store failed")
    assert [each.event.kind for each in play.of(Publish)][:1] == ["fault_tolerated"]
    (order,) = told(play)
    assert (order.members, type(order.order)) == ((0, 1), Interrupt)


def test_the_verdict_names_who_was_lost_on_the_way() -> None:
    play = entered(running("a"), "a") >> NodeSucceeded("a", 0, (1,))
    play >> NodeStopped("a", all_succeeded=False)
    (verdict,) = [each.order for each in play.of(Send) if isinstance(each.order, Conclude)]
    assert verdict.verdict.reason.endswith("the job went on without rank 1")


def test_the_deadline_of_a_call_is_the_coordinators() -> None:
    play = entered(running("a", max_restarts=0), "a").at(7.0) >> report("a", (1, KILLED))
    assert coordinator.next_deadline_s(play.state) == 8.0
    assert [type(each.order) for each in told(play)] == [Interrupt]
    assert BeginIteration not in {type(each.order) for each in told(play)}
