"""How does a node of a simulated job find its leader, and stay in touch with it?

core/election/leader_loss_detection.py decides, as in edges/peers/stream/cluster_client.py. Heartbeats are played only
while something is wrong with the connection or one of its ends: otherwise each would find that all is well. A client is
then at rest; that is the same as one whose last heartbeat was answered just now.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from supervisor.core.cluster.relay_assignment import LATER, Relay
from supervisor.core.election import leader_heartbeats, leader_loss_detection
from supervisor.core.election.leader_heartbeats import LeaderHeartbeat
from supervisor.core.election.link_silence import ALIVE_S, SILENCE_S
from supervisor.core.fence_times import FENCE_S
from supervisor.edges.peers.relays.own_relay import INTRODUCED_S
from supervisor.edges.peers.relays.relay import TICK_S
from supervisor.edges.peers.stream.cluster_client import AGAIN_S, PUT_OFF_S
from supervisor.programs.simulation.simulated_timeline import What
from tests.sim.network import Line, Path, Stream
from tests.sim.relaying import OPENS_MAX_S, RelayDownstream

if TYPE_CHECKING:
    from tests.sim.host import Host
    from tests.sim.serving import Server

ALL_IS_WELL = math.inf
CLOSED = "the other side has closed the connection"


def is_silence(why: str) -> bool:
    return why.startswith("nothing was heard")


class Client:
    """One node's end of its connections to one leader. `begin` it; it ends with `on_lost`, or by `hang_up`."""

    def __init__(
        self,
        node: Host,
        server: Server,
        *,
        on_lost: Callable[[str, bool], None],
        on_fence: Callable[[float], None],
    ) -> None:
        """`on_lost` gets the reason, and whether the leader refuses this node.

        `on_fence` gets the time on the node's own clock before which the leader is not lost; ALL_IS_WELL: it moves
        continuously.
        """
        self._world = world = node.world
        self.node = node
        self.server = server
        self.up, self.down = Stream(world), Stream(world)  # numbered messages
        self.line: Line | None = None
        self.downstream: RelayDownstream | None = None  # this node is a relay
        self.heard_s = 0.0  # when the leader last heard it, in simulated time
        self.is_over = False
        self.may_return = False  # the lost leader; see leader_link.GiveUp
        self.heard_leader: leader_heartbeats.HeardLeader | None = None
        self.is_at_rest = False
        self._on_lost = on_lost
        self._on_fence = on_fence
        self._state = leader_loss_detection.State(server.leader.name)
        self._rings_s = math.inf
        self._attempt: Line | None = None
        self._attempts = 0
        self._said_at_s: float | None = None  # the last that the leader may have heard, while there is no connection
        self._may_be_redirected = True
        self._was_put_off = False
        self._to, self._from = Path(world, node, server.leader), Path(world, server.leader, node)
        node.links[self] = server.leader.links[self] = None

    @property
    def seeks(self) -> bool:
        """Returns whether it looks for its leader, until a deadline."""
        return not self.is_over and self.line is None

    @property
    def was_reached(self) -> bool:
        return self._state.known_at_s is not None

    @property
    def said_at_s(self) -> float | None:
        """Returns when the leader may last have heard this node, on the node's own clock; None: never."""
        return self._said_at_s if self.line is None else self.node.now_s()

    @property
    def is_path_open(self) -> bool:
        return self._to.is_open and self._from.is_open

    def report(self, what: What) -> None:
        """Lets `what` happen at the leader, in order with the other reports."""
        if not self.is_over:
            self.up.put(partial(self.server.take, self, what))

    def take(self, what: What) -> None:
        """Takes a numbered message of the leader, unless it comes too late."""
        if self.is_over:
            return
        if self.line is not None:
            self.line.node_heard_at_s = self.node.now_s()
        if self.is_at_rest or leader_loss_detection.is_obeyed(self._state, self.node.now_s()):
            what()
        elif self.line is not None:
            self._end_line("it was heard too late: this node was stalled")

    # --- decisions

    def begin(self, join_timeout_s: float, *, again: bool = False, ranks_until_s: float = math.inf) -> None:
        """Looks for the leader. `again`, `ranks_until_s`: see leader_loss_detection.Begun."""
        if not self.is_over:
            self._decide(leader_loss_detection.Begun(join_timeout_s, again, ranks_until_s))
            self._connect()

    def _decide(self, event: leader_loss_detection.Event) -> None:
        self._state, actions = leader_loss_detection.step(self._state, event, now_s=self.node.now_s())
        for action in actions:
            match action:
                case leader_loss_detection.SendHeartbeat():
                    self._beat()
                case leader_loss_detection.EndLink(why):
                    if self.line is not None and is_silence(why):
                        self._world.note_silence(self.node, max(self.line.down.arrived_s, self.down.arrived_s))
                    self._end_line(why)
                case leader_loss_detection.MoveFence(until_s):
                    self._world.note_fence(self.node, self.node.moment_s(until_s - FENCE_S), self.heard_s)
                    self._on_fence(until_s)
                case leader_loss_detection.Say():
                    pass
                case leader_loss_detection.GiveUp(why, may_return):
                    self.may_return = may_return
                    self._lose(why)
        self._plan()

    def _plan(self) -> None:
        due_s = leader_loss_detection.next_deadline_s(self._state)
        if due_s is not None and due_s < self._rings_s and not self.is_over:
            self._rings_s = due_s
            self.node.ring_at(due_s, partial(self._ring, due_s))

    def _ring(self, due_s: float) -> None:
        if self._rings_s != due_s:
            return
        self._rings_s = math.inf
        if self.is_over or self.is_at_rest:
            return
        event = leader_loss_detection.DeadlineReached()
        if self.line is not None:
            event = leader_loss_detection.DeadlineReached(self.line.node_heard_at_s)
        self._decide(event)

    # --- heartbeats

    def _beat(self) -> None:
        if (line := self.line) is not None:
            later_s = 0.0 if line.downstream is None else self._world.random.random() * TICK_S
            line.up.put(partial(self.server.hear, self, line, self.node.now_s()), later_s=later_s)

    def hear(self, line: Line, said_at_s: float) -> None:
        """Hears the leader's answer to the heartbeat that was sent then."""
        if self.line is not line:
            return
        line.node_heard_at_s = self.node.now_s()
        if not self.is_at_rest:
            self._decide(leader_loss_detection.Answered(said_at_s))
            self._rest_if_all_is_well()

    def hear_leader(self, line: Line, heartbeat: LeaderHeartbeat) -> None:
        """Hears a heartbeat of the leader, and sends it back."""
        if self.line is line:
            line.node_heard_at_s = self.node.now_s()
            self.heard_leader = leader_heartbeats.heard(heartbeat, self.node.now_s())
            line.up.put(partial(self.server.hear_confirmed, self, line, heartbeat))

    @property
    def is_line_open(self) -> bool:
        """Returns whether messages get through both ways."""
        line = self.line
        return line is not None and self.server.holds(self, line) and line.is_open and self.node.is_running

    def _rest_if_all_is_well(self) -> None:
        line = self.line
        if line is None or not (self.server.is_well and self.server.holds(self, line) and line.is_open):
            return
        if not self.server.leader.is_running or (line.downstream is not None and not line.downstream.is_at_rest):
            return
        self.is_at_rest = True
        self._state = msgspec.structs.replace(self._state, due_s=math.inf)
        self.server.rest(self)
        self._on_fence(ALL_IS_WELL)

    def disturb(self) -> None:
        """Plays heartbeats from now on: something is wrong with the connection or one of its ends."""
        self.server.on_disturbed(self.node.name)
        line = self.line
        if not self.is_at_rest or line is None:
            return
        self.is_at_rest = False
        up_s, down_s = line.takes_s()
        if line.downstream is not None:
            up_s += self._world.random.random() * TICK_S
        heard_at_s = self._world.timeline.now_s - self._world.random.random() * ALIVE_S
        known_at_s = max(self._state.known_at_s or 0.0, self.node.local_s(heard_at_s - down_s - up_s))
        line.node_heard_at_s = max(line.node_heard_at_s, self.node.local_s(heard_at_s))
        line.down.arrived_s = max(line.down.arrived_s, heard_at_s)
        self.server.wake(self, line, heard_at_s - down_s)
        if not self.node.is_dead:
            due_s = max(self.node.now_s(), known_at_s + ALIVE_S)
            self._state = msgspec.structs.replace(self._state, known_at_s=known_at_s, due_s=due_s)
            self._on_fence(known_at_s + FENCE_S)
            self._plan()

    # --- connections

    def _connect(self) -> None:
        """Makes an attempt."""
        if self.is_over or self.line is not None or self._attempt is not None:
            return
        server, may_be_sent_on = self.server, self._may_be_redirected
        if self._was_put_off:
            may_be_sent_on = leader_loss_detection.may_wait_for_relay(self._state, self.node.now_s())
        self._may_be_redirected, self._was_put_off = True, False
        if not server.is_open or server.leader.is_dead or not self.is_path_open:
            self._try_again("it can't be reached")
            return
        line = self._try(None)
        server.leader.receive(partial(server.greet, self, line, may_be_sent_on=may_be_sent_on))

    def _try(self, downstream: RelayDownstream | None) -> Line:
        line = self._attempt = Line(self._world, self.node, self.server.leader, downstream)
        if downstream is not None:
            downstream.lines[line] = self
        until_s = leader_loss_detection.next_deadline_s(self._state)
        assert until_s is not None, "the leader is not lost yet"
        now_s = self.node.now_s()
        limit_s = min(INTRODUCED_S, max(0.0, until_s - now_s) / 2)
        self.node.ring_at(now_s + limit_s, partial(self._give_up_attempt, line))
        return line

    def _give_up_attempt(self, line: Line) -> None:
        if self._attempt is line:
            self._leave(line)
            self._try_again("it does not answer in time")

    def greeted(self, line: Line, relay: Relay | None) -> None:
        """The leader takes this node, or sends it to a relay."""
        if self._attempt is not line:
            return
        if relay is None:
            self._introduce(line)
        elif relay is LATER:
            self._was_put_off = True
            pause_s = PUT_OFF_S * (1 + self._world.random.random())
            self._try_again("it waits for relays that are to take this node", pause_s=pause_s)
        else:
            self._may_be_redirected = False
            downstream = self.server.downstream_at(relay.port)
            if downstream is None or not downstream.is_reached_by(self.node):
                self._try_again("its relay can't be reached")
            else:
                self._introduce(self._try(downstream))

    def _introduce(self, line: Line) -> None:
        self._said_at_s = said_at_s = self.node.now_s()
        line.up.put(partial(self.server.take_hello, self, line, said_at_s))

    def welcomed(self, line: Line, said_at_s: float) -> None:
        if self._attempt is not line:
            return
        self._attempt, self.line, self._attempts = None, line, 0
        self._may_be_redirected = True
        line.node_heard_at_s = self.node.now_s()
        if self.server.holds(self, line):
            assert line.up.path is not None and line.down.path is not None  # noqa: PT018
            self.up.go_on(line.up.path)
            self.down.go_on(line.down.path)
        self._decide(leader_loss_detection.LinkUp(said_at_s))
        self._rest_if_all_is_well()

    def refused(self, line: Line, why: str) -> None:
        if self._attempt is line:
            self._lose(f"the leader at {self.server.leader.name} refuses this node: {why}", is_refused=True)

    def miss(self, line: Line, why: str) -> None:
        """Learns that the other end, or the relay, has ended the connection."""
        if self._attempt is line:
            self._has_ended(line)
            self._try_again(why)
        elif self.line is line:
            self.disturb()
            self._lose_line(why)

    def _try_again(self, why: str, *, pause_s: float = 0.0) -> None:
        self._attempt = None
        self._decide(leader_loss_detection.NotReached(why))
        if not self.is_over:
            pause_s += AGAIN_S[min(self._attempts, len(AGAIN_S) - 1)]
            self._attempts += 1
            self.node.ring_at(self.node.now_s() + pause_s, self._connect)

    def _end_line(self, why: str) -> None:
        if (line := self.line) is not None:
            self._leave(line)
            self._lose_line(why)

    def _leave(self, line: Line) -> None:
        self._has_ended(line)
        line.down.end()
        line.up.put(partial(self.server.miss, self, line, CLOSED), is_end=True)

    def _has_ended(self, line: Line) -> None:
        line.has_node_ended = True
        if line.downstream is not None:
            line.downstream.forget(line)

    def _lose_line(self, why: str) -> None:
        line = self.line
        assert line is not None
        self._said_at_s = now_s = self.node.now_s()
        self._may_be_redirected = now_s - line.node_heard_at_s < SILENCE_S
        self._has_ended(line)
        self.line = None
        self.up.stop()
        self.down.stop()
        self._decide(leader_loss_detection.LinkLost(why))
        self._connect()

    # --- as a relay

    def serve_relay(self) -> None:
        """Serves as a relay, as the leader wants."""
        self._world.timeline.after(
            self._world.random.uniform(0.0, OPENS_MAX_S), lambda: self.node.receive(self._open_downstream)
        )

    def _open_downstream(self) -> None:
        is_reached = self.is_path_open and self.server.leader.is_running and self.server.is_open
        if not self.is_over and self.line is not None and self.node.verdict is None and is_reached:
            self.downstream = self.server.begin_downstream(self) or self.downstream

    def carry_no_more(self) -> None:
        """Ends the relay: the nodes that it carried notice at once, and may go to another relay."""
        if self.downstream is not None:
            self.downstream.end_at_relay("the relay ends")
            self.downstream = None

    # --- the end

    def _lose(self, why: str, *, is_refused: bool = False) -> None:
        self.hang_up()
        self._on_lost(why, is_refused)

    def hang_up(self) -> None:
        """Ends the node's part, and tells the leader if that arrives."""
        if self.is_over:
            return
        self.disturb()
        self._said_at_s = self.said_at_s
        self.is_over = True
        self.carry_no_more()
        for line in (self.line, self._attempt):
            if line is not None:
                self._leave(line)
        self.line = self._attempt = None
        self.up.stop()
        self.up.end()
        self.down.stop()
        self.node.links.pop(self, None)
        self.server.leader.links.pop(self, None)
