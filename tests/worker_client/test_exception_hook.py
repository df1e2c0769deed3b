"""A failed rank ends at once if that is wanted, and nobody's hook is lost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.worker_client.fake_supervisor import FakeSupervisor
from worker_client import RankMonitorClient

SCRIPT = """
import threading
from worker_client import RankMonitorClient
client = RankMonitorClient()
client.init_workload_monitoring()
threading.Thread(target=threading.Event().wait).start()  # would keep the interpreter from its end
print("printed before")
raise ValueError("the reason")
"""


def test_the_hook_ends_a_process_that_could_not_end(supervisor: FakeSupervisor):
    supervisor.install_exception_hook = True
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=root, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert "ValueError: the reason" in done.stderr
    assert done.stdout == "printed before\n"


def test_the_hook_is_taken_out_at_shutdown(supervisor: FakeSupervisor, new_client: Callable[[], RankMonitorClient]):
    supervisor.install_exception_hook = True
    before = sys.excepthook
    client = new_client()
    client.init_workload_monitoring()
    supervisor.wait(lambda: sys.excepthook is not before, "the hook")
    client.shutdown_workload_monitoring()
    assert sys.excepthook is before
