"""The spawner hears at once of a fence that has moved far, and in any case that this process does not stand still."""

from __future__ import annotations

import anyio

from supervisor.core.election.node_fence import MOVED_BY_S, MOVED_EVERY_S
from supervisor.core.fence import FENCE_S
from supervisor.core.node.messages import FenceMoved
from supervisor.edges.peers.cluster_client import SPAWNER_LATER_S
from supervisor.edges.peers.election.own_fence import OwnFence


async def test_a_fence_that_has_moved_far_is_told_before_the_next_regular_word() -> None:
    posted: list[object] = []
    now_s = anyio.current_time()
    fence = OwnFence("j", "a", posted.append, known_at_s=now_s - FENCE_S / 2)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(fence.run)
        await anyio.wait_all_tasks_blocked()
        fence.move(now_s - FENCE_S / 2 + MOVED_BY_S / 2)
        await anyio.wait_all_tasks_blocked()
        assert len(posted) == 1
        fence.move(now_s)
        await anyio.wait_all_tasks_blocked()
        assert anyio.current_time() - now_s < MOVED_EVERY_S
        tasks.cancel_scope.cancel()
    assert posted[-1] == FenceMoved("j", now_s + FENCE_S + SPAWNER_LATER_S)
    assert len(posted) == 2
