"""What is left of a job whose supervisor and spawner are killed at once, and what is said of it?"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from tests.e2e.launch import wait_until

if TYPE_CHECKING:
    from tests.e2e.conftest import Start

DETACHES = """
import os, time
if not os.fork():
    os.setsid()
    if not os.fork():
        time.sleep(600)
    os._exit(0)
os.wait()
print("up", flush=True)
time.sleep(600)
"""


def name_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def test_only_a_detached_helper_is_left_and_the_next_run_of_the_id_names_it(start: Start, tmp_path: Path) -> None:
    script = tmp_path / "detaches.py"
    script.write_text(DETACHES)
    launch = start(str(script))
    launch.wait_for_output("up", count=1)
    (spawner,) = [pid for pid in launch.leftovers() if name_of(pid) == "hf-spawner"]
    for pid in (launch.process.pid, spawner):
        os.kill(pid, signal.SIGKILL)
    launch.process.wait()
    wait_until(lambda: len(launch.leftovers()) <= 1, timeout_s=10, what="the end of the workers")
    (helper,) = launch.leftovers()
    refused = launch.holdfast("run", "--job-id", launch.job_id, str(script), check=False)
    assert refused.returncode == 75
    assert f"nobody ends them, since their spawner is gone, too: kill -KILL {helper} does;" in refused.stderr
    os.kill(helper, signal.SIGKILL)
    wait_until(lambda: not launch.leftovers(), timeout_s=10, what="its end")
