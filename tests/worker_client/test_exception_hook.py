"""A failed rank ends at once if that is wanted, and nobody's hook is lost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

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

# As init_process_group() does: what older hooks print is collected, and then printed with the rank in front.
COLLECTING_HOOK = """
import io, sys
older = sys.excepthook
def collect(*args):
    real, sys.stderr = sys.stderr, io.StringIO()
    try:
        older(*args)
    finally:
        collected, sys.stderr = sys.stderr, real
    sys.stderr.write("[rank0]: " + collected.getvalue())
"""
COLLECTED = """
from worker_client import RankMonitorClient
client = RankMonitorClient()
client.init_workload_monitoring()
{hook}
sys.excepthook = collect
raise ValueError("the reason")
"""
SHUT_DOWN_FIRST = """
import atexit
from worker_client import RankMonitorClient
client = RankMonitorClient()
client.init_workload_monitoring()
{hook}
sys.excepthook = collect
client.shutdown_workload_monitoring()
atexit.register(print, "ended as usual")
raise ValueError("the reason")
"""
WITH_TORCH = """
import sys, torch.distributed
from worker_client import RankMonitorClient
client = RankMonitorClient()
client.init_workload_monitoring()
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
raise ValueError("the reason")
"""


def ended(script: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[2]
    return subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("script", [COLLECTED.format(hook=COLLECTING_HOOK), WITH_TORCH], ids=["alike", "torch"])
def test_the_traceback_is_printed_under_a_hook_that_collects_it(supervisor: FakeSupervisor, script: str):
    supervisor.install_exception_hook = True
    done = ended(script)
    assert done.returncode == 1
    assert done.stderr.count("ValueError: the reason") == 1
    assert "Traceback" in done.stderr


def test_after_shutdown_the_hook_does_nothing_even_under_another_one(supervisor: FakeSupervisor):
    supervisor.install_exception_hook = True
    done = ended(SHUT_DOWN_FIRST.format(hook=COLLECTING_HOOK))
    assert done.returncode == 1
    assert done.stdout == "ended as usual\n"
    assert done.stderr.startswith("[rank0]: Traceback")


def test_the_hook_ends_a_process_that_could_not_end(supervisor: FakeSupervisor):
    supervisor.install_exception_hook = True
    done = ended(SCRIPT)
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
