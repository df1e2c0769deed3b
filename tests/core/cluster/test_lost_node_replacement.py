"""A node is lost while its ranks are in a wrapped call: do the others continue, with whose ranks, at what cost?"""

# pyright: reportUnusedExpression=false
from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
import pytest

from supervisor.core.cluster import coordinator, leader_takeover, lost_node_replacement, node_states
from supervisor.core.cluster.cluster_messages import (
    CallReport,
    JobOpened,
    NodeExcluded,
    NodeFailed,
    NodeJoined,
    NodeLost,
    NodeStopped,
    NodeSucceeded,
    Publish,
    Send,
    StoreServed,
)
from supervisor.core.cluster.coordinator_states import Running, State
from supervisor.core.cluster.node_states import Member, MemberState
from supervisor.core.facts import Assignment, JobRules, NodeFacts, RendezvousRules, RestartPolicyName
from supervisor.core.orders import (
    Conclude,
    JoinAgain,
    ReplaceRanks,
    SettleCall,
    StartCycle,
    TellMembers,
    UseStore,
    WindDown,
)
from supervisor.core.wrapped_calls.call_messages import (
    Barrier,
    BarrierArrive,
    BeginIteration,
    CallEnter,
    CallLeave,
    CallSettings,
    CallUnderway,
    Committed,
    Entered,
    FaultsReported,
    Interrupt,
    IterationBegan,
    Leaving,
    Restart,
    Stage,
    Told,
    Word,
)
from tests.core.cluster.test_coordinator_calls import KILLED, entered, report, running, told
from tests.core.new_leader import IN_CYCLE_4, RULES, kinds, new_leader, of_nodes, orders_to, stands
from tests.core.playbook import Playbook

Play = Playbook[coordinator.State]
LOST = NodeLost("b", "node b is lost: nothing was heard for 5 s")


def call(*nodes: str, **rules: object) -> Play:
    """The ranks of all nodes are in iteration 0."""
    play = running(*nodes, **rules)
    play >> StoreServed(nodes[0], 0, "10.0.0.1", 29500)
    return entered(play, *nodes)


def spare(play: Play, node: str) -> Play:
    rules = play.state.rules
    play >> JobOpened(node, rules)
    return play >> NodeJoined(node, -1)


def all_say(play: Play, ranks: Iterable[int], make: Callable[[int], Word]) -> Play:
    """Lets each of these ranks send a message through its node."""
    for rank in ranks:
        play >> report(play.state.parts[rank // 2], (rank, make(rank)))
    return play


def arrive(play: Play, *ranks: int, iteration: int = 0) -> Play:
    all_say(play, ranks, lambda _: FaultsReported(1, iteration))
    return all_say(play, ranks, lambda rank: BarrierArrive(1, iteration, Barrier.ITERATION, rank, active=True))


def orders(play: Play, kind: type) -> list[tuple[str, object]]:
    return [(each.node, each.order) for each in play.of(Send) if isinstance(each.order, kind)]


def enter(rank: int, size: int) -> Word:
    return CallEnter(1, rank, size, CallSettings())


def test_an_excluded_node_that_has_gone_costs_the_others_no_replacement() -> None:
    play = spare(call("a", "b"), "c") >> NodeExcluded("b", "rank 2 asked to exclude node b")
    play >> report("a", (1, KILLED))
    assert not orders(play, ReplaceRanks), "the next cycle begins without node b"
    play = spare(call("a", "b"), "c") >> NodeExcluded("b", "rank 2 asked to exclude node b") >> LOST
    assert [node for node, _ in orders(play, StartCycle)] == ["c"]
    play = spare(call("a", "b", max_restarts=2), "c") >> NodeExcluded("b", "rank 2 asked to exclude node b")
    play >> NodeFailed("b", 0, "rank 2 failed") >> NodeJoined("b", 0) >> NodeJoined("a", 0)
    assert play.state.parts == ("a", "c")
    play >> report("a", *((each, enter(each, 4)) for each in (0, 1)), cycle=1)
    play >> report("c", *((each, enter(each, 4)) for each in (2, 3)), cycle=1)
    play >> report("c", (3, KILLED), cycle=1)
    ((node, order),) = orders(play, ReplaceRanks)
    assert isinstance(order, ReplaceRanks)
    assert (node, order.members) == ("c", (3,))


def test_without_a_spare_the_survivors_go_on_with_fewer_ranks_and_no_unit_is_taken() -> None:
    play = call("a", "b", "c") >> LOST
    assert {(node, order) for node, order in orders(play, TellMembers)} == {
        ("a", TellMembers(0, (0, 1), Interrupt(1, 0))),
        ("c", TellMembers(0, (4, 5), Interrupt(1, 0))),
    }
    play.lacks(StartCycle)
    assert not orders(play, JoinAgain)
    (kind,) = [each.event for each in play.of(Publish) if each.event.kind == "node_lost"]
    assert kind.reason == f"{LOST.reason}; the wrapped call goes on without it"
    (interrupted,) = [each.event for each in play.of(Publish) if each.event.kind == "iteration_interrupted"]
    assert "rank 2 was lost: node b is lost: nothing was heard for 5 s; rank 3 was lost" in interrupted.reason
    arrive(play, 0, 1, 4, 5)
    assert {each.order for each in told(play)} == {BeginIteration(1, 1, 6, (2, 3))}
    assert coordinator.restarts_used(play.state) == 0


def test_a_spare_takes_the_part_of_the_lost_node_in_the_same_cycle_for_one_unit() -> None:
    play = spare(call("a", "b"), "c") >> LOST
    assert orders(play, StartCycle) == [
        ("c", StartCycle(Assignment(0, 1, 2, 4, 2), play.of(Send)[0].order.reason, 1, is_running=True))
    ]
    assert orders(play, UseStore) == [("c", UseStore(0, "10.0.0.1", 29500))]
    assert not orders(play, ReplaceRanks)
    assert play.state.parts == ("a", "c")
    assert coordinator.restarts_used(play.state) == 1
    arrive(play, 0, 1)
    assert not told(play), "the new processes are waited for"
    play >> report("c", (2, enter(2, 4)), (3, enter(3, 4)))
    begun = {type(each.order): each for each in told(play)}
    assert begun[BeginIteration].order == BeginIteration(1, 1, 4, ())
    assert begun[Entered].members == (2, 3)
    all_say(play, range(4), lambda rank: IterationBegan(1, 1, rank, 4, rank, 4))
    all_say(play, range(4), lambda rank: BarrierArrive(1, 1, Barrier.COMPLETION, rank, active=True))
    assert [node for node, _ in orders(play, SettleCall)] == ["a", "c"]


def test_the_spare_of_group_rank_0_serves_a_store_itself() -> None:
    play = spare(call("a", "b"), "c") >> NodeLost("a", "node a is lost")
    assert [node for node, _ in orders(play, StartCycle)] == ["c"]
    assert not orders(play, UseStore)


def test_a_spare_that_comes_in_a_later_iteration_waits_for_the_next_one() -> None:
    play = arrive(call("a", "b") >> LOST, 0, 1)
    spare(play, "c")
    assert [node for node, _ in orders(play, StartCycle)] == ["c"]
    assert coordinator.restarts_used(play.state) == 1
    play >> report("c", (2, enter(2, 4)), (3, enter(3, 4)))
    assert {each.order for each in told(play)} == {CallUnderway(1)}
    play >> NodeFailed("c", 0, "rank 2 failed")  # before it took part: the others continue
    assert not orders(play, JoinAgain)
    assert "replacement_lost" in {each.event.kind for each in play.of(Publish)}


def test_a_spare_is_not_used_without_a_budget() -> None:
    play = spare(call("a", "b", max_restarts=0), "c") >> LOST
    assert not orders(play, StartCycle)
    arrive(play, 0, 1)
    assert {each.order for each in told(play)} == {BeginIteration(1, 1, 4, (2, 3))}


def test_a_lost_node_that_comes_back_takes_its_part_again() -> None:
    play = arrive(call("a", "b") >> LOST, 0, 1)
    spare(play, "b")
    assert [node for node, _ in orders(play, StartCycle)] == ["b"]


def replaced(**rules: object) -> Play:
    """Node c, which had taken the part of the lost node b, has failed before it took part in the call."""
    play = spare(arrive(call("a", "b", **({"max_restarts": 2} | rules)) >> LOST, 0, 1), "c")
    return play >> NodeFailed("c", 0, "rank 2 failed")


def tolerated(node: str, *nodes: str, min_nodes: int = 1, enters: bool = True) -> Play:
    """A fault of this node leaves enough healthy ones. `enters`: their ranks are in a wrapped call."""
    begin = call if enters else running
    play = begin(*(nodes or ("a", "b")), policy=RestartPolicyName.MIN_HEALTHY)
    rules = msgspec.structs.replace(play.state.policy.rules, min_nodes=min_nodes)
    play.state = msgspec.structs.replace(play.state, policy=msgspec.structs.replace(play.state.policy, rules=rules))
    return play >> NodeFailed(node, 0, f"node {node}: the store failed")


def test_a_spare_that_fails_before_it_takes_part_gets_the_part_no_second_time() -> None:
    """Its process has run this cycle, so it would ignore the order, and the job would wait for it indefinitely."""
    play = replaced() >> NodeJoined("c", 0)
    assert not orders(play, StartCycle)
    assert (play.state.members["c"].state, vacant(play)) == (MemberState.JOINED, ("c",))
    all_say(play, (0, 1), lambda rank: IterationBegan(1, 1, rank, 2, rank, 2))
    all_say(play, (0, 1), lambda rank: BarrierArrive(1, 1, Barrier.COMPLETION, rank, active=True))
    play >> NodeSucceeded("a", 0)
    assert orders_to(play, WindDown) == ["a", "c"]


def test_another_spare_takes_the_part_of_one_that_failed_before_it_took_part() -> None:
    play = spare(replaced() >> NodeJoined("c", 0), "d")
    assert [node for node, _ in orders(play, StartCycle)] == ["d"]
    assert (play.state.parts, vacant(play)) == (("a", "d"), ())


def test_a_node_whose_fault_was_tolerated_gets_its_part_no_second_time_in_that_cycle() -> None:
    play = tolerated("b") >> NodeJoined("b", 0)
    assert not orders(play, StartCycle)
    assert play.state.members["b"].state is MemberState.JOINED


@pytest.mark.parametrize("has_other", [False, True])
def test_the_fault_of_a_node_that_the_cycle_goes_on_without_is_a_spares(*, has_other: bool) -> None:
    play = replaced(max_restarts=1 + has_other) >> NodeJoined("c", 0)
    if has_other:
        spare(play, "d")
        assert play.state.parts == ("a", "d")
    play >> NodeFailed("c", 0, "the spawner was lost")
    assert isinstance(play.state.phase, Running)
    assert kinds(play) == ["spare_failed"]
    assert not play.of(Send)


def test_no_node_gets_a_second_part() -> None:
    """Node b comes back while the parts of both a and b are vacant."""
    play = call("a", "b", "c", max_restarts=3) >> LOST
    arrive(play >> NodeLost("a", "node a is lost: nothing was heard for 5 s"), 4, 5)
    spare(play, "b")
    assert [node for node, _ in orders(play, StartCycle)] == ["b"]
    assert (play.state.parts, vacant(play)) == (("a", "b", "c"), ("a",))
    spare(play, "a")
    assert [node for node, _ in orders(play, StartCycle)] == ["a"]
    assert (play.state.parts, vacant(play)) == (("a", "b", "c"), ())


def test_the_ledger_names_the_nodes_that_the_cycle_goes_on_without_until_their_parts_are_taken() -> None:
    """A new leader of these nodes would otherwise restart them."""
    play = arrive(call("a", "b", max_restarts=2) >> LOST, 0, 1)
    assert vacant(play) == ("b",)
    spare(play, "c")
    assert vacant(play) == ()
    play >> NodeFailed("c", 0, "rank 2 failed")  # before it took part: the others continue
    assert vacant(play) == ("c",)
    play >> NodeFailed("a", 0, "rank 0 failed") >> NodeJoined("a", 0) >> NodeJoined("c", 0)
    assert (play.state.parts, vacant(play)) == (("a", "c"), ())
    play = tolerated("b", enters=False)
    assert (kinds(play), vacant(play)) == (["fault_tolerated"], ("b",))
    play >> LOST
    assert (kinds(play), vacant(play)) == (["node_lost"], ("b",))


def vacant(play: Play) -> tuple[str, ...]:
    return leader_takeover.ledger_of(play.state).vacant


@pytest.mark.parametrize("is_back", ["never", "before the call succeeds", "afterwards"])
def test_a_call_that_succeeds_without_the_node_is_a_success_that_names_its_ranks(is_back: str) -> None:
    play = arrive(call("a", "b", max_restarts=0) >> LOST, 0, 1)
    if is_back == "before the call succeeds":
        spare(play, "b")
    all_say(play, (0, 1), lambda rank: IterationBegan(1, 1, rank, 2, rank, 2))
    all_say(play, (0, 1), lambda rank: BarrierArrive(1, 1, Barrier.COMPLETION, rank, active=True))
    assert {type(each.order) for each in told(play)} == {Committed}
    if is_back == "afterwards":
        spare(play, "b")
    play >> NodeSucceeded("a", 0)
    if is_back != "never":
        play >> NodeStopped("b", all_succeeded=False)
    play >> NodeStopped("a", all_succeeded=True)
    node, order = orders(play, Conclude)[0]
    assert isinstance(order, Conclude)
    assert (node, order.verdict.exit_code) == ("a", 0)
    assert "the job went on without ranks 2 to 3" in order.verdict.reason


def test_a_call_that_comes_to_nothing_makes_the_loss_a_fault_of_the_cycle() -> None:
    play = call("a", "b") >> LOST
    all_say(play, (0, 1), lambda _: CallLeave(1, 0, Leaving.FAULT, "RestartAbort: too few ranks"))
    assert [node for node, _ in orders(play, JoinAgain)] == ["a"]
    assert coordinator.restarts_used(play.state) == 1


def test_outside_of_a_call_the_job_begins_a_new_cycle() -> None:
    play = running("a", "b") >> LOST
    assert [node for node, _ in orders(play, JoinAgain)] == ["a"]


@pytest.mark.parametrize("has_spare", [False, True])
def test_where_healthy_nodes_are_counted_they_must_be_enough_again(*, has_spare: bool) -> None:
    play = call("a", "b", policy=RestartPolicyName.MIN_HEALTHY)
    if has_spare:
        spare(play, "c")
    play >> LOST
    assert [node for node, _ in orders(play, StartCycle)] == (["c"] if has_spare else [])
    assert bool(orders(play, JoinAgain)) is not has_spare


def test_enough_healthy_nodes_go_on_inside_their_processes_until_they_are_too_few() -> None:
    """A job of 2 to 3 nodes under min-healthy trains on all three."""
    play = call("a", "b", "c", policy=RestartPolicyName.MIN_HEALTHY)
    rules = msgspec.structs.replace(play.state.policy.rules, min_nodes=2)
    play.state = msgspec.structs.replace(play.state, policy=msgspec.structs.replace(play.state.policy, rules=rules))
    play >> LOST
    assert orders(play, JoinAgain) == []
    play >> NodeLost("c", "node c is lost: nothing was heard for 5 s")
    assert [node for node, _ in orders(play, JoinAgain)] == ["a"]


def test_the_survivors_are_interrupted_once() -> None:
    play = call("a", "b")
    play >> LOST >> NodeLost("b", "again") << ()
    all_say(play, (0, 1), lambda _: FaultsReported(1, 0))
    assert {type(each.order) for each in told(play)} == {Restart}


def test_with_segments_a_spare_steps_in_only_within_its_nvlink_domain() -> None:
    for segment, found in ((2, "d"), (None, "c")):
        rendezvous = RendezvousRules(4, segment=segment)
        members = node_states.for_rules(rendezvous)
        for node, (state, domain) in {
            "a": (MemberState.RUNNING, "y"),
            "b": (MemberState.LOST, "y"),
            "c": (MemberState.JOINED, "x"),
            "d": (MemberState.JOINED, "y"),
        }.items():
            members.put(node, Member(state, facts=NodeFacts(ord(node), domain=domain)))
        job = State("job", cycle=0, rules=JobRules("job", 2, rendezvous=rendezvous), members=members, parts=("a", "b"))
        assert lost_node_replacement.find_spare(job, instead_of="b") == found


# --- the leader changes afterwards ------------------------------------------------------------------------------------


def without_c() -> Play:
    """Nodes a and b continue a wrapped call without c, and the leader changes."""
    ledger = msgspec.structs.replace(of_nodes(IN_CYCLE_4, "a", "b", "c"), vacant=("c",), witnesses=("a", "b"))
    return new_leader(ledger)


def rebuild(play: Play) -> Play:
    """The ranks of a and b report the call that they are in."""
    for node, ranks in (("a", (0, 1)), ("b", (2, 3))):
        entries = (CallEnter(1, each, 6, CallSettings(), Stage.RUNNING, 1, each, 4) for each in ranks)
        play >> CallReport(node, 4, tuple(map(Told, ranks, entries)))
    assert kinds(play) == ["call_rebuilt"]
    return play


def test_a_cycle_that_goes_on_without_a_lost_node_does_so_under_the_next_leader_too():
    """Else each later change of the leader would restart the healthy ranks that had survived the loss."""
    play = without_c() >> stands("b", 1)
    play >> stands("a", 0)
    assert isinstance(play.state.phase, Running)
    assert not play.of(Send)
    assert kinds(play) == ["leader_changed"]
    assert (play.state.parts, play.state.policy.used) == (("a", "b", "c"), 1)
    assert play.state.members["c"].state is MemberState.LOST
    rebuild(play)
    play >> NodeSucceeded("a", 4) >> NodeSucceeded("b", 4)
    assert orders_to(play, WindDown) == ["a", "b"]
    assert "the job went on without ranks 4 to 5" in play.of(Send)[0].order.reason


def test_a_new_leader_that_finds_all_others_at_the_end_names_the_ranks_that_calls_have_lost():
    play = without_c() >> stands("a", 0, MemberState.SUCCEEDED, lost=(1,)) >> stands("b", 1, MemberState.SUCCEEDED)
    assert orders_to(play, WindDown) == ["a", "b"]
    assert "the job went on without ranks 1, 4, 5" in play.of(Send)[0].order.reason


@pytest.mark.parametrize("is_under_next_leader", [False, True])
def test_the_verdict_says_of_no_tolerated_fault_that_a_wrapped_call_lost_its_ranks(*, is_under_next_leader: bool):
    if is_under_next_leader:
        play, gone = without_c() >> stands("a", 0) >> stands("b", 1) >> NodeSucceeded("a", 4), "ranks 4 to 5"
        play >> NodeSucceeded("b", 4)
    else:
        play, gone = tolerated("b", enters=False) >> NodeSucceeded("a", 0), "ranks 2 to 3"
    reason = f"all ranks that remained exited with code 0; the job went on without {gone}"
    assert {each.order.reason for each in play.of(Send)} == {reason}


def test_ranks_of_a_node_that_was_lost_before_the_leader_changed_are_not_awaited_in_the_next_call():
    play = without_c() >> stands("a", 0) >> stands("b", 1)
    for node, ranks in (("a", (0, 1)), ("b", (2, 3))):
        entries = (CallEnter(2, each, 6, CallSettings()) for each in ranks)
        play >> CallReport(node, 4, tuple(map(Told, ranks, entries)))
    assert kinds(play) == ["call_entered"]
    fault = CallLeave(2, 0, Leaving.FAULT, "RestartAbort: too few ranks")
    play >> CallReport("a", 4, (Told(0, fault), Told(1, fault))) >> CallReport("b", 4, (Told(2, fault), Told(3, fault)))
    assert orders_to(play, JoinAgain) == ["a", "b"]
    (decided,) = [each.event.reason for each in play.of(Publish) if each.event.kind == "restart_decided"]
    assert decided.startswith("the cycle had gone on without node c when the leader changed; restarting at once")


@pytest.mark.parametrize("state", [MemberState.RUNNING, MemberState.FAILED, MemberState.JOINED])
def test_a_node_that_the_cycle_goes_on_without_may_come_back_and_restarts_nobody(state: MemberState):
    play = without_c() >> stands("c", 2, state) >> stands("a", 0)
    play >> stands("b", 1)
    assert isinstance(play.state.phase, Running)
    assert orders_to(play, JoinAgain) == ([] if state is MemberState.JOINED else ["c"])
    assert play.state.policy.used == 1


@pytest.mark.parametrize("has_run_it", [False, True])
def test_the_next_leader_too_gives_the_part_only_to_a_process_that_has_not_run_it(*, has_run_it: bool):
    play = without_c() >> (stands("c", 2) if has_run_it else stands("c", None, MemberState.OPENED))
    play >> stands("a", 0) >> stands("b", 1)
    rebuild(play) >> NodeJoined("c", 4 if has_run_it else -1)
    assert orders_to(play, StartCycle) == ([] if has_run_it else ["c"])


def test_a_loss_that_one_leader_tolerates_the_next_one_tolerates_too():
    """Group rank 0's node had served its store, which a new leader cannot know of."""
    ledger = msgspec.structs.replace(of_nodes(IN_CYCLE_4, "a", "b", "c"), vacant=("a",), witnesses=("b", "c"))
    play = new_leader(ledger, leader="b")
    rules = msgspec.structs.replace(RULES.restart, policy=RestartPolicyName.MIN_HEALTHY)
    for node, group_rank in (("a", 0), ("b", 1), ("c", 2)):
        each = stands(node, group_rank, MemberState.JOINED if node == "a" else MemberState.RUNNING)
        play >> msgspec.structs.replace(each, rules=msgspec.structs.replace(each.rules, restart=rules))
    assert isinstance(play.state.phase, Running)
    assert not orders_to(play, JoinAgain)
