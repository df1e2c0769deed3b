"""Does a numbered message of a simulated job arrive as soon as some connection of its node is open?"""

from __future__ import annotations

from tests.sim.network import Line, Path, Stream
from tests.sim.relaying import RelayDownstream
from tests.sim.serving import Server
from tests.sim.setup import Setup, draw_setup, node_names
from tests.sim.world import World

CUT_S = 50.0


def test_a_message_that_waits_behind_a_relay_that_is_cut_off_goes_by_the_next_connection():
    drawn = draw_setup(0, nodes=3)
    world = World(Setup(0, node_names(3), drawn.rules, delay_max_s=0.0), ())
    leader, node, relay = world.hosts.values()
    relay.reach.nodes_from_s = CUT_S
    arrived_s: list[float] = []
    stream = Stream(world, Path(world, node, relay, leader))
    stream.put(lambda: arrived_s.append(world.timeline.now_s))
    world.timeline.at(2.0, stream.stop)
    world.timeline.at(3.0, lambda: stream.go_on(Path(world, node, leader)))
    while world.timeline.happen():
        pass
    assert arrived_s == [3.0]


def test_what_a_node_says_to_a_relay_that_has_ended_does_not_arrive():
    drawn = draw_setup(0, nodes=3)
    world = World(Setup(0, node_names(3), drawn.rules, delay_max_s=0.0), ())
    leader, node, relay = world.hosts.values()
    downstream = RelayDownstream(relay, Server(leader, on_report=lambda _: None), may_answer=lambda: True)
    line, arrived = Line(world, node, leader, downstream), list[str]()
    line.up.put(lambda: arrived.append("before"))
    world.timeline.at(1.0, lambda: downstream.end_at_relay("it ends"))
    world.timeline.at(2.0, lambda: line.up.put(lambda: arrived.append("after")))
    while world.timeline.happen():
        pass
    assert arrived == ["before"]
    assert line.up.arrived_s < 1.0


def test_what_has_not_come_to_a_relay_before_it_ends_does_not_arrive():
    drawn = draw_setup(0, nodes=3)
    world = World(Setup(0, node_names(3), drawn.rules, delay_max_s=0.0), ())
    leader, node, relay = world.hosts.values()
    relay.reach.hears_from_s = 3.0
    downstream = RelayDownstream(relay, Server(leader, on_report=lambda _: None), may_answer=lambda: True)
    line, arrived = Line(world, node, leader, downstream), list[str]()
    line.up.put(lambda: arrived.append("too late"))
    world.timeline.at(1.0, lambda: downstream.end_at_relay("it ends"))
    while world.timeline.happen():
        pass
    assert arrived == []
    assert line.up.arrived_s < 1.0
