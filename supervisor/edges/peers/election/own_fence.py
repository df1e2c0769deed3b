"""How does the node's own fence get its time, and how do its decisions reach the node?"""

from __future__ import annotations

import anyio

from supervisor.core.election import node_fence
from supervisor.core.election.node_fence import EndWorkers, Event, MoveFence, NobodyElse
from supervisor.core.node.messages import FenceMoved, Ordered
from supervisor.edges.peers.cluster_client import SPAWNER_LATER_S
from supervisor.ports import Post


class OwnFence:
    """Plays core/election/node_fence.py. `run` keeps its deadlines."""

    def __init__(self, job_id: str, node: str, post: Post, *, known_at_s: float | None = None) -> None:
        """`known_at_s`: as of the process before this one; None: this moment, when nothing runs yet."""
        self._job_id = job_id
        self._post = post
        self._state = node_fence.initial_state(node, now_s=anyio.current_time(), known_at_s=known_at_s)
        self._moved = anyio.Event()

    @property
    def until_s(self) -> float:
        return self._state.until_s

    def move(self, known_at_s: float) -> None:
        """Moves the fence: at `known_at_s`, no other node could replace this one."""
        self._take(NobodyElse(known_at_s))

    async def run(self) -> None:
        while True:
            self._take(node_fence.DeadlineReached())
            self._moved = anyio.Event()
            with anyio.move_on_at(node_fence.next_deadline_s(self._state)):
                await self._moved.wait()

    def _take(self, event: Event) -> None:
        self._state, actions = node_fence.step(self._state, event, now_s=anyio.current_time())
        for action in actions:
            match action:
                case EndWorkers(order):
                    self._post(Ordered(self._job_id, order))
                case MoveFence(until_s):
                    self._post(FenceMoved(self._job_id, until_s + SPAWNER_LATER_S))
                    self._moved.set()
