"""Plays many nodes with one leaf of the log server; prints one line of JSON. Arguments: nodes, lines of each, kills."""

from __future__ import annotations

import dataclasses
import json
import logging
import random
import sys
import tempfile
from pathlib import Path

import anyio

from tests.programs.log_service.crowd_flood import Flooded, flood

LIMIT_S = 280.0
AT_ONCE = 20
PAUSE_MOST_S = 1.0  # where tiers are killed, so that the lines last longer


async def play(nodes: int, lines: int, kills: int) -> Flooded:
    pause_most_s = PAUSE_MOST_S if kills else 0.0
    with tempfile.TemporaryDirectory(prefix="bench-log-") as folder, anyio.fail_after(LIMIT_S):
        return await flood(
            Path(folder), random.Random(), nodes=nodes, lines=lines, at_once=AT_ONCE, kills=kills,
            pause_most_s=pause_most_s,
        )  # fmt: skip


if __name__ == "__main__":
    logging.getLogger("holdfast").setLevel(logging.CRITICAL)
    nodes, lines, kills = map(int, sys.argv[1:])
    found = anyio.run(play, nodes, lines, kills, backend_options={"use_uvloop": True})
    print(json.dumps(dataclasses.asdict(found)))
