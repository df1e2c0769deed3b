"""How long may the workers of this node run if its leader is elected, and what ends them then?

They may run as long as a leader answered within FENCE_S, or the backend said that nobody leads (see core/fence.py). The
spawner knows the limit, too, in case this process hangs. If no workers run, the fence has no effect.
"""

from __future__ import annotations

import anyio

from supervisor.core import orders
from supervisor.core.fence import FENCE_S
from supervisor.core.node.messages import FenceMoved, Ordered
from supervisor.edges.peers.cluster_client import SPAWNER_LATER_S
from supervisor.ports import Post

MOVED_EVERY_S = 1.0  # the spawner learns in time that this process does not stand still
MOVED_BY_S = 0.8  # the spawner learns at once: this process may be killed, and back in time


class OwnFence:
    """`run` moves the spawner's fence and ends the workers in time."""

    def __init__(self, job_id: str, node: str, post: Post, *, known_at_s: float | None = None) -> None:
        """`known_at_s`: as of the process before this one; None: this moment, where nothing runs yet."""
        self._job_id = job_id
        self._node = node
        self._post = post
        self._until_s = (anyio.current_time() if known_at_s is None else known_at_s) + FENCE_S
        self._told_s = self._until_s
        self._moved = anyio.Event()

    @property
    def until_s(self) -> float:
        return self._until_s

    def move(self, known_at_s: float) -> None:
        """Moves the fence: at `known_at_s`, no other node could replace this one."""
        self._until_s = max(self._until_s, known_at_s + FENCE_S)
        if self._until_s - self._told_s >= MOVED_BY_S:
            self._moved.set()

    async def run(self) -> None:
        while True:
            now_s = anyio.current_time()
            until_s = self._until_s
            if now_s >= until_s:
                why = f"for {FENCE_S:g} s no leader has answered, and the backend has not said that there is none"
                text = f"node {self._node} ends its workers, since another may take its place: {why}"
                self._post(Ordered(self._job_id, orders.StandBack(text)))
                until_s = now_s + FENCE_S  # the spawner's: no workers run any more
            self._post(FenceMoved(self._job_id, until_s + SPAWNER_LATER_S))
            self._told_s, self._moved = until_s, anyio.Event()
            with anyio.move_on_after(min(MOVED_EVERY_S, until_s - now_s)):
                await self._moved.wait()
