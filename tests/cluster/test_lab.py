"""Does a lab end with the process that made it, however that ends?"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.launch import processes_with, wait_until

pytestmark = pytest.mark.usefixtures("namespaces")

MAKER = """
import time
from tests.cluster.lab import Lab
lab = Lab(2)
with open("/dev/null", "wb") as output:
    lab.nodes[1].start("sleep", "1000", environment={"PATH": "/usr/bin:/bin", "LAB": "COOKIE"}, output=output)
print(lab.nodes[1].init_pid, flush=True)
time.sleep(1000)
"""


def test_a_killed_maker_leaves_nothing(tmp_path: Path):
    cookie = f"lab-{tmp_path.name}-{tmp_path.parent.name}"
    maker = subprocess.Popen(
        [sys.executable, "-c", MAKER.replace("COOKIE", cookie)], cwd=Path(__file__).parents[2], stdout=subprocess.PIPE
    )
    assert maker.stdout is not None
    with maker, maker.stdout:
        held = Path(f"/proc/{int(maker.stdout.readline())}")
        wait_until(lambda: processes_with(cookie, "LAB"), timeout_s=20, what="a process on a node")
        maker.send_signal(signal.SIGKILL)
        wait_until(lambda: not held.exists(), timeout_s=20, what="the end of the node")
        wait_until(lambda: not processes_with(cookie, "LAB"), timeout_s=20, what="the end of what ran there")
