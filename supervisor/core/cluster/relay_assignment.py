"""Which nodes relay other nodes' messages to the leader of a large job, and which relay does a newcomer use?

A leader takes `fan_out` connections itself. If the job may have more nodes, the first ones to arrive are asked to be
relays, and newcomers are sent to a relay with room. A connected node is never moved; a node that loses its relay comes
back to the leader like a newcomer. If no relay has room, the leader takes the node itself, unless relays that it has
asked are still to come: then newcomers wait for them. Once the job has ended, the relays leave, too: the leader takes
every node that has not heard of the end.
"""

from __future__ import annotations

import msgspec

CHILDREN_MAX = 64  # per relay
ASKED_S = 10.0  # a node that is not a relay by then is not expected to become one
UNDER_WAY_S = 5.0  # a node sent to a relay that has not arrived there by then has gone elsewhere


class Relay(msgspec.Struct):
    host: str
    port: int
    children: int = 0
    under_way: list[float] = msgspec.field(default_factory=list[float])  # since when, oldest first


LATER = Relay("", 0)  # a relay that is still to come


class Relays(msgspec.Struct):
    """The relays of a job. Only its methods change it. `nodes`: how many may come, besides the leader's own."""

    fan_out: int
    nodes: int
    direct: int = 0  # nodes that are connected to the leader itself
    has_ended: bool = False
    _entering: list[float] = msgspec.field(default_factory=list[float])  # since when others are connecting to it
    _open: dict[str, Relay] = msgspec.field(default_factory=dict[str, Relay])  # the next to be chosen comes first
    _asked: dict[str, float] = msgspec.field(default_factory=dict[str, float])  # and when

    @property
    def children_max(self) -> int:
        return min(CHILDREN_MAX, self.fan_out)

    @property
    def wanted(self) -> int:
        return -(-max(0, self.nodes - self.fan_out) // self.children_max)

    def is_needed(self, node: str, now_s: float) -> bool:
        """Returns whether this node, connected to the leader itself, should be a relay; if so, it counts as asked."""
        if self.has_ended or not self.wanted or node in self._open:
            return False
        self._asked.pop(node, None)
        self._forget(now_s)
        if len(self._open) + len(self._asked) >= self.wanted:
            return False
        self._asked[node] = now_s
        return True

    def opened(self, node: str, host: str, port: int) -> None:
        self._asked.pop(node, None)
        self._open[node] = Relay(host, port)

    def end(self) -> None:
        """Notes that the job has ended: no node becomes a relay, or is sent to one, any more."""
        self.has_ended = True

    def closed(self, node: str) -> None:
        self._open.pop(node, None)

    def joined(self, node: str) -> None:
        """Notes that a child has connected through this relay."""
        relay = self._open.get(node)
        if relay is not None:
            relay.children += 1
            del relay.under_way[:1]

    def left(self, node: str) -> None:
        relay = self._open.get(node)
        if relay is not None:
            relay.children -= 1

    def entered(self) -> None:
        """Notes that a node admitted by the leader is connected."""
        del self._entering[:1]

    def choose(self, now_s: float) -> Relay | None:
        """Returns a newcomer's relay, in turn; None: the leader takes it; LATER: it must wait for a relay."""
        if self.has_ended:
            return None
        while self._entering and now_s - self._entering[0] >= UNDER_WAY_S:
            del self._entering[0]
        if self.direct + len(self._entering) < self.fan_out:
            self._entering.append(now_s)
            return None
        for node in list(self._open):
            relay = self._open[node] = self._open.pop(node)  # It is the last one now.
            while relay.under_way and now_s - relay.under_way[0] >= UNDER_WAY_S:
                del relay.under_way[0]
            if relay.children + len(relay.under_way) < self.children_max:
                relay.under_way.append(now_s)
                return relay
        self._forget(now_s)
        is_one_coming = bool(self._asked or self._entering) and len(self._open) < self.wanted
        return LATER if is_one_coming else None

    def _forget(self, now_s: float) -> None:
        self._asked = {node: at_s for node, at_s in self._asked.items() if now_s - at_s < ASKED_S}
