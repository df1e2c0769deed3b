"""How do messages travel between the leader of a simulated job and one of its nodes, and when is one lost to the other?

As decision 0019 has it: messages are numbered, so they arrive once and in order as long as both processes live; loss
and cuts of the network are delay. Then one side gives the other up. Heartbeats are played only while something is wrong
with the link, because else each would find that all is well.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from supervisor.edges.peers.cluster_client import FENCE_S
from supervisor.edges.peers.cluster_link import ALIVE_S, SILENCE_S
from supervisor.edges.peers.cluster_server import LOST_S
from supervisor.simulation.timeline import What

if TYPE_CHECKING:
    from tests.sim.host import Host
    from tests.sim.world import World

TICK_S = 0.25


class Way:
    """One direction. What is sent waits until it has come."""

    def __init__(self, world: World, sender: Host, receiver: Host) -> None:
        self._world = world
        self.sender = sender
        self.receiver = receiver
        self.blocked_until_s = 0.0
        self._slow_until_s = 0.0
        self._slow_s = 0.0
        self._last_s = 0.0
        self._on_the_way: deque[tuple[float, What]] = deque()

    @property
    def is_open(self) -> bool:
        return self._world.timeline.now_s >= self.blocked_until_s

    def slow_down(self, by_s: float, until_s: float) -> None:
        self._slow_s, self._slow_until_s = by_s, until_s

    def put(self, what: What) -> float:
        """Returns when it comes, if nothing is in its way."""
        now_s = self._world.timeline.now_s
        delay_s = self._world.random.uniform(0.0, self._world.setup.delay_max_s)
        if now_s < self._slow_until_s:
            delay_s += self._slow_s
        self._last_s = max(self._last_s, now_s + delay_s)
        self._on_the_way.append((self._last_s, what))
        return self._last_s

    def hand_over(self) -> None:
        now_s = self._world.timeline.now_s
        while self._on_the_way and self._on_the_way[0][0] <= now_s:
            self.receiver.receive(self._on_the_way.popleft()[1])

    @property
    def waiting(self) -> int:
        return len(self._on_the_way)

    def end(self) -> None:
        self._on_the_way.clear()


class Link:
    """Between two processes, for as long as neither has given up the other."""

    def __init__(self, world: World, leader: Host, node: Host) -> None:
        self._world = world
        self.leader = leader
        self.node = node
        self.up = Way(world, node, leader)
        self.down = Way(world, leader, node)
        self._leader_gave_up = False
        self._node_gave_up = False
        self._is_disturbed = False
        self._is_connected = True
        self._leader_heard_s = 0.0
        self._confirmed_s = 0.0  # when the node sent what the leader has confirmed last

    @property
    def is_over(self) -> bool:
        """No message goes either way any more."""
        return self._leader_gave_up or self._node_gave_up

    @property
    def waiting(self) -> int:
        return self.up.waiting + self.down.waiting

    def send(self, way: Way, what: What) -> None:
        if not self.is_over:
            self._world.timeline.at(way.put(what), lambda: self._pump(way))

    def cut(self, until_s: float, *, up: bool, down: bool) -> None:
        for way, is_cut in ((self.up, up), (self.down, down)):
            if is_cut:
                way.blocked_until_s = max(way.blocked_until_s, until_s)
        self.disturb()

    def replace(self) -> bool:
        """Another process of the node's name says hello. False: it is refused, as the old one seems to be connected."""
        if self._is_connected:
            return False
        if not self._leader_gave_up:
            self._leader_gave_up = True
            self.leader.lose_node(self.node)
        return True

    def disturb(self) -> None:
        """Something is wrong with it, or with one of its ends: from now on, heartbeats are played."""
        if self._is_disturbed or (self._leader_gave_up and self._node_gave_up):
            return
        now_s, draw = self._world.timeline.now_s, self._world.random
        self._is_disturbed = True
        self._leader_heard_s = self._confirmed_s = now_s - draw.uniform(0.0, ALIVE_S)
        self._world.timeline.after(draw.uniform(0.0, TICK_S), self._tick)

    def look(self) -> None:
        """One of the ends goes on after a pause and first takes what has come."""
        if self._is_disturbed:
            self._beat()

    def _tick(self) -> None:
        self._beat()
        if self._is_disturbed:
            self._world.timeline.after(TICK_S, self._tick)

    def _beat(self) -> None:
        leads = self.leader.is_running and not self._leader_gave_up
        follows = self.node.is_running and not self._node_gave_up
        is_open = self.up.is_open and self.down.is_open
        if leads or follows:
            self._say_alive(is_open, both=leads and follows)
        if follows and ((self._leader_gave_up and is_open) or self.node.elapsed_s(self._confirmed_s) >= FENCE_S):
            self._node_gave_up = True
            self.node.lose_leader(f"the leader is lost: nothing was heard for {FENCE_S:g} s")
        if leads and not self._is_connected and self.leader.elapsed_s(self._leader_heard_s) >= LOST_S:
            self._leader_gave_up = True
            self.leader.lose_node(self.node)
        if self.is_over:
            self.up.end()
            self.down.end()
        leader_is_done = self._leader_gave_up or self.leader.is_dead
        if (leader_is_done and (self._node_gave_up or self.node.is_dead)) or (
            leads and follows and is_open and self._is_connected
        ):
            self._is_disturbed = False
        for way in (self.up, self.down):
            if way.waiting:
                self._world.timeline.after(self._world.random.uniform(0.0, 0.1), lambda way=way: self._pump(way))

    def _say_alive(self, is_open: bool, *, both: bool) -> None:
        now_s = self._world.timeline.now_s
        if both and is_open:
            self._is_connected = True
        if both and self._is_connected and self.up.is_open:
            self._leader_heard_s = now_s
        if both and self._is_connected and self.down.is_open:
            self._confirmed_s = self._leader_heard_s  # Every word of the leader says what it has heard.
        if now_s - min(self._leader_heard_s, self._confirmed_s) >= SILENCE_S:
            self._is_connected = False

    def _pump(self, way: Way) -> None:
        if not self.is_over and self._is_connected and way.is_open:
            way.hand_over()
