"""Does a node leave if it is drained while its leader is stalled, which then hears its nodes one after the other?"""

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


def led_by_the_first(seed: int) -> Setup:
    """Two nodes and a spare."""
    numbers = range(1000 * seed, 1000 * (seed + 1))
    setups = (draw_setup(number, nodes=3) for number in numbers)
    drawn = next(each for each in setups if not each.is_elected and not each.fan_out)
    restart = msgspec.structs.replace(drawn.rules.restart, max_restarts=5, min_nodes=2)
    rendezvous = msgspec.structs.replace(drawn.rules.rendezvous, max_nodes=3, elastic=False)
    rules = msgspec.structs.replace(drawn.rules, restart=restart, rendezvous=rendezvous)
    delay_max_s = (0.0, 0.05, 0.3)[seed % 3]
    return replace(drawn, rules=rules, life_s=(60.0, 70.0), answer_max_s=0.02, delay_max_s=delay_max_s)


def drained(seed: int, kind: Kind) -> World:
    draw = random.Random(seed)
    lasts_s = draw.uniform(2.4, 9.0)  # the nodes connect again, or come back as new processes
    asked_at_s = STALLS_AT_S + draw.uniform(0.1, lasts_s)
    stall = Fault(STALLS_AT_S, kind, "n0000", 0, lasts_s)
    return play(led_by_the_first(seed), (stall, Fault(asked_at_s, Kind.DRAIN, "n0001")))


@pytest.mark.parametrize("kind", [Kind.SUPERVISOR_PAUSE, Kind.NODE_PAUSE])
def test_a_node_that_is_drained_while_its_leader_is_stalled_is_replaced_by_the_spare(kind: Kind):
    for seed in range(SEEDS):
        world = drained(seed, kind)
        assert not world.complaints
        assert "leave_refused" not in {event.kind for _, _, event in world.story}, f"seed {seed}"
        verdict = world.hosts["n0001"].verdict
        assert verdict is not None, f"seed {seed}"
        assert has_left(verdict), f"seed {seed}"
