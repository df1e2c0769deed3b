"""Does a node leave if it is drained while its leader is stalled, or as another leader takes over?

Afterwards, the leader hears its nodes one after the other.
"""

from __future__ import annotations

import random
from dataclasses import replace

import msgspec
import pytest

from supervisor.core.stop_verdict import has_left
from tests.sim.faults import Fault, Kind
from tests.sim.playing import play
from tests.sim.setup import Setup, draw_setup
from tests.sim.world import World

STALLS_AT_S = 12.0
SEEDS = 40
ELECTED_SEEDS = 15  # each with three games
DRAINED = "n0001"


def two_and_a_spare(seed: int, *, is_elected: bool = False, nodes: int = 3) -> Setup:
    """Returns two nodes and a spare, or more. The first leads, or one that is elected."""
    numbers = range(1000 * seed, 1000 * (seed + 1))
    setups = (draw_setup(number, nodes=nodes) for number in numbers)
    drawn = next(each for each in setups if each.is_elected is is_elected and not each.fan_out)
    restart = msgspec.structs.replace(drawn.rules.restart, max_restarts=5, min_nodes=2)
    rendezvous = msgspec.structs.replace(drawn.rules.rendezvous, max_nodes=nodes, elastic=False)
    rules = msgspec.structs.replace(drawn.rules, restart=restart, rendezvous=rendezvous)
    delay_max_s = (0.0, 0.05, 0.3)[seed % 3]
    return replace(drawn, rules=rules, life_s=(60.0, 70.0), answer_max_s=0.02, delay_max_s=delay_max_s)


def drained(setup: Setup, seed: int, kind: Kind, node: str = "n0000", *, longest_s: float = 9.0) -> World:
    draw = random.Random(seed)
    lasts_s = draw.uniform(2.4, longest_s)  # the nodes connect again, or come back as new processes
    asked_at_s = STALLS_AT_S + draw.uniform(0.1, lasts_s)
    return play(setup, (Fault(STALLS_AT_S, kind, node, 0, lasts_s), Fault(asked_at_s, Kind.DRAIN, DRAINED)))


def is_refused(world: World) -> bool:
    return "leave_refused" in {event.kind for _, _, event in world.event_log}


def has_drained(world: World) -> bool:
    verdict = world.hosts[DRAINED].verdict
    return verdict is not None and has_left(verdict)


def is_lost(world: World, node: str) -> bool:
    return any(event.reason.startswith(f"node {node} is lost: nothing was heard") for _, _, event in world.event_log)


@pytest.mark.parametrize("kind", [Kind.SUPERVISOR_PAUSE, Kind.NODE_PAUSE])
def test_a_node_that_is_drained_while_its_leader_is_stalled_is_replaced_by_the_spare(kind: Kind):
    for seed in range(SEEDS):
        world = drained(two_and_a_spare(seed), seed, kind)
        assert not world.complaints
        assert not is_refused(world), f"seed {seed}"
        assert has_drained(world), f"seed {seed}"


@pytest.mark.parametrize("kind", [Kind.BACKEND_CUT, Kind.BACKEND_LOST, Kind.LEASES_REVOKED])
def test_a_node_that_is_drained_as_another_leader_takes_over_is_replaced_by_the_spare(kind: Kind):
    """The spare may come last."""
    for seed in range(ELECTED_SEEDS):
        for node in ("n0000", "n0001", "n0002"):
            world = drained(two_and_a_spare(seed, is_elected=True), seed, kind, node, longest_s=5.0)
            assert not world.complaints
            assert has_drained(world), f"seed {seed}, {node}"


@pytest.mark.parametrize("kind", [Kind.SUPERVISOR_PAUSE, Kind.CUT])
def test_a_node_that_is_drained_while_another_is_away_stays_only_if_that_one_is_lost(kind: Kind):
    """It leaves also if it was away itself, and has lost its part by then."""
    for seed in range(ELECTED_SEEDS):
        for node in ("n0000", "n0001", "n0002"):
            world = drained(two_and_a_spare(seed, is_elected=True), seed, kind, node, longest_s=5.0)
            assert not world.complaints
            stays = is_refused(world) and node != DRAINED and is_lost(world, node)
            assert has_drained(world) or stays, f"seed {seed}, {node}"


@pytest.mark.parametrize(
    ("seed", "spare", "stalls_at_s", "lasts_s", "leader_lost_at_s"),
    [
        (1, "n0003", 9.4, 19.5, 12.12),
        (5, "n0002", 10.0, 19.9, 12.37),
        (11, "n0002", 9.5, 16.2, 12.32),
        (14, "n0003", 9.9, 20.3, 12.13),
        (17, "n0002", 8.5, 21.4, 12.34),
    ],
)
def test_a_drain_that_was_granted_holds_for_the_next_leader_while_a_spare_stands_still(
    seed: int, spare: str, stalls_at_s: float, lasts_s: float, leader_lost_at_s: float
):
    """The spare is away for longer than a new leader waits for nodes."""
    faults = (
        Fault(stalls_at_s, Kind.SUPERVISOR_PAUSE, spare, 0, lasts_s),
        Fault(STALLS_AT_S, Kind.DRAIN, DRAINED),
        Fault(leader_lost_at_s, Kind.NODE_CRASH, "n0000", 0, 20.0),
    )
    world = play(two_and_a_spare(seed, is_elected=True, nodes=4), faults)
    assert not world.complaints
    assert "node_leaves" in {event.kind for _, _, event in world.event_log}
    assert not is_refused(world)
    assert has_drained(world)
