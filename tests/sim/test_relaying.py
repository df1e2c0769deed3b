"""Does a simulated job with relays survive the loss of each, through another relay or directly?"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from supervisor.core.facts import JobState
from tests.sim.faults import FOREVER_S, Fault, Kind
from tests.sim.following import Client
from tests.sim.playing import play
from tests.sim.setup import Setup, draw_setup, node_names
from tests.sim.world import World

AT_S = 8.0


def relayed(seed: int, *, fan_out: int = 2) -> Setup:
    """Six nodes, of which the first leads; three suffice, and one fault does not end the job."""
    drawn = draw_setup(seed, nodes=6)
    restart = msgspec.structs.replace(drawn.rules.restart, max_restarts=5, min_nodes=3)
    rendezvous = msgspec.structs.replace(drawn.rules.rendezvous, max_nodes=6)
    rules = msgspec.structs.replace(drawn.rules, restart=restart, rendezvous=rendezvous, completion_grace_s=None)
    return Setup(seed, node_names(6), rules, horizon_s=60.0, life_s=(30.0, 35.0), delay_max_s=0.05, fan_out=fan_out)


def ways(world: World) -> dict[str, str]:
    """Returns the relay through which each node connects; "": directly."""
    return {
        name: client.line.downstream.relay.name if client.line.downstream is not None else ""
        for name, client in world.clients.items()
        if client.line is not None
    }


def ways_at(setup: Setup, faults: tuple[Fault, ...], *moments_s: float) -> tuple[World, list[dict[str, str]]]:
    world, seen = World(setup, faults), list[dict[str, str]]()
    for at_s in moments_s:
        world.timeline.at(at_s, lambda: seen.append(ways(world)))
    return world.run(), seen


def relays_of(found: dict[str, str]) -> set[str]:
    return {relay for relay in found.values() if relay}


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kind", [Kind.NODE_CRASH, Kind.CUT, Kind.NODE_PAUSE])
def test_a_relay_that_is_lost_costs_the_job_one_node_and_its_nodes_come_back_directly(kind: Kind, seed: int):
    setup = relayed(seed)
    (before,) = ways_at(setup, (), AT_S)[1]
    relay = min(relays_of(before))
    world, (after,) = ways_at(setup, (Fault(AT_S, kind, relay, lasts_s=20.0),), AT_S + 4.0)
    assert world.complaints == []
    assert {host.name for host in world.lost} <= {relay}
    carried = {node for node, way in before.items() if way == relay}
    assert carried
    assert all(after[node] == "" for node in carried)
    assert all(world.hosts[node].verdict == world.hosts["n0000"].verdict for node in carried)


def test_a_relay_that_leaves_hands_its_nodes_to_another_one():
    found: set[str] = set()
    for seed in range(20):
        setup = relayed(seed)
        (before,) = ways_at(setup, (), AT_S)[1]
        relay = min(relays_of(before))
        faults = Fault(AT_S, Kind.EXCLUDE, relay), Fault(AT_S + 0.5, Kind.RANK_CRASH, relay)
        world, (after,) = ways_at(setup, faults, AT_S + 8.0)
        assert world.complaints == []
        found |= {after[node] for node, way in before.items() if way == relay and after.get(node, relay) != relay}
    assert any(found), "some are sent on to another relay"


def test_a_node_that_was_connected_waits_for_no_relay_that_is_still_to_come():
    """Fifty nodes, each behind another one: as the job is stopped, relays leave before some have heard the verdict."""
    few = relayed(12, fan_out=1)
    restart = msgspec.structs.replace(few.rules.restart, min_nodes=50)
    rendezvous = msgspec.structs.replace(few.rules.rendezvous, max_nodes=50, join_timeout_s=900.0)
    rules = msgspec.structs.replace(few.rules, restart=restart, rendezvous=rendezvous)
    world = play(replace(few, names=node_names(50), rules=rules, delay_max_s=0.3), (Fault(1.9, Kind.STOP, "n0013"),))
    assert world.complaints == []


def test_a_node_that_sticks_to_its_lost_relay_is_lost_with_it(monkeypatch: pytest.MonkeyPatch):
    """This shows that the first test can fail."""
    connect = Client._connect  # pyright: ignore

    def stick(client: Client) -> None:
        if client.node.world.timeline.now_s < AT_S:
            connect(client)

    monkeypatch.setattr(Client, "_connect", stick)
    setup = relayed(0)
    (before,) = ways_at(setup, (), AT_S)[1]
    relay = min(relays_of(before))
    world = play(setup, (Fault(AT_S, Kind.NODE_CRASH, relay, lasts_s=FOREVER_S),))
    assert len(world.lost) > 1
    assert JobState.FAILED in {host.verdict.state for host in world.hosts.values() if host.verdict is not None}
