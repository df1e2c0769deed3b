"""What is found out about a script that knows nothing of Holdfast, and what is said where nothing can be?"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.hangs import BUSY_S, EARLY_S, at_unix_s, overshoot_s, told
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


@pytest.mark.parametrize("method", ["auto", pytest.param("exec", marks=pytest.mark.soak)])
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


AUTO_S = 2.0
TICK_LATE_S = (
    0.25  # of the thread that looks at the main thread, on a busy machine; the silence counts from its last look
)
HANGS = {
    "stop": r"rank 1 is stopped \(.+\); rank 0 waits for it in ",
    "call": r"rank 1 holds the GIL in ",
    "wait": r"rank 1 is in .+ while rank 0 waits in ",
    "leave": r"rank 1 has exited with code 0; rank 0 waits for it in ",
}


@pytest.mark.parametrize("what", HANGS)
def test_a_hang_is_found_without_a_line_of_code(start: Start, what: str) -> None:
    """Of the rank that causes it, also if the others are silent as long: they wait for it in a collective."""
    launch = start(
        "--nproc-per-node", "2", "--max-restarts", "1", "--ft-auto-heartbeat-timeout", str(AUTO_S),
        PLAIN, "20", f"5:1:{what}",
    )  # fmt: skip
    assert launch.wait() == 0, launch.stderr_text()
    (begun,) = launch.traced(what)
    (hang,) = told(launch, "hang_detected")
    late_s = overshoot_s(hang, begun, AUTO_S)
    assert -TICK_LATE_S <= late_s <= BUSY_S, f"the verdict came {late_s:.3f} s after the limit"
    (explained,) = told(launch, "hang_explained")
    assert re.match(HANGS[what], str(explained["reason"])), explained
    assert [line["cycle"] for line in launch.traced("trained")] == [1, 1]
    assert_nothing_left(launch)


@pytest.mark.parametrize(("preload", "limit"), [("auto", "6"), pytest.param("none", "20", marks=pytest.mark.soak)])
def test_pauses_below_the_limit_are_no_hang(start: Start, preload: str, limit: str) -> None:
    """A rank pauses for 3 s, and the other waits for it; `none`: each rank and its store load torch themselves.

    People see how the ranks are watched, and afterwards how long they were silent.
    """
    launch = start(
        "--nproc-per-node", "2", "--ft-auto-heartbeat-timeout", limit, "--preload", preload, PLAIN, "20", "5:1:pause"
    )
    launch.wait_for_trace("pause", timeout_s=60.0)
    assert re.search(rf"main thread \d\.\ds ago \(limit {limit}", launch.holdfast("status", launch.job_id).stdout)
    assert launch.wait() == 0, launch.stderr_text()
    assert told(launch, "hang_detected") == []
    (measured,) = told(launch, "main_threads_measured")
    assert re.match(
        r"the longest time without Python code was \d+\.\d s, of rank [01] \(limit ", str(measured["reason"])
    )
    assert float(measured["details"]["longest_s"]) > 3.0 - TICK_LATE_S  # pyright: ignore[reportIndexIssue, reportUnknownArgumentType]
    assert_nothing_left(launch)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_minutes_of_training_with_pauses_are_no_hang(start: Start) -> None:
    """Sixty pauses of 3 s, of either rank in turn, while the other waits in a collective."""
    pauses = [f"{10 * number}:{number % 2}:pause" for number in range(1, 61)]
    launch = start("--nproc-per-node", "2", "--ft-auto-heartbeat-timeout", "6", PLAIN, "620", *pauses)
    assert launch.wait(500.0) == 0, launch.stderr_text()
    assert told(launch, "hang_detected") == []
    assert_nothing_left(launch)


def test_a_restart_tells_when_the_script_itself_was_seen(start: Start, tmp_path: Path) -> None:
    """The processes run again at once; the script has something to load first."""
    script = tmp_path / "loading.py"
    script.write_text(
        "import os, sys, time\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "    sys.exit(3 if os.environ['RANK'] == '1' else 0)\n"
        "time.sleep(1.0)\n"
        "print('training', flush=True)\n"
        "time.sleep(0.5)\n"
    )
    launch = start("--nproc-per-node", "2", "--max-restarts", "1", str(script))
    assert launch.wait() == 0, launch.stderr_text()
    (again,) = told(launch, "running_again")
    (seen,) = told(launch, "script_seen")
    assert re.fullmatch(
        r"first sign of the script after \d+\.\d\d s: output of rank [01], cycle 1", str(seen["reason"])
    )
    assert str(seen["reason"]) in launch.stderr_text()
    assert at_unix_s(seen) - at_unix_s(again) > 0.5
    assert_nothing_left(launch)
