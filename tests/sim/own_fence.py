"""How long may the workers of a simulated node run if its leader is elected?"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from supervisor.core.election import node_fence
from supervisor.core.election.node_fence import MOVED_EVERY_S
from supervisor.core.fence import FENCE_S, HEARD_S
from supervisor.core.node import messages
from supervisor.edges.peers.election.elected_peers import AGAIN_S
from tests.sim.network import ALL_IS_WELL
from tests.sim.setup import JOB

if TYPE_CHECKING:
    from tests.sim.host import Host


class OwnFence:
    """Plays core/election/node_fence.py, and only while something is wrong, from `begin` on."""

    def __init__(self, host: Host, ask: Callable[[], None]) -> None:
        self._host = host
        self._timeline = host.world.timeline
        self._ask = ask
        self._state = node_fence.initial_state(host.name, now_s=host.now_s())
        self._rests = False  # it is moved continuously
        self._looks = self._rounds = 0

    @property
    def until_s(self) -> float:
        """Returns the limit on the node's own clock."""
        return math.inf if self._rests else self._state.until_s

    @property
    def left_s(self) -> float:
        return self.until_s - self._host.now_s()

    def begin(self) -> None:
        self._take(node_fence.DeadlineReached())
        self._begin_to_look()

    def move(self, known_s: float) -> None:
        """Moves the fence: at `known_s`, no other node could replace this one."""
        if not self._rests:
            self._take(node_fence.NobodyElse(self._host.local_s(known_s)))

    def doubt(self, known_s: float) -> None:
        """Plays the fence, which was moved continuously until now."""
        if self._rests:
            self._rests = False
            draw, host = self._host.world.random, self._host
            told_s = known_s - draw.uniform(0.0, MOVED_EVERY_S)  # the spawner knows less
            host.move_fence(told_s)
            tells_at_s = host.now_s() + draw.uniform(0.0, MOVED_EVERY_S)
            until_s, told_until_s = host.local_s(known_s) + FENCE_S, host.local_s(told_s) + FENCE_S
            self._state = node_fence.State(host.name, until_s, told_until_s, tells_at_s)
            self._plan()
            self._begin_to_look()

    def rest(self) -> None:
        """Stops playing the fence: it is moved continuously."""
        self._rounds += 1
        self._looks += 1
        self._rests = True
        self._host.move_fence(ALL_IS_WELL)

    def _take(self, event: node_fence.Event) -> None:
        host = self._host
        self._state, actions = node_fence.step(self._state, event, now_s=host.now_s())
        for action in actions:
            match action:
                case node_fence.EndWorkers(order):
                    host.take(messages.Ordered(JOB, order))
                case node_fence.MoveFence(until_s):
                    host.move_fence(host.moment_s(until_s - FENCE_S))
        if actions:
            self._plan()

    def _plan(self) -> None:
        self._rounds += 1
        rounds = self._rounds
        due_s = max(0.0, node_fence.next_deadline_s(self._state) - self._host.now_s()) * self._haste

        def reach() -> None:
            if rounds == self._rounds:
                self._take(node_fence.DeadlineReached())

        self._timeline.at(self._host.after_s(due_s), lambda: self._host.receive(reach))

    def _begin_to_look(self) -> None:
        self._looks += 1
        self._look(self._looks)

    def _look(self, looks: int) -> None:
        """Checks the backend: a watch may report late, or never."""
        if looks == self._looks:
            if self.left_s <= FENCE_S - HEARD_S:
                self._ask()
            again_s = self._host.after_s(AGAIN_S * self._haste)
            self._timeline.at(again_s, lambda: self._host.receive(lambda: self._look(looks)))

    @property
    def _haste(self) -> float:
        """Returns the pace: a node on which nothing runs need not be played as often."""
        return 4.0 if self.left_s < -FENCE_S else 1.0
