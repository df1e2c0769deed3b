"""With elected leaders, do two groups of a job ever train at once? Does the loss of the backend alone stop a node?"""

from __future__ import annotations

import pytest

from supervisor.core import fence
from tests.core.simulated_election import BACKEND, World

SEEDS = 60
LIVED_S = 120.0


def test_a_leader_answers_beyond_its_lead_only_while_it_hears_all_witnesses():
    assert fence.answers_until_s(9.0, 2.0, []) == 10.0
    assert fence.answers_until_s(9.0, 2.0, [20.0, None]) == 10.0
    assert fence.answers_until_s(9.0, 2.0, [20.0, 19.0]) == 19.0 + fence.HEARD_S
    assert fence.answers_until_s(9.0, 2.0, [1.0, 19.0]) == 10.0


def test_a_new_leader_waits_for_one_witness_and_for_what_it_left():
    assert fence.replaces_from_s(10.0, [], {}) == 10.0
    assert fence.replaces_from_s(10.0, ["a", "b"], {"c": 0.0}) is None
    assert fence.replaces_from_s(10.0, ["a", "b"], {"b": 0.0, "c": 9.0}) == 10.0
    assert fence.replaces_from_s(10.0, ["a", "b"], {"a": 9.0, "b": 8.0}) == 8.0 + fence.LEFT_S


def lived(seed: int) -> World:
    world = World(seed)
    world.run(LIVED_S)
    return world


def test_two_groups_never_train_at_once_whatever_is_torn():
    worlds = [lived(seed) for seed in range(SEEDS)]
    assert [(seed, world.wrong[:3]) for seed, world in enumerate(worlds) if world.wrong] == []
    assert sum(world.cycles for world in worlds) > 2 * SEEDS  # There were groups that could have overlapped.
    assert sum(world.terms for world in worlds) > 2 * SEEDS
    assert sum(world.ended_by_fence for world in worlds) > SEEDS


@pytest.mark.parametrize(
    ("rule", "value"), [("LEFT_S", 0.0), ("HEARD_S", 60.0), ("TAKE_OVER_S", 0.5), ("FENCE_S", 8.0)]
)
def test_the_model_finds_out_where_a_rule_is_broken(rule: str, value: float, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fence, rule, value)
    assert any(lived(seed).wrong for seed in range(4 * SEEDS)), f"nothing shows what {rule} is for"


@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_training_goes_on_without_the_backend_and_after_it_is_back(nodes: int):
    """It does so however many nodes the job has beside those that train."""
    world = World(1, nodes=max(nodes, 2))
    world.run(30.0, tears=False)
    group = world.ledger.group
    assert group[0] >= 0
    world.cut |= {(each.name, BACKEND) for each in world.nodes}
    world.run(300.0, tears=False)
    assert {each.runs for each in world.nodes if each.name in world.ledger.parts} == {group}
    world.cut.clear()
    world.run(30.0, tears=False)
    assert {each.runs for each in world.nodes if each.name in world.ledger.parts} == {group}


def test_the_leaders_node_is_lost_and_the_others_go_on_within_seconds():
    world = World(2, nodes=3)
    world.run(30.0, tears=False)
    assert world.leader is not None
    lost = world.leader[0]
    others = [each for each in range(3) if each != lost]
    world.cut |= {(lost, each) for each in [*others, BACKEND]} | {(each, lost) for each in [*others, BACKEND]}
    world.run(12.0, tears=False)
    assert world.nodes[lost].runs is None
    assert world.ledger.parts <= set(others)
    assert all(world.nodes[each].runs == world.ledger.group for each in world.ledger.parts)
