"""The share of useful time: what counts, what is lost, and what do the picture and the page say about it?"""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.benchmarks import report
from tests.benchmarks.conditions import Conditions
from tests.benchmarks.pictures import Lane, lanes_picture
from tests.benchmarks.rows import Group, Row, Target, Unit, judge, show
from tests.benchmarks.runs import Run
from tests.benchmarks.subjects import WORKLOADS
from tests.benchmarks.useful_time import (
    EXCEPTION,
    FAULT_EVERY_S,
    FAULT_JITTER_S,
    KILL,
    SILENCE,
    Step,
    Steps,
    plan,
    split_up,
)

ROOT = Path(__file__).parents[2]
S = 1_000_000_000
LABELS = {"torchrun_tuned": "torchrun tuned", "holdfast": "holdfast"}


def test_a_step_counts_once_in_its_last_execution():
    steps = Steps()
    for number in range(14):
        steps.add(Step(number, number * S, (number + 1) * S))
    steps.add(Step(10, 100 * S, 101 * S))  # back at the checkpoint
    assert [step.number for step in steps.counted] == list(range(11))
    assert steps.counted[-1].began_ns == 100 * S
    assert sorted(step.number for step in steps.lost) == [10, 11, 12, 13]


def test_the_time_of_a_run_is_split_up_without_a_rest():
    steps, tenth = Steps(), S // 10
    for number in range(14):
        steps.add(Step(number, (20 + 11 * number) * tenth, (30 + 11 * number) * tenth))  # 0.1 s apart, up to 17.3 s
    for number in range(10, 13):
        steps.add(Step(number, (93 + 10 * number) * tenth, (103 + 10 * number) * tenth))  # back after 2 s, up to 22.3 s
    steps.add(Step(13, 240 * tenth, 260 * tenth))  # ends too late
    split = split_up(steps, 0, 25.0)
    assert (split.counted_s, split.start_s, split.returns, split.again_s) == (13.0, 2.0, 1, 4.0)
    assert (split.return_s, round(split.between_s, 6)) == (2.0, 4.0)


def test_a_return_right_after_a_checkpoint_is_one_too():
    steps = Steps()
    for step in (Step(0, 0, S), Step(1, S, 2 * S), Step(2, 3 * S, 4 * S), Step(3, 4 * S + S // 10, 5 * S)):
        steps.add(step)
    assert (split := split_up(steps, 0, 5.0)).returns == 1
    assert (split.return_s, round(split.between_s, 3)) == (1.0, 0.1)


def test_the_plan_is_the_same_for_everybody_and_has_each_kind():
    faults = plan(300.0, (KILL, SILENCE))
    assert faults == plan(300.0, (KILL, SILENCE))
    assert {fault.signal for fault in faults} == {KILL, SILENCE}
    assert len({fault.rank for fault in faults}) > 1
    assert len(faults) == 14
    for number, fault in enumerate(faults, start=1):
        assert abs(fault.at_s - number * FAULT_EVERY_S) <= FAULT_JITTER_S
    assert {fault.signal for fault in plan(300.0, (EXCEPTION,))} == {EXCEPTION}


def test_a_picture_shows_each_lane_and_each_fault():
    lanes = [Lane("ours & theirs", [(1.0, 20.0), (21.0, 60.0)], [(20.0, 20.5)])]
    drawn = ElementTree.fromstring(lanes_picture("useful time: share", lanes, [20.5, 40.0], 60.0))
    bars = [bar for bar in drawn if bar.tag.endswith("rect") and bar.get("height") == "26"]
    assert [bar.get("class") for bar in bars] == ["idle", "lost", "useful", "useful"]
    across = float(bars[0].get("width", 0)) / 60
    assert [round(float(bar.get("width", 0)) / across, 1) for bar in bars] == [60.0, 0.5, 19.0, 39.0]
    assert sum(line.get("class") == "fault" for line in drawn) == 2 + 1  # and in the legend
    assert "ours & theirs" in [text.text for text in drawn]


def test_the_page_tells_shares_and_shows_the_picture(tmp_path: Path):
    row = Row("useful_time_kills", Group.SPEED, "useful time: share", Unit.SHARE, Target(at_least=0.97))
    row.samples, row.picture = {"torchrun_tuned": [0.42], "holdfast": [0.974]}, "<svg/>"
    conditions = Conditions("2026-01-02 03:04 UTC", "abc", "A processor", 2, 4.0, "6.1", "3.11.7", {"torch": "2.13.0"})
    page, _ = report.write(tmp_path, [Run(conditions, [row])], LABELS)
    assert "| 42.0 % (n 1) | 97.4 % (n 1) | - | ≥ 97.0 %: met |" in page.read_text()
    assert "(benchmarks-useful-time-kills.svg)" in page.read_text()
    assert (tmp_path / "benchmarks-useful-time-kills.svg").read_text() == "<svg/>"
    row.samples["holdfast"] = [0.969]
    assert [finding.met for finding in judge(row, LABELS)] == [False]
    assert show(0.5, Unit.SHARE) == "50.0 %"


@pytest.mark.parametrize("client", ["worker_client", "file timers", "nvidia_resiliency_ext.fault_tolerance"])
def test_the_ranks_of_every_launcher_find_what_the_demos_training_imports(client: str, tmp_path: Path):
    """The ranks of the peers have no client of ours: a name that they lack would be taken for their loss of time."""
    os.mkfifo(tmp_path / "events")
    reader = os.open(tmp_path / "events", os.O_RDONLY | os.O_NONBLOCK)
    environ = {"BENCH_EVENTS": str(tmp_path / "events"), "BENCH_CLIENT": client, "RANK": "0"}
    command = [sys.executable, WORKLOADS / "useful_time.py", "--help"]
    environ |= {**os.environ, "TORCHELASTIC_RESTART_COUNT": "0", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    os.close(reader)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--silence-limit-s" in done.stdout
