"""Which rank hangs, and which only waits for it? One table of patterns, in a real job: rank 1 beats last and hangs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.hangs import told
from tests.e2e.launch import SCRIPTS, assert_nothing_left

if TYPE_CHECKING:
    from tests.e2e.conftest import Start

LIMIT_S = 0.5
WAIT = "ranks 0 and 2 wait for it in all_reduce"

# One row for each cycle of scripts/hang_patterns.py.
PATTERNS = (
    ("stopped", rf"rank 1 is stopped \(SIGSTOP\); {WAIT}"),
    ("state_d", rf"rank 1 hangs in the kernel \(state D.*\); {WAIT}"),
    ("lock", rf"rank 1 waits for a lock in deadlock \(hang_patterns\.py:\d+\); {WAIT}"),
    (
        "child_dead",
        rf"rank 1 waits in lose_loader \(hang_patterns\.py:\d+\) for a child process that is dead \(pid \d+\); {WAIT}",
    ),
    ("gil_held", rf"rank 1 holds the GIL in hold \(hang_patterns\.py:\d+\); {WAIT}"),
    ("left_early", rf"rank 1 has left the training loop and waits in the end of its other threads; {WAIT}"),
    (
        "collectives_mismatched",
        r"the collectives do not match: rank 1 waits in barrier, called from mismatch \(hang_patterns\.py:\d+\), "
        r"while ranks 0 and 2 wait in all_reduce, called from train \(hang_patterns\.py:\d+\)",
    ),
    ("elsewhere", r"rank 1 is in load_batch \(hang_patterns\.py:\d+\) while ranks 0 and 2 wait in all_reduce"),
)
NOTICED = rf"; first noticed: rank \d sent no heartbeat for [\d.]+ s \(limit {LIMIT_S} s\)"


@pytest.mark.timeout(180)
def test_the_rank_that_hangs_is_named_and_not_those_that_wait_for_it(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "iteration"
    file.write_text("0")
    launch = start(
        "--nproc-per-node", "3", "--max-restarts", str(len(PATTERNS)), "--evidence-budget-s", "3",
        "--ft-rank-heartbeat-timeout", str(LIMIT_S), "--ft-checkpoint-iteration-file", str(file),
        str(SCRIPTS / "hang_patterns.py"),
        environment={"ITERATION_FILE": str(file)},
    )  # fmt: skip
    assert launch.wait(150) == 0, launch.explained()
    explained = told(launch, "hang_explained")
    decided = told(launch, "restart_decided")
    errors = launch.stderr_text()
    for (pattern, sentence), event, decision in zip(PATTERNS, explained, decided, strict=True):
        reason = str(event["reason"])
        assert re.fullmatch(sentence + NOTICED, reason), json.dumps([event, told(launch, "stacks_collected")], indent=1)
        assert event["details"] == {"pattern": pattern, "culprits": "1", "waiters": "0, 2"}
        assert event["rank"] == 1
        # The sentence is the same everywhere.
        assert reason in str(decision["reason"])
        assert reason in errors
    # Verdicts of one moment are one verdict.
    assert len(told(launch, "hang_detected")) == len(PATTERNS)
    assert_nothing_left(launch)
