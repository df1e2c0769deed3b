"""Do `make demo` and `make demo-cluster` keep their promises?"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.config.environment import ONE_THREAD

ROOT = Path(__file__).parent.parent.parent
DEMO = ROOT / "docs/examples/demo.py"


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("steps", "killed_at"), [(60, 13), pytest.param(200, 45, marks=pytest.mark.soak)])
def test_the_demo_survives_its_faults_and_says_how(tmp_path: Path, steps: int, killed_at: int):
    output = tmp_path / "demo"
    command = [sys.executable, str(DEMO), "--output", str(output), "--steps", str(steps)]
    environment = os.environ | {"COLUMNS": "80"}
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout
    assert "Success" in done.stdout
    told = done.stdout.splitlines()
    kill = told.index(f"* step {killed_at}: rank 1 is killed (SIGKILL); ranks that lose it may print tracebacks")
    assert not any("Traceback" in line for line in told[:kill])
    assert "takes about a minute" in done.stdout
    own = (
        told[: told.index("holdfast: " + ONE_THREAD)]
        + told[told.index("What happened, and why (* is what the demo did)") :]
    )
    wide = [line for line in own if len(line) > 80 and len(line.split()) > 1 and str(output) not in line]
    assert wide == []
    again = [" ".join(line.split()[3:]) for line in own if " restart_decided " in line]
    assert again == [f"restarting at once, restarts used {number} of 5" for number in (1, 2, 3)]
    kinds = [json.loads(line)["kind"] for line in (output / "events.jsonl").read_text().splitlines()]
    assert kinds.count("cycle_started") == 4  # the first, and one after each fault
    assert kinds.count("hang_detected") == 2
    assert "3 incidents, 3 of 5 restarts used" in (output / "report.html").read_text()
    curve = [json.loads(line) for line in (output / "curve.jsonl").read_text().splitlines()]
    assert sum(point["resumed"] for point in curve) == 3
    assert curve[-1]["loss"] < curve[0]["loss"] / 2


def test_neither_demo_removes_the_report_of_the_other() -> None:
    makers = [(ROOT / f"docs/examples/{name}.py").read_text() for name in ("demo", "demo_cluster")]
    folders = [re.search(r'default=Path\("(.*?)"\)', text) for text in makers]
    assert [each[1] for each in folders if each] == ["demo-output", "demo-cluster-output"]


@pytest.mark.soak
@pytest.mark.timeout(180)
def test_the_demo_of_a_cluster_replaces_a_lost_node_by_its_spare(tmp_path: Path):
    output = tmp_path / "demo"
    command = [
        sys.executable,
        "-m",
        "docs.examples.demo_cluster",
        "--act",
        "1",
        "--output",
        str(output),
        "--steps",
        "40",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Success" in done.stdout
    assert "2 incidents" in (output / "report.html").read_text()
    told = [json.loads(line) for line in (output / "events.jsonl").read_text().splitlines()]
    started = [(each["cycle"], each["on"]) for each in told if each["kind"] == "cycle_started"]
    assert sorted(started) == [(0, 1), (0, 2), (1, 1), (1, 2), (2, 1), (2, 3)]


@pytest.mark.soak
@pytest.mark.timeout(180)
@pytest.mark.skipif(not (shutil.which("etcd") and shutil.which("etcdctl")), reason="needs etcd-server and etcd-client")
def test_the_demo_of_a_cluster_outlives_the_node_of_its_elected_leader(tmp_path: Path):
    """The second act. The dead leader's journal is not asked: the others report the second cycle."""
    output = tmp_path / "demo"
    command = [sys.executable, "-m", "docs.examples.demo_cluster", "--act", "2", "--output", str(output)]
    done = subprocess.run(
        [*command, "--steps", "40"], cwd=ROOT, capture_output=True, text=True, timeout=170, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Success" in done.stdout
    assert "leads the job now" in done.stdout
    told = [json.loads(line) for line in (output / "elected" / "events.jsonl").read_text().splitlines()]
    started = {(each["cycle"], each["on"]) for each in told if each["kind"] == "cycle_started"}
    assert {(1, 2), (1, 3)} <= started
    assert {cycle for cycle, _ in started} == {0, 1}
    assert any(each["kind"] == "leader_changed" for each in told)
    curve = [json.loads(line) for line in (output / "elected" / "curve.jsonl").read_text().splitlines()]
    assert sum(point["resumed"] for point in curve) == 1
    assert curve[-1]["step"] == 39
