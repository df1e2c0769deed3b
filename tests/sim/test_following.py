"""Does a simulated node stay in touch with its leader, and come back to it, as the product's does?"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from tests.sim.faults import Fault, Kind
from tests.sim.playing import play
from tests.sim.serving import Server
from tests.sim.setup import Setup, draw_setup
from tests.sim.world import World

AT_S = 8.0


def embedded(seed: int) -> Setup:
    """Three nodes of which the first leads; two suffice."""
    drawn = next(each for number in range(seed, seed + 100) if not (each := draw_setup(number, nodes=3)).is_elected)
    restart = msgspec.structs.replace(drawn.rules.restart, max_restarts=5, min_nodes=2)
    rendezvous = msgspec.structs.replace(drawn.rules.rendezvous, max_nodes=3)
    rules = msgspec.structs.replace(drawn.rules, restart=restart, rendezvous=rendezvous, completion_grace_s=None)
    return replace(drawn, rules=rules, life_s=(60.0, 65.0), delay_max_s=0.05, fan_out=0)


def rests(world: World) -> list[bool]:
    return [client.is_at_rest for client in world.clients.values()]


@pytest.mark.parametrize("seed", range(3))
def test_heartbeats_are_played_while_something_is_wrong_and_rest_afterwards(seed: int):
    world = World(embedded(1000 * seed), (Fault(AT_S, Kind.CUT, "n0001", lasts_s=1.0),))
    seen: list[list[bool]] = []
    for at_s in (AT_S - 0.1, AT_S + 0.5, AT_S + 5.0):
        world.timeline.at(at_s, lambda: seen.append(rests(world)))
    world.run()
    assert world.complaints == []
    assert seen == [[True, True], [False, True], [True, True]]


@pytest.mark.parametrize("seed", range(3))
def test_a_node_that_was_cut_off_for_long_is_lost_and_comes_back_as_another_process(seed: int):
    world = World(embedded(1000 * seed), (Fault(AT_S, Kind.CUT, "n0001", lasts_s=9.0),))
    first: list[object] = []
    world.timeline.at(AT_S, lambda: first.append(world.clients["n0001"]))
    world.run()
    assert world.complaints == []
    assert {host.name for host in world.lost} == {"n0001"}
    assert world.clients["n0001"] is not first[0]
    assert world.hosts["n0001"].verdict == world.hosts["n0000"].verdict


def test_a_leader_that_answers_no_hello_loses_its_nodes(monkeypatch: pytest.MonkeyPatch):
    """This shows that the test before can fail."""
    hello = Server.take_hello

    def deaf(server: Server, *given: object) -> None:
        if server.leader.world.timeline.now_s < AT_S:
            hello(server, *given)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(Server, "take_hello", deaf)
    world = play(embedded(0), (Fault(AT_S, Kind.CUT, "n0001", lasts_s=9.0),))
    assert world.hosts["n0001"].verdict != world.hosts["n0000"].verdict
