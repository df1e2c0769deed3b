"""A new leader replaces nodes once their workers have ended, and no later than it knows that."""

# pyright: reportUnusedExpression=false

from __future__ import annotations

import msgspec
import pytest

from supervisor.core import fence_times
from supervisor.core.cluster import coordinator
from supervisor.core.cluster.cluster_messages import DeadlineReached, NodeStands
from supervisor.core.leader_ledger import Ledger
from supervisor.core.orders import JoinAgain
from tests.core.new_leader import IN_CYCLE_4, new_leader, of_nodes, orders_to, stands


@pytest.mark.parametrize(
    ("leader", "left", "parts", "waits_s"),
    [
        ("a", "a", ("a", "b"), fence_times.ALONE_S),
        ("", "a", ("a", "b"), fence_times.LEFT_S),  # an older version, whose own workers may run longer
        ("a", "c", ("a", "b"), fence_times.LEFT_S),  # another one led since, and may have answered node a
        ("a", "a", ("a", "b", "c"), fence_times.LEFT_S),  # node c follows node a, as far as anybody knows
    ],
)
def test_the_workers_of_a_leader_that_alone_is_missing_are_waited_for_less(
    leader: str, left: str, parts: tuple[str, ...], waits_s: float
):
    ledger = of_nodes(IN_CYCLE_4, *parts)
    play = new_leader(msgspec.structs.replace(ledger, leader=leader), leader="b")
    play.at(100.0) >> stands("b", 1, left_ago_s=1.0, left=left) << ()
    assert coordinator.next_deadline_s(play.state) == pytest.approx(99.0 + waits_s)


LED = msgspec.structs.replace(of_nodes(IN_CYCLE_4, "a", "b", "c"), leader="a", term=6)


def unheard(node: str, group_rank: int, heard_ago_s: float, **more: object) -> NodeStands:
    """Returns a node that has confirmed heartbeats of the leader of term 6."""
    told = {"left": "a", "left_ago_s": 9.0, "left_term": 6, "heard_cycle": 4, "heard_ago_s": heard_ago_s}
    return stands(node, group_rank, **told | more)  # pyright: ignore[reportArgumentType]


def test_a_leader_that_no_node_hears_is_replaced_sooner():
    play = new_leader(LED, leader="b", previous_term=6)
    play.at(0.5) >> unheard("b", 1, 1.0) >> unheard("c", 2, 2.0) << ()
    assert coordinator.next_deadline_s(play.state) == pytest.approx(-0.5 + fence_times.ALONE_S)
    play = new_leader(LED, leader="b", previous_term=6)
    play.at(0.5) >> unheard("b", 1, 7.0) >> unheard("c", 2, 7.0) << ()
    assert coordinator.next_deadline_s(play.state) == pytest.approx(fence_times.UNHEARD_S)
    play.at(fence_times.UNHEARD_S) >> DeadlineReached()
    assert orders_to(play, JoinAgain) == ["b", "c"]


def test_a_node_that_the_cycle_goes_on_without_is_not_missed():
    ledger = msgspec.structs.replace(LED, vacant=("c",))
    play = new_leader(ledger, leader="b", previous_term=6)
    play.at(0.5) >> unheard("b", 1, 7.0) << ()
    assert coordinator.next_deadline_s(play.state) == pytest.approx(fence_times.UNHEARD_S)
    play = new_leader(ledger, leader="b")
    play.at(100.0) >> stands("b", 1, left_ago_s=1.0, left="a") << ()
    assert coordinator.next_deadline_s(play.state) == pytest.approx(99.0 + fence_times.ALONE_S)


@pytest.mark.parametrize(
    ("ledger", "previous_term", "c"),
    [
        (LED, 0, {}),  # the backend may have lost data
        (LED, 7, {}),  # another one led since
        (msgspec.structs.replace(LED, opened=5), 6, {}),  # its own workers need no confirmation
        (msgspec.structs.replace(LED, leader=""), 6, {}),  # an older version
        (LED, 6, {"left_term": 5}),  # it has not met that leader
        (LED, 6, {"heard_cycle": 3}),  # it has not confirmed in this cycle
    ],
)
def test_a_leader_that_a_node_may_hear_is_not(ledger: Ledger, previous_term: int, c: dict[str, object]):
    play = new_leader(ledger, leader="b", previous_term=previous_term)
    play.at(0.5) >> unheard("b", 1, 7.0) >> unheard("c", 2, 7.0, **c)
    assert coordinator.next_deadline_s(play.state) == fence_times.TAKE_OVER_S


def test_a_missing_follower_is_waited_for_as_long_as_before():
    play = new_leader(LED, leader="b", previous_term=6)
    play.at(0.5) >> unheard("b", 1, 7.0)
    assert coordinator.next_deadline_s(play.state) == fence_times.TAKE_OVER_S
