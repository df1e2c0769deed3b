"""How do messages travel between two processes of a simulated job, directly or through a relay?

What belongs to a connection ends with it. The other messages are numbered (decision 0019): they arrive once and in
order while both processes live, however many connections that takes. Loss and cuts of the network mean delay.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from supervisor.programs.simulation.simulated_timeline import What
from tests.sim.faults import FOREVER_S, SENT_AGAIN_MAX_S

if TYPE_CHECKING:
    from tests.sim.host import Host
    from tests.sim.relaying import RelayDownstream
    from tests.sim.world import World

SLOW_S = 0.5


@dataclass(slots=True)
class Reach:
    """When a node reaches others again."""

    sends_from_s: float = 0.0
    hears_from_s: float = 0.0
    nodes_from_s: float = 0.0  # the same for the other nodes only
    sends_to_from_s: dict[str, float] = field(default_factory=dict[str, float])  # by node
    backend_from_s: float = 0.0  # the same for the backend that elects the leader
    slow_until_s: float = 0.0


class Path:
    """One direction between the first and the last of some processes; those between them are relays."""

    __slots__ = ("_downstream", "_relays", "_ways", "_world", "receiver", "sender")

    def __init__(self, world: World, *hosts: Host, downstream: RelayDownstream | None = None) -> None:
        """`downstream`: of the relay."""
        self._world = world
        self._downstream = downstream
        self.sender, self.receiver = hosts[0], hosts[-1]
        self._relays = hosts[1:-1]
        self._ways = tuple(pairwise(hosts))

    @property
    def open_from_s(self) -> float:
        from_s = 0.0
        for sender, receiver in self._ways:
            out, into = sender.reach, receiver.reach
            cut_s = out.sends_to_from_s.get(receiver.name, 0.0) if out.sends_to_from_s else 0.0
            from_s = max(from_s, out.sends_from_s, into.hears_from_s, out.nodes_from_s, into.nodes_from_s, cut_s)
        for relay in self._relays:
            from_s = math.inf if relay.is_dead else max(from_s, relay.paused_until_s)
        return from_s

    @property
    def is_open(self) -> bool:
        return self._world.timeline.now_s >= self.open_from_s

    def takes(self, put_s: float) -> bool:
        """Returns whether it takes a message of that moment: a relay that has ended forwards nothing more."""
        return self._downstream is None or put_s < self._downstream.relay_ends_s

    def takes_s(self) -> float:
        now_s, takes_s = self._world.timeline.now_s, 0.0
        for sender, receiver in self._ways:
            takes_s += self._world.random.random() * self._world.setup.delay_max_s
            if now_s < sender.reach.slow_until_s or now_s < receiver.reach.slow_until_s:
                takes_s += SLOW_S
        return takes_s


class Stream:
    """What is on its way in one direction. None overtakes another, and all wait until there is an open path."""

    __slots__ = ("_arrives_s", "_last_s", "_waiting", "_world", "arrived_s", "path")

    def __init__(self, world: World, path: Path | None = None) -> None:
        self._world = world
        self.path = path
        self.arrived_s = 0.0  # when the last message did; it may still wait in a process that stands still
        self._last_s = 0.0
        self._waiting: deque[tuple[float, float, What, bool]] = deque()
        self._arrives_s = math.inf  # when the next arrival is planned

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def put(self, what: What, *, later_s: float = 0.0, is_end: bool = False) -> None:
        """Lets `what` happen at the receiver. `is_end`: it is no message, but the end of a connection."""
        put_s = self._world.timeline.now_s
        at_s = put_s + later_s + (self.path.takes_s() if self.path is not None else 0.0)
        self._last_s = at_s = max(at_s, self._last_s)
        self._waiting.append((at_s, put_s, what, is_end))
        self._plan(at_s)

    def go_on(self, path: Path) -> None:
        """Goes on by this path: that of the next connection."""
        self.path = path
        if self._waiting:
            self._plan(self._waiting[0][0])

    def stop(self) -> None:
        """Waits for another path, which may be open earlier."""
        self.path = None
        self._arrives_s = math.inf

    def end(self) -> None:
        self._waiting.clear()

    def _plan(self, at_s: float) -> None:
        if self._arrives_s == math.inf and self.path is not None and at_s < FOREVER_S:
            self._arrives_s = at_s
            self._world.timeline.at(at_s, partial(self._arrive, at_s))

    def _arrive(self, at_s: float) -> None:
        if at_s != self._arrives_s:
            return  # It was planned for an earlier path.
        self._arrives_s = math.inf
        path, now_s = self.path, self._world.timeline.now_s
        if path is None or not self._waiting:
            return
        open_from_s = path.open_from_s
        if now_s < open_from_s:
            if path.sender.is_dead:
                self._waiting.clear()  # nobody sends it again
            else:
                self._plan(open_from_s + self._world.random.uniform(0.0, SENT_AGAIN_MAX_S))
            return
        while self._waiting and self._waiting[0][0] <= now_s and self.path is path:
            if not path.takes(max(self._waiting[0][1], open_from_s)):
                return  # a numbered one goes by the next path
            _, _, what, is_end = self._waiting.popleft()
            if not is_end:
                self.arrived_s = now_s
            path.receiver.receive(what)
        if self._waiting:
            self._plan(self._waiting[0][0])


class Line:
    """One connection of a node to its leader, or an attempt at it. Each end may end it; the other end learns that."""

    __slots__ = (
        "down",
        "downstream",
        "has_leader_ended",
        "has_node_ended",
        "leader_heard_at_s",
        "node_heard_at_s",
        "up",
    )  # fmt: skip

    def __init__(self, world: World, node: Host, leader: Host, downstream: RelayDownstream | None = None) -> None:
        """`downstream`: of the relay that carries it."""
        hosts = (node, leader) if downstream is None else (node, downstream.relay, leader)
        self.up = Stream(world, Path(world, *hosts, downstream=downstream))
        self.down = Stream(world, Path(world, *reversed(hosts), downstream=downstream))
        self.downstream = downstream
        self.has_node_ended = self.has_leader_ended = False
        self.node_heard_at_s, self.leader_heard_at_s = node.now_s(), leader.now_s()  # each by its own clock

    @property
    def is_open(self) -> bool:
        assert self.up.path is not None and self.down.path is not None  # noqa: PT018 - they are never taken away
        return self.up.path.is_open and self.down.path.is_open

    def takes_s(self) -> tuple[float, float]:
        """Returns how long a message may take up and down."""
        assert self.up.path is not None and self.down.path is not None  # noqa: PT018
        return self.up.path.takes_s(), self.down.path.takes_s()
