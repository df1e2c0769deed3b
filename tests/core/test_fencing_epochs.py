"""Does each later leader give a greater epoch, whatever its clock shows, and does a cycle keep its own?"""

# pyright: reportUnusedExpression=false
from __future__ import annotations

import msgspec
import pytest

from supervisor.core import fencing_epochs
from supervisor.core.cluster import coordinator
from supervisor.core.cluster.cluster_messages import JobOpened, MemberState, NodeFailed, NodeJoined, Send
from supervisor.core.facts import NodeFacts
from supervisor.core.leader_ledger import Ledger
from supervisor.core.orders import StartCycle
from tests.core.new_leader import IN_CYCLE_4, RULES, new_leader, recorded, stands
from tests.core.playbook import Playbook


@pytest.mark.parametrize(
    ("newest", "began_at_ms", "epoch"),
    [
        (0, 0, 0),  # nothing is known: an older supervisor
        (0, 70, 70),
        (50, 70, 70),
        (70, 70, 71),  # two leaders were given the job at the same moment
        (90, 70, 91),  # this one's clock is behind
        (90, 0, 91),
    ],
)
def test_an_epoch_is_greater_than_the_one_before_it(newest: int, began_at_ms: int, epoch: int):
    assert fencing_epochs.next_epoch(newest, began_at_ms=began_at_ms) == epoch


def epochs(play: Playbook[coordinator.State]) -> set[int]:
    return {each.order.assignment.epoch for each in play.of(Send) if isinstance(each.order, StartCycle)}


def given_at(node: str, at_ms: int) -> JobOpened:
    return JobOpened(node, msgspec.structs.replace(RULES, facts=NodeFacts(process=f"{node}1", submitted_at_ms=at_ms)))


def test_the_cycles_of_one_leader_have_one_epoch_and_the_ledger_knows_it():
    play = new_leader(Ledger(), others_may_train=False)
    play >> given_at("a", 1000) >> given_at("b", 900)
    play >> NodeJoined("a", -1)
    play >> NodeJoined("b", -1)
    assert epochs(play) == {1000}
    assert recorded(play) == [Ledger(cycle=0, epoch=1000)]
    play >> NodeFailed("b", 0, "rank 2 was killed by SIGKILL")
    play >> NodeJoined("a", 0)
    play >> NodeJoined("b", 0)
    assert epochs(play) == {1000}


def test_a_new_leader_begins_later_cycles_with_a_greater_epoch_also_if_its_clock_is_behind():
    play = new_leader(msgspec.structs.replace(IN_CYCLE_4, epoch=1000))
    play >> stands("b", 1)
    play >> stands("a", 0)
    assert play.state.epoch == 1000, "the cycle that goes on keeps its epoch"
    play >> NodeFailed("b", 4, "rank 2 was killed by SIGKILL")
    play >> NodeJoined("a", 4)
    play >> NodeJoined("b", 4)
    assert epochs(play) == {1001}


def test_the_nodes_know_the_epoch_if_the_ledger_is_lost():
    play = new_leader(Ledger(), term=9)
    for node, group_rank in (("b", 1), ("a", 0)):
        known = stands(node, group_rank)
        assert known.assignment is not None
        play >> msgspec.structs.replace(known, assignment=msgspec.structs.replace(known.assignment, epoch=1000))
    assert play.state.epoch == 1000
    play >> NodeFailed("b", 4, "rank 2 was killed by SIGKILL")
    play >> NodeJoined("a", 4)
    play >> NodeJoined("b", 4)
    assert epochs(play) == {1001}


def test_leaders_of_versions_without_epochs_leave_them_unknown():
    play = new_leader()
    play >> stands("b", 1, MemberState.FAILED, reason="rank 2 was killed by SIGKILL", first_failure="rank 2")
    play >> stands("a", 0, MemberState.FAILED)
    play >> NodeJoined("a", 4)
    play >> NodeJoined("b", 4)
    assert epochs(play) == {0}
