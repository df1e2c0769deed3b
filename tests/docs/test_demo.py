"""Does `make demo` keep its promise?"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parent.parent.parent / "docs/examples/demo.py"


@pytest.mark.timeout(300)
def test_the_demo_survives_its_faults_and_says_how(tmp_path: Path):
    output = tmp_path / "demo"
    command = [sys.executable, str(DEMO), "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Success" in done.stdout
    kinds = [json.loads(line)["kind"] for line in (output / "events.jsonl").read_text().splitlines()]
    assert kinds.count("cycle_started") == 4  # the first, and one after each fault
    assert kinds.count("hang_detected") == 2
    curve = [json.loads(line) for line in (output / "curve.jsonl").read_text().splitlines()]
    assert sum(point["resumed"] for point in curve) == 3
    assert curve[-1]["loss"] < curve[0]["loss"] / 2
