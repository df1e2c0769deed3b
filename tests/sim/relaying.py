"""How does a node of a simulated job reach its leader if that has relays?

core/cluster/relays.py decides which nodes are relays and who uses which one, as in production. A relay forwards
messages in both directions while it is connected itself; it keeps nothing (decision 0022).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.cluster.relays import LATER, Relays

if TYPE_CHECKING:
    from tests.sim.host import Host
    from tests.sim.network import Link

OPENS_MAX_S = 0.2  # from the leader's order to a relay that serves


class Relaying:
    """The relays of one leader."""

    def __init__(self, leader: Host) -> None:
        self._world = leader.world
        others = len(self._world.setup.names) - 1
        fan_out = self._world.setup.fan_out
        self._relays = Relays(fan_out, others) if 0 < fan_out < others else None
        self._by_port: dict[int, Link] = {}

    def enter(self, link: Link) -> bool:
        """Lets a node in. Returns False if it must retry: relays are still starting, or its own does not answer."""
        if self._relays is None:
            return True
        relay = self._relays.choose(self._world.timeline.now_s) if link.may_be_sent_on else None
        if relay is LATER:
            has_time = self._world.timeline.now_s < link.directly_from_s
            link.may_be_sent_on = has_time and not link.was_entered  # a node that was connected may not have the time
            return False
        if relay is None:
            self._take_directly(link, self._relays)
        else:
            carrier = self._by_port[relay.port]
            if not carrier.carries:
                link.may_be_sent_on = False  # it asks to connect directly
                return False
            link.via = carrier
            carrier.carried[link] = None
            self._relays.joined(carrier.node.name)
        link.may_be_sent_on = link.has_entered = link.was_entered = True
        return True

    def leave(self, link: Link) -> None:
        if self._relays is None or not link.has_entered:
            return
        link.has_entered = False
        if link.via is None:
            self._relays.direct -= 1
            self._relays.closed(link.node.name)
        else:
            self._relays.left(link.via.node.name)
            link.via.carried.pop(link, None)
            link.via = None

    def _take_directly(self, link: Link, relays: Relays) -> None:
        timeline = self._world.timeline
        relays.entered()
        relays.direct += 1
        if relays.is_needed(link.node.name, timeline.now_s):
            timeline.after(self._world.random.uniform(0.0, OPENS_MAX_S), lambda: self._open(link, relays))

    def _open(self, link: Link, relays: Relays) -> None:
        if link.has_entered and link.via is None and link.carries:
            port = len(self._by_port) + 1
            self._by_port[port] = link
            relays.opened(link.node.name, link.node.name, port)
