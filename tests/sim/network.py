"""How do messages travel between the leader of a simulated job and one of its nodes, and when do they lose each other?

As in decision 0019, messages are numbered, so they arrive once and in order while both processes live; loss and cuts of
the network mean delay. Then one side gives the other up. Heartbeats are played only while something is wrong with the
link, because otherwise each would find that all is well.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from supervisor.core.cluster.messages import NodeHeard, NodeSilent
from supervisor.core.election.link_silence import ALIVE_S, SILENCE_S
from supervisor.core.election.node_links import LOST_S
from supervisor.core.fence import FENCE_S
from supervisor.programs.simulation.timeline import What
from tests.sim.faults import RELAYED_LATER_S

if TYPE_CHECKING:
    from tests.sim.host import Host
    from tests.sim.reign import Reign
    from tests.sim.world import World

TICK_S = 0.25
ALL_IS_WELL = math.inf


def _nobody_is_told(known_s: float) -> None:
    del known_s


@dataclass(slots=True)
class Reach:
    """When a node reaches others again."""

    sends_from_s: float = 0.0
    hears_from_s: float = 0.0
    nodes_from_s: float = 0.0  # the same for the other nodes only
    sends_to_from_s: dict[str, float] = field(default_factory=dict[str, float])  # by node
    backend_from_s: float = 0.0  # the same for the backend that elects the leader


class Way:
    """One direction. Messages wait until they have arrived."""

    def __init__(self, world: World, sender: Host, receiver: Host) -> None:
        self._world = world
        self.sender = sender
        self.receiver = receiver
        self._slow_until_s = 0.0
        self._slow_s = 0.0
        self._last_s = 0.0
        self._on_the_way: deque[tuple[float, What]] = deque()

    @property
    def open_from_s(self) -> float:
        sender, receiver = self.sender.reach, self.receiver.reach
        return max(
            sender.sends_from_s,
            receiver.hears_from_s,
            sender.nodes_from_s,
            receiver.nodes_from_s,
            sender.sends_to_from_s.get(self.receiver.name, 0.0),
        )

    @property
    def is_open(self) -> bool:
        return self._world.timeline.now_s >= self.open_from_s

    def slow_down(self, by_s: float, until_s: float) -> None:
        self._slow_s, self._slow_until_s = by_s, until_s

    def put(self, what: What) -> float:
        """Sends; returns the arrival time if nothing is in the way."""
        now_s = self._world.timeline.now_s
        delay_s = self._world.random.random() * self._world.setup.delay_max_s
        if now_s < self._slow_until_s:
            delay_s += self._slow_s
        if now_s + delay_s > self._last_s:  # none overtakes another
            self._last_s = now_s + delay_s
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
    """Connects two processes until one gives up the other."""

    def __init__(
        self,
        world: World,
        leader: Host,
        node: Host,
        *,
        on_leader_lost: Callable[[str], None],
        on_node_lost: What,
        on_known: Callable[[float], None] = _nobody_is_told,
        reign: Reign | None = None,
        is_connected: bool = True,
    ) -> None:
        """`on_known` gets when the node sent what the leader last answered; ALL_IS_WELL: that continues.

        `reign` None: the leader leads for as long as it lives.
        """
        self._world = world
        self.leader = leader
        self.node = node
        self.up = Way(world, node, leader)
        self.down = Way(world, leader, node)
        self._on_leader_lost = on_leader_lost
        self._on_node_lost = on_node_lost
        self._on_known = on_known
        self._reign = reign
        self.said_s: float | None = None  # when the leader may last have heard the node; None: never, or just now
        self._leader_gave_up = False
        self._node_gave_up = False
        self._is_disturbed = False
        self.is_connected = self.was_connected = is_connected
        self._leader_heard_s = 0.0
        self.confirmed_s = 0.0  # when the node sent what the leader last confirmed
        self.relaying = leader.relaying
        self.via: Link | None = None  # to the relay that carries it
        self.carried: dict[Link, None] = {}  # those whose relay is this one's node
        self.has_entered = self.was_entered = False
        self.may_be_sent_on = True
        self.directly_from_s = math.inf  # then it waits for no relay any more
        leader.links[self] = node.links[self] = None

    @property
    def is_over(self) -> bool:
        """Returns whether no message goes either way any more."""
        return self._leader_gave_up or self._node_gave_up

    @property
    def is_given_up(self) -> bool:
        """Returns whether the leader has given the node up."""
        return self._leader_gave_up

    @property
    def is_open(self) -> bool:
        return self.up.is_open and self.down.is_open and (self.via is None or self.via.carries)

    @property
    def carries(self) -> bool:
        """Returns whether its node exists, is connected itself, and may be a relay."""
        node = self.node
        return not self.is_over and self.is_connected and node.is_running and node.verdict is None and self.is_open

    @property
    def waiting(self) -> int:
        return self.up.waiting + self.down.waiting

    @property
    def heard_s(self) -> float:
        """Returns when the node was last heard."""
        return self._leader_heard_s if self._is_disturbed else self._world.timeline.now_s

    def _is_served(self) -> bool:
        return self._reign is None or self._reign.is_served

    def _is_answered(self) -> bool:
        return self._reign is None or self._reign.may_answer()

    def send(self, way: Way, what: What) -> None:
        if not self.is_over:
            self._world.timeline.at(way.put(partial(self._take, what)), partial(self._pump, way))

    def _take(self, what: What) -> None:
        """Drops messages of a peer that was given up meanwhile, even if they had arrived before."""
        if not self.is_over:
            what()

    def connect(self) -> None:
        """Connects: the leader has accepted the node."""
        self.is_connected = self.was_connected = True  # to a leader that has not known it, or has not noticed
        self._leader_heard_s = self.confirmed_s = now_s = self._world.timeline.now_s - self._late_s
        if self._is_well:
            self._on_known(ALL_IS_WELL)
        else:
            self._on_known(now_s)
            self._is_disturbed = True
            self._world.timeline.after(TICK_S, self._tick)
        for way in (self.up, self.down):
            self._pump_soon(way)

    def replace(self) -> bool:
        """Handles another process with the node's name. Returns False if the old one seems connected: it is refused."""
        if self.is_connected:
            return False
        self._lose_node()
        return True

    def hang_up(self) -> None:
        """Ends the node's part, and tells the leader if that arrives."""
        if self._node_gave_up:
            return
        self._node_gave_up = True
        self.carry_no_more()
        self.leave_way()

        def notice() -> None:
            if self.is_connected and self.up.is_open:
                self._notice(is_connected=False)

        if self.is_connected:
            self.disturb()
            self._world.timeline.after(self._world.random.uniform(0.0, 0.1), notice)
        elif not self._is_disturbed:
            self._forget()  # it was never connected

    def disturb(self) -> None:
        """Plays heartbeats from now on: something is wrong with the link or one of its ends."""
        if self._is_disturbed or not (self.is_connected or self._node_gave_up):
            return
        now_s, draw = self._world.timeline.now_s, self._world.random
        self._is_disturbed = True
        self._leader_heard_s = self.confirmed_s = now_s - draw.uniform(0.0, ALIVE_S) - self._late_s
        if not self._node_gave_up:
            self._on_known(self.confirmed_s)
        self._world.timeline.after(draw.uniform(0.0, TICK_S), self._tick)
        for link in self.carried:
            link.disturb()

    def look(self) -> None:
        """Lets an end continue after a pause, which first handles received messages."""
        if self._is_disturbed:
            self._beat()

    def _tick(self) -> None:
        self._beat()
        if self._is_disturbed:
            self._world.timeline.after(TICK_S, self._tick)

    def _beat(self) -> None:
        leads = self.leader.is_running and not self._leader_gave_up and self._is_served()
        follows = self.node.is_running and not self._node_gave_up
        is_open = self.is_open
        if leads or follows:
            self._say_alive(is_open, both=leads and follows)
        if follows and ((self._leader_gave_up and is_open) or self.node.elapsed_s(self.confirmed_s) >= FENCE_S):
            self._node_gave_up = True
            self._on_leader_lost(f"the leader is lost: nothing was heard for {FENCE_S:g} s")
        if leads and not self.is_connected and self.leader.elapsed_s(self._leader_heard_s) >= LOST_S:
            self._lose_node()
        if self.is_over:
            self.up.end()
            self.down.end()
        leader_is_done = self._leader_gave_up or self.leader.is_dead or not self._is_served()
        if leader_is_done and (self._node_gave_up or self.node.is_dead):
            self._forget()
        elif leads and follows and is_open and self.is_connected and self._is_well:
            self._is_disturbed = False
            self._on_known(ALL_IS_WELL)
        for way in (self.up, self.down):
            if way.waiting:
                self._pump_soon(way)

    def _lose_node(self) -> None:
        if not self._leader_gave_up:
            self._leader_gave_up = True
            self.leave_way()
            if self._is_served():
                self._on_node_lost()

    def _forget(self) -> None:
        self._is_disturbed = False
        self.leave_way()
        self.leader.links.pop(self, None)
        self.node.links.pop(self, None)

    def _say_alive(self, is_open: bool, *, both: bool) -> None:
        now_s = self._world.timeline.now_s
        if not self.is_connected and both and is_open and self._is_answered():
            if self.enter():
                self._notice(is_connected=True)
            is_open = self.is_open
        is_carried = self.via is None or self.via.carries
        if both and self.is_connected and is_carried and self.up.is_open:
            self._leader_heard_s = now_s - self._late_s
        is_answered = both and self.is_connected and is_carried and self.down.is_open and self._is_answered()
        if is_answered and self.confirmed_s != self._leader_heard_s:
            self.confirmed_s = self._leader_heard_s  # every message of the leader says what it has heard
            self._on_known(self.confirmed_s)
        if self.is_connected and now_s - min(self._leader_heard_s, self.confirmed_s) >= SILENCE_S + self._late_s:
            self._lose_connection(is_silent=True)

    @property
    def _is_well(self) -> bool:
        """Returns whether nothing is wrong with the leader, or on the way to it."""
        return (self._reign is None or self._reign.is_well) and (self.via is None or not self.via._is_disturbed)

    # --- by which way

    @property
    def _late_s(self) -> float:
        return RELAYED_LATER_S if self.via is not None else 0.0

    def enter(self) -> bool:
        """Enters; returns False if that is not possible now."""
        return self.has_entered or self.relaying is None or self.relaying.enter(self)

    def enter_soon(self, delay_s: float) -> None:
        """Allows direct messages to the leader until it enters."""

        def enter() -> None:
            if self.is_connected and not self.is_over and not self.enter():
                self.enter_soon(TICK_S)
            elif not self._is_well:
                self.disturb()

        self._world.timeline.after(delay_s, enter)

    def carry_no_more(self) -> None:
        """Ends the relay: the nodes that it carried notice at once, and may go to another relay."""
        for link in list(self.carried):
            link.disturb()
            link._lose_connection(is_silent=False)

    def _lose_connection(self, *, is_silent: bool) -> None:
        self._notice(is_connected=False)
        self.said_s = self._world.timeline.now_s
        self.may_be_sent_on = not is_silent
        self.leave_way()

    def _notice(self, *, is_connected: bool) -> None:
        """Has the leader notice at once that the connection has ended, or is back."""
        self.is_connected = is_connected
        name = self.node.name
        noticed = NodeHeard(name) if is_connected else NodeSilent(name)

        def notice() -> None:
            if self._is_served() and not self._leader_gave_up:
                self.leader.coordinate(noticed)

        self.leader.receive(notice)

    def leave_way(self) -> None:
        if self.relaying is not None:
            self.relaying.leave(self)

    def _pump_soon(self, way: Way) -> None:
        self._world.timeline.after(self._world.random.uniform(0.0, 0.1), partial(self._pump, way))

    def _pump(self, way: Way) -> None:
        is_carried = self.via is None or self.via.carries
        if not self.is_over and self.is_connected and is_carried and way.is_open and self._is_served():
            way.hand_over()
