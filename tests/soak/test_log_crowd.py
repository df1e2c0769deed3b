"""1,536 nodes send lines to one leaf, whose process and the root's are killed at random: none is lost or doubled."""

from __future__ import annotations

import random
from pathlib import Path

import anyio
import pytest

from tests.programs.log_service.crowd_flood import flood

NODES, LINES, AT_ONCE = 1536, 600, 20
KILLS = 6
LEAF_BYTES_MAX = 400 * 1024 * 1024
LIMIT_S = 280.0


@pytest.mark.soak
@pytest.mark.timeout(300)
async def test_nothing_that_was_accepted_is_lost_or_doubled_and_memory_is_bounded(tmp_path: Path):
    seed = random.randrange(1 << 32)
    print("seed", seed)
    with anyio.fail_after(LIMIT_S):
        found = await flood(
            tmp_path, random.Random(seed), nodes=NODES, lines=LINES, at_once=AT_ONCE, kills=KILLS, pause_most_s=1.0
        )
    print(f"{NODES * LINES / found.took_s:.0f} lines/s, {found.most_bytes >> 20} MiB, {found.deaths} deaths")
    assert found.fault == ""
    assert found.wrong_lines == 0
    assert found.deaths >= KILLS - 1
    assert found.most_bytes < LEAF_BYTES_MAX
