"""Can the restart's exception come too early, or too late? Thousands of moments, in a separate process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]
ROUNDS = 3000


def test_it_is_raised_inside_the_function_and_nowhere_else():
    command = [sys.executable, "-m", "tests.worker_client.inprocess.interrupted_process", str(ROUNDS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    # Both happen continuously; how often depends on the machine.
    assert 0 < told["interrupted"] < told["rounds"]
