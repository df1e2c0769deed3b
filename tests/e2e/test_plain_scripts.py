"""What is found out about a script that knows nothing of Holdfast, and what is said where nothing can be?"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.e2e.hangs import BUSY_S, EARLY_S, overshoot_s, told
from tests.e2e.launch import SCRIPTS, assert_nothing_left

if TYPE_CHECKING:
    from tests.e2e.conftest import Start

pytestmark = pytest.mark.timeout(120)

PLAIN = str(SCRIPTS / "plain_ddp.py")


def test_a_limit_that_no_rank_arms_is_said_at_the_terminal(start: Start) -> None:
    launch = start("--nproc-per-node", "2", "--ft-rank-heartbeat-timeout", "1", PLAIN, "5", "2:1:pause")
    assert launch.wait() == 0, launch.stderr_text()
    (event,) = told(launch, "limit_not_armed")
    text = "no rank has sent a heartbeat within 1 s of its start; until one does, --ft-rank-heartbeat-timeout finds no"
    assert str(event["reason"]).startswith(text)
    assert text in launch.stderr_text()
    assert told(launch, "hang_detected") == []
    assert_nothing_left(launch)


@pytest.mark.parametrize("method", ["auto", "exec"])
def test_a_stopped_rank_is_reported_at_once_and_a_fault_after_the_limit(start: Start, method: str) -> None:
    """Without a line of code in the script, also for workers that are not forked."""
    launch = start(
        "--nproc-per-node", "2", "--max-restarts", "1", "--spawn-method", method,
        "--ft-rank-heartbeat-timeout", "2", PLAIN, "20", "5:1:stop",
    )  # fmt: skip
    assert launch.wait() == 0, launch.stderr_text()
    (stopped,) = told(launch, "rank_stopped")
    (begun,) = launch.traced("stop")
    assert "rank 1" in str(stopped["reason"])
    assert "rank 1 (pid" in launch.stderr_text()
    assert 0 <= overshoot_s(stopped, begun, 0.0) <= BUSY_S
    (hang,) = told(launch, "hang_detected")
    assert -EARLY_S <= overshoot_s(hang, begun, 2.0) <= BUSY_S
    (explained,) = told(launch, "hang_explained")
    assert re.match(r"rank 1 is stopped \(.+\); rank 0 waits for it in ", str(explained["reason"]))
    assert [line["cycle"] for line in launch.traced("trained")] == [1, 1]
    assert_nothing_left(launch)
