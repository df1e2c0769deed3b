"""Many nodes send lines to one leaf, as fast as it takes them or while leaf and root are killed: what does it cost?"""

from __future__ import annotations

import os
import random
import re
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import anyio

from tests.programs.log_service import crowd

LOOK_S = 0.25  # between two looks at the memory of the leaf


@dataclass(slots=True)
class Flooded:
    """`took_s`: from the first line until the last is in the file. CPU means something only without a kill."""

    took_s: float = 0.0
    idle_bytes: int = 0  # of the leaf, once all nodes are connected
    most_bytes: int = 0
    leaf_cpu_s: float = 0.0
    root_cpu_s: float = 0.0
    deaths: int = 0
    fault: str = ""  # the first line that is not as it should be
    wrong_lines: int = 0


async def flood(
    folder: Path, draw: random.Random, *, nodes: int, lines: int, at_once: int, kills: int, pause_most_s: float = 0.0
) -> Flooded:
    """`lines` of each node, of which `at_once` are said together; each node pauses in between for a random time."""
    found = Flooded()
    async with crowd.servers(folder) as servers, crowd.nodes(nodes, servers.address) as players:

        async def speak(node: crowd.Node) -> None:
            for _ in range(lines // at_once):
                await node.until_room()
                node.say(at_once)
                await anyio.sleep(draw.uniform(0.0, pause_most_s))
            node.end()
            await node.until_ended()

        async def look() -> None:
            while True:
                with suppress(OSError):  # It may have been killed.
                    most_bytes = crowd.memory_bytes(servers.leaf.pid)
                    found.most_bytes = max(found.most_bytes, most_bytes)
                await anyio.sleep(LOOK_S)

        for player in players:
            await player.until_connected()
        found.idle_bytes = crowd.memory_bytes(servers.leaf.pid)
        before = [crowd.cpu_s(tier.pid) for tier in (servers.leaf, servers.root)]
        started_s = crowd.now_s()
        async with anyio.create_task_group() as looking:
            looking.start_soon(look)
            async with anyio.create_task_group() as tasks:
                for player in players:
                    tasks.start_soon(speak, player)
                await _kill(servers, draw, kills)
            looking.cancel_scope.cancel()
        found.took_s = crowd.now_s() - started_s
        if not servers.lost:
            after = [crowd.cpu_s(tier.pid) for tier in (servers.leaf, servers.root)]
            found.leaf_cpu_s, found.root_cpu_s = (b - a for a, b in zip(before, after, strict=True))
    found.deaths = len(servers.lost)
    said = {node.number: node.said for node in players}
    found.fault, found.wrong_lines = crowd.faults_in(servers.log, said), wrong_lines(servers.log, said)
    return found


async def _kill(servers: crowd.Servers, draw: random.Random, kills: int) -> None:
    for _ in range(kills):
        tier = draw.choice([servers.leaf, servers.root])
        await tier.ready.wait()
        await anyio.sleep(draw.uniform(0.5, 4.0))
        if tier.pid:
            os.kill(tier.pid, signal.SIGKILL)


def wrong_lines(log: Path, said: dict[int, int]) -> int:
    """How many lines are missing in a file, are there more than once, or are not whole."""
    seen = {node: bytearray(count) for node, count in said.items()}
    wrong = 0
    with log.open("rb") as file:
        for line in file:
            found = re.fullmatch(rb"(\d+): line (\d+) \.*\n", line)
            known = seen.get(int(found[1])) if found is not None and len(line) == crowd.LINE_BYTES else None
            number = int(found[2]) if found is not None else 0
            if known is None or number >= len(known) or known[number]:
                wrong += 1
            else:
                known[number] = 1
    return wrong + sum(each.count(0) for each in seen.values())
