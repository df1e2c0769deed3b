"""Do the examples of docs/monitoring.md run as printed?"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "monitoring.md"
START = "from worker_client import RankMonitorClient\nclient = RankMonitorClient()\nclient.init_workload_monitoring()\n"
# What the text around an example assumes.
GIVEN = (
    "data, checkpoint = [1, 2], {}\n"
    "class BadDataError(Exception): pass\n"
    "def train(): raise BadDataError('row 7')\n"
    "client.send_heartbeat(); client.send_heartbeat()\n"
)

BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def _run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_example_runs(number: int, monkeypatch: pytest.MonkeyPatch):
    for name in ("HOLDFAST_SOCKET", "FT_RANK_MONITOR_IPC_SOCKET", "FT_LAUNCHER_IPC_SOCKET", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    example = BLOCKS[number]
    done = _run(example if number == 0 else START + GIVEN + example)
    if "raise\n" in example:
        assert done.stderr.endswith("BadDataError: row 7\n"), done.stderr
    else:
        assert done.returncode == 0, done.stderr
    assert "this rank is not monitored: HOLDFAST_SOCKET is not set" in done.stderr
