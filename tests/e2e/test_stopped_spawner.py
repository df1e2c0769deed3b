"""A stopped spawner does not prevent the end of its job, and outlives only a killed supervisor."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.launch import Launch, assert_nothing_left, wait_until

if TYPE_CHECKING:
    from tests.e2e.conftest import Start

pytestmark = pytest.mark.timeout(90)

SCRIPT = "import time\nprint('on', flush=True)\ntime.sleep(600)\n"
TRY_AGAIN = 75


def with_stopped_spawner(start: Start, tmp_path: Path, *flags: str) -> tuple[Launch, int]:
    script = tmp_path / "sleep.py"
    script.write_text(SCRIPT)
    launch = start(*flags, str(script))
    launch.wait_for_output("on", count=1)
    (spawner,) = [pid for pid in launch.leftovers() if Path(f"/proc/{pid}/comm").read_text() == "hf-spawner\n"]
    os.kill(spawner, signal.SIGSTOP)
    return launch, spawner


def test_after_the_supervisors_death_the_refusal_names_what_ends_it(start: Start, tmp_path: Path) -> None:
    launch, spawner = with_stopped_spawner(start, tmp_path)
    launch.process.kill()
    launch.process.wait()
    refused = launch.holdfast("run", "--job-id", launch.job_id, "--no-python", "true", check=False)
    assert refused.returncode == TRY_AGAIN
    assert f"process {spawner} of it is stopped (state T), so end it with kill -KILL {spawner}" in refused.stderr
    os.kill(spawner, signal.SIGKILL)
    assert_nothing_left(launch)
    assert launch.holdfast("run", "--job-id", launch.job_id, "--no-python", "true").returncode == 0


def test_a_stop_and_a_second_ctrl_c_continue_it_so_that_nobody_waits_for_a_deadline(
    start: Start, tmp_path: Path
) -> None:
    began_s = time.monotonic()
    stopped, _ = with_stopped_spawner(start, tmp_path, "--workers-stop-timeout", "0.5")
    interrupted, _ = with_stopped_spawner(start, tmp_path)
    interrupted.process.send_signal(signal.SIGINT)
    wait_until(lambda: "stop_requested" in interrupted.kinds(), timeout_s=10, what="the first Ctrl-C")
    interrupted.process.send_signal(signal.SIGINT)
    assert stopped.holdfast("stop", "--wait", stopped.job_id).returncode == 0
    assert stopped.wait() == 93
    assert interrupted.wait() == 128 + signal.SIGINT
    assert time.monotonic() - began_s < 15  # the shortest of its deadlines
    for launch in (stopped, interrupted):
        assert_nothing_left(launch)
