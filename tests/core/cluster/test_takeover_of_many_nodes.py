"""A job of thousands of nodes changes its leader: does each report cost the same, and is none of them left out?"""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec
import pytest

from supervisor.core import fence_times
from supervisor.core.cluster import coordinator, inherited_cycle, leader_takeover
from supervisor.core.cluster.cluster_messages import (
    Action,
    CallReport,
    DeadlineReached,
    Event,
    LeadershipTaken,
    MemberState,
    NodeFailed,
    NodeJoined,
    NodeLost,
    NodeStands,
    Send,
)
from supervisor.core.cluster.coordinator_states import Gathering, Running, TakingOver
from supervisor.core.cluster.inherited_cycle import InheritedCycle
from supervisor.core.leader_ledger import Ledger
from supervisor.core.orders import StartCycle
from tests.core.new_leader import IN_CYCLE_4, of_nodes, stands

NAMES = tuple(f"n{number}" for number in range(4200))
LEDGER = msgspec.structs.replace(of_nodes(IN_CYCLE_4, *NAMES), witnesses=NAMES[: fence_times.WITNESSES_MAX])


class Leader:
    """A new leader, which is asked for its next deadline after each event, as the engine does."""

    def __init__(self, ledger: Ledger = LEDGER) -> None:
        taken = LeadershipTaken(7, ledger)
        self.state = leader_takeover.initial_state("job", taken, leader=NAMES[0], now_s=0.0)

    def tell(self, event: Event, now_s: float = 1.0) -> tuple[Action, ...]:
        self.state, actions = coordinator.step(self.state, event, now_s=now_s, jitter=0.0)
        coordinator.next_deadline_s(self.state)
        return actions

    @property
    def phase(self) -> TakingOver:
        assert isinstance(self.state.phase, TakingOver)
        return self.state.phase


def test_the_reports_of_a_whole_job_cost_one_look_at_all_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    find = inherited_cycle.find

    def counted(ledger: Ledger, nodes: Mapping[str, NodeStands]) -> InheritedCycle:
        looks.append(len(nodes))
        return find(ledger, nodes)

    monkeypatch.setattr(inherited_cycle, "find", counted)
    leader = Leader()
    for rank, name in enumerate(NAMES[:-1]):
        leader.tell(stands(name, rank))
    assert looks == []
    leader.tell(stands(NAMES[-1], len(NAMES) - 1))
    assert isinstance(leader.state.phase, Running)
    assert leader.state.parts == NAMES
    assert len(looks) <= 2


def test_no_node_is_forgotten_that_has_joined_meanwhile_and_the_round_closes() -> None:
    leader = Leader()
    for rank, name in enumerate(NAMES[:-1]):
        leader.tell(stands(name, rank, MemberState.FAILED, reason="rank 8399 is gone"))
        leader.tell(NodeJoined(name, 4))
    actions = leader.tell(DeadlineReached(), now_s=1.0 + fence_times.LEFT_S)
    started = [each.node for each in actions if isinstance(each, Send) and isinstance(each.order, StartCycle)]
    assert started == ["n0", "n1"]
    assert leader.state.policy.used == 2, "one fault takes one restart"


def test_what_waits_of_a_node_is_bounded_and_what_it_calls_leaves_nothing_else_out() -> None:
    leader = Leader()
    leader.tell(stands("n1", 1))
    for _ in range(leader_takeover.WAITING_MAX + 10):
        leader.tell(CallReport("n1", 4, ()))
        leader.tell(NodeFailed("n1", 4, "rank 2 failed"))
        leader.tell(NodeJoined("n1", 4))
    assert len(leader.phase.waiting) == leader_takeover.WAITING_MAX + 2
    leader.tell(stands("n1", 1))
    assert len(leader.phase.waiting) == leader_takeover.WAITING_MAX, "its new report includes the others"


def test_the_first_failure_of_a_node_is_the_one_that_counts() -> None:
    leader = Leader(of_nodes(IN_CYCLE_4, "n0", "n1"))
    leader.tell(stands("n1", 1))
    leader.tell(NodeFailed("n1", 4, "rank 2 failed", first_failure="rank 2"))
    leader.tell(NodeJoined("n1", 4))
    leader.tell(NodeFailed("n1", 4, "the spawner was lost"))
    leader.tell(stands("n0", 0))
    assert isinstance(leader.state.phase, Gathering)
    assert (leader.state.first_failure, leader.state.policy.used) == ("rank 2", 2)


def test_a_node_that_is_lost_again_is_missing_again() -> None:
    leader = Leader(of_nodes(IN_CYCLE_4, "n0", "n1"))
    leader.tell(stands("n1", 1))
    leader.tell(NodeLost("n1", "node n1 is lost"))
    leader.tell(stands("n0", 0))
    assert list(leader.phase.missing) == ["n1"]
    leader.tell(stands("n1", 1))
    assert isinstance(leader.state.phase, Running)


def test_a_part_is_looked_for_at_its_place_only() -> None:
    """A copy of all names behind it, for each node, made the take-over of 4,000 nodes last for minutes."""
    names = tuple(f"n{number}" for number in range(20_000))
    reports = {name: stands(name, rank) for rank, name in enumerate(names)}
    began_s = time.process_time()
    assert inherited_cycle.find(of_nodes(IN_CYCLE_4, *names), reports).is_complete
    assert time.process_time() - began_s < 0.5
