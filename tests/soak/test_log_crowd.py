"""1,536 nodes send lines to one leaf, whose process and the root's are killed at random: none is lost or doubled."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import anyio
import pytest

from tests.log_service import crowd

NODES, LINES, AT_ONCE = 1536, 600, 20
KILLS = 6
LEAF_BYTES_MAX = 400 * 1024 * 1024
LIMIT_S = 280.0


@pytest.mark.soak
@pytest.mark.timeout(300)
async def test_nothing_that_was_accepted_is_lost_or_doubled_and_memory_is_bounded(tmp_path: Path):
    seed = random.randrange(1 << 32)
    print("seed", seed)
    draw = random.Random(seed)
    most_bytes = 0
    with anyio.fail_after(LIMIT_S):
        async with crowd.servers(tmp_path) as servers, crowd.nodes(NODES, servers.address) as nodes:
            started_s = crowd.now_s()

            async def speak(node: crowd.Node) -> None:
                for _ in range(LINES // AT_ONCE):
                    await node.until_room()
                    node.say(AT_ONCE)
                    await anyio.sleep(draw.uniform(0.0, 1.0))
                node.end()
                await node.until_ended()

            async with anyio.create_task_group() as tasks:
                for node in nodes:
                    tasks.start_soon(speak, node)
                for _ in range(KILLS):
                    tier = draw.choice([servers.leaf, servers.root])
                    await tier.ready.wait()
                    await anyio.sleep(draw.uniform(0.5, 4.0))
                    if servers.leaf.pid:
                        most_bytes = max(most_bytes, crowd.memory_bytes(servers.leaf.pid))
                    if tier.pid:
                        os.kill(tier.pid, signal.SIGKILL)
            took_s = crowd.now_s() - started_s
    print(f"{NODES * LINES / took_s:.0f} lines/s, leaf at most {most_bytes >> 20} MiB, {len(servers.lost)} deaths")
    assert crowd.faults_in(servers.log, {node.number: node.said for node in nodes}) == ""
    assert len(servers.lost) >= KILLS - 1
    assert most_bytes < LEAF_BYTES_MAX
