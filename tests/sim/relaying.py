"""How does a node of a simulated job carry other nodes' connections to the leader?

As edges/peers/relays/{relay,relay_downstream}.py do: it forwards messages in both directions, keeps nothing (decision
0022), and tells the leader every TICK_S which nodes it has heard. If it or its connection ends, so do those that it
carries.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from supervisor.core.election import link_silence
from supervisor.edges.peers.relays.relay import TICK_S
from tests.sim.network import Line, Path, Stream

if TYPE_CHECKING:
    from tests.sim.following import Client
    from tests.sim.host import Host
    from tests.sim.serving import Server

OPENS_MAX_S = 0.2  # from the leader's order to a relay that serves


class RelayDownstream:
    """The connection of a relay. Like that of a node (following.py), it is at rest while nothing is wrong with it."""

    def __init__(self, relay: Host, server: Server, *, may_answer: Callable[[], bool]) -> None:
        self._world = world = relay.world
        self.relay = relay
        self._server = server
        self._may_answer = may_answer
        self._line = Line(world, relay, server.leader)
        self.lines: dict[Line, Client] = {}  # that it carries
        self.is_at_rest = False
        self.relay_ends_s = math.inf
        self.has_leader_ended = False
        self._ticks = 0  # tells apart those that are planned
        relay.links[self] = server.leader.links[self] = None

    @property
    def leader_heard_at_s(self) -> float:
        return self._server.leader.now_s() if self.is_at_rest else self._line.leader_heard_at_s

    @property
    def has_relay_ended(self) -> bool:
        return self.relay_ends_s < math.inf

    def is_reached_by(self, node: Host) -> bool:
        there, back = Path(self._world, node, self.relay), Path(self._world, self.relay, node)
        return not self.has_relay_ended and not self.relay.is_dead and there.is_open and back.is_open

    def begin(self) -> None:
        self._rest_if_all_is_well()
        if not self.is_at_rest:
            self._tick_later(TICK_S)

    # --- heartbeats

    def _tick_later(self, delay_s: float) -> None:
        self._ticks += 1
        self.relay.ring_at(self.relay.now_s() + delay_s, partial(self._tick, self._ticks))

    def _tick(self, number: int) -> None:
        if number != self._ticks or self.is_at_rest or self.has_relay_ended:
            return
        now_s = self.relay.now_s()
        if why := link_silence.death(heard_at_s=self._line.node_heard_at_s + TICK_S, waits_since_s=None, now_s=now_s):
            self.end_at_relay(why)
            return
        self._line.up.put(self._hear_tick)
        self._tick_later(TICK_S)

    def _hear_tick(self) -> None:
        if not self.has_leader_ended:
            self._line.leader_heard_at_s = self._server.leader.now_s()
            if self._may_answer():
                self._line.down.put(self._hear_answer)

    def _hear_answer(self) -> None:
        if not self.has_relay_ended:
            self._line.node_heard_at_s = self.relay.now_s()
            self._rest_if_all_is_well()

    def _rest_if_all_is_well(self) -> None:
        server = self._server
        is_there = not self.has_leader_ended and server.leader.is_running and self.relay.is_running
        if is_there and server.is_well and self._line.is_open and not self.is_at_rest:
            self.is_at_rest = True
            server.rest_downstream(self)

    def disturb(self) -> None:
        """Plays them from now on, and those of the nodes that it carries."""
        if not self.is_at_rest:
            return
        self.is_at_rest = False
        _, down_s = self._line.takes_s()
        heard_at_s = self._world.timeline.now_s - self._world.random.random() * TICK_S
        line = self._line
        line.node_heard_at_s = max(line.node_heard_at_s, self.relay.local_s(heard_at_s))
        line.leader_heard_at_s = max(line.leader_heard_at_s, self._server.leader.local_s(heard_at_s - down_s))
        self._server.wake_downstream(self)
        for client in list(self.lines.values()):
            client.disturb()
        if not self.relay.is_dead:
            self._tick_later(self._world.random.random() * TICK_S)

    # --- the end

    def tell_relay(self, why: str) -> None:
        """Ends it at the leader, and tells the relay if that arrives."""
        if not self._server.leader.is_dead:
            self._line.down.put(partial(self._end_lines, why))
        self._server.end_downstream(self, why)

    def end_at_relay(self, why: str) -> None:
        """Ends the relay, and tells the leader and the nodes if that arrives."""
        if not self.has_relay_ended:
            self.disturb()
            self._line.up.put(partial(self._server.end_downstream, self, why))
            self._end_lines(why)

    def _end_lines(self, why: str) -> None:
        if self.has_relay_ended:
            return
        self.relay_ends_s = self._world.timeline.now_s
        self.relay.links.pop(self, None)
        self._server.leader.links.pop(self, None)
        for line, client in list(self.lines.items()):
            path = Path(self._world, self.relay, client.node)
            Stream(self._world, path).put(partial(client.miss, line, f"the relay is lost: {why}"))

    def forget(self, line: Line) -> None:
        """Forgets a connection once both ends have ended it."""
        if line.has_node_ended and line.has_leader_ended:
            self.lines.pop(line, None)
