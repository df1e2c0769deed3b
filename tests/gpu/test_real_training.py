"""A real model that is killed repeatedly, and steps that are watched (rows 9 and 10).

The variants on the CPU only test the scripts; they belong to `make soak`.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.launch import processes_with

if TYPE_CHECKING:
    from tests.gpu.conftest import Start

pytestmark = pytest.mark.timeout(1500)

SCRIPTS = Path(__file__).parent / "scripts"
STEP_WAIT_S = 120.0  # for the first step after a kill
LAST_S = 5.0  # of training after the last kill
on_each_device = pytest.mark.parametrize(
    ("device", "kills"),
    [pytest.param("cpu", 2, marks=pytest.mark.soak), pytest.param("cuda", 20, marks=pytest.mark.gpu)],
)
COOKIE = "HOLDFAST_TEST_TRAINING"


class Training:
    """The script's output, and its victim."""

    def __init__(self, folder: Path, is_alive: Callable[[], bool]) -> None:
        self.folder = folder
        self._is_alive = is_alive
        self.killed: list[int] = []

    @property
    def steps(self) -> list[dict[str, Any]]:
        trace = self.folder / "trace.jsonl"
        lines = trace.read_text().splitlines() if trace.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def kill_at_random(self, kills: int) -> None:
        """Kills it several times, each after some seconds of training. Stops if the launcher has given up."""
        chance = random.Random(9)
        for _ in range(kills):
            pid = self._until_a_step_of_another()
            if pid is None:
                return
            time.sleep(chance.uniform(1.0, 4.0))
            os.kill(pid, signal.SIGKILL)
            self.killed.append(pid)
        if self._until_a_step_of_another() is not None:
            time.sleep(LAST_S)

    def _until_a_step_of_another(self) -> int | None:
        until_s = time.monotonic() + STEP_WAIT_S
        while time.monotonic() < until_s:
            steps = self.steps
            if steps and steps[-1]["pid"] not in self.killed:
                return int(steps[-1]["pid"])
            if not self._is_alive():
                return None
            time.sleep(0.01)
        return None

    def useful_share(self) -> float:
        """Returns the share of the time, from the first step to the last, in steps that were not repeated."""
        steps = self.steps
        gaps = [
            later["at"] - earlier["at"]
            for earlier, later in itertools.pairwise(steps)
            if later["pid"] == earlier["pid"]
        ]
        useful = len({each["step"] for each in steps}) * statistics.fmean(gaps)
        return min(1.0, useful / (steps[-1]["at"] - steps[0]["at"]))


def assert_it_went_on(training: Training) -> None:
    """Each process began at a checkpoint, and its losses equal the earlier ones."""
    first: dict[int, float] = {}
    begun: set[int] = set()
    repeated = 0
    for each in training.steps:
        if each["pid"] not in begun and begun:
            assert each["step"] % 20 == 0, "it began at a checkpoint"
            assert each["step"] <= max(first) + 1
        begun.add(each["pid"])
        known = first.setdefault(each["step"], each["loss"])
        repeated += known is not each["loss"]
        assert each["loss"] == pytest.approx(known, rel=0.1), f"step {each['step']}"
    assert len(begun) == len(training.killed) + 1
    losses = [first[step] for step in sorted(first)]
    quarter = max(1, len(losses) // 4)
    print(f"{len(losses)} steps, {repeated} repeated, loss {losses[0]:.3f} → {losses[-1]:.3f}")
    assert statistics.fmean(losses[-quarter:]) < statistics.fmean(losses[:quarter])


@on_each_device
def test_training_that_is_killed_at_random_goes_on(start: Start, tmp_path: Path, device: str, kills: int) -> None:
    data = tmp_path / "data"
    data.mkdir()
    script = str(SCRIPTS / "train_until_told.py")
    environment = {"DEVICE": device, "TRACE": str(data / "trace.jsonl")}
    launch = start("--max-restarts", str(kills + 5), "--preload", "torch", script, str(data), environment=environment)
    ours = Training(data, lambda: launch.process.poll() is None)
    ours.kill_at_random(kills)
    (data / "end").touch()
    assert launch.wait(120) == 0, launch.explained()
    assert len(ours.killed) == kills, launch.explained()
    assert_it_went_on(ours)

    beside = tmp_path / "torchrun"
    beside.mkdir()
    theirs = under_torchrun(script, beside, device, kills)
    told = f"{theirs.useful_share():.1%}" if len(theirs.steps) > 2 else "nothing"
    given_up = "" if len(theirs.killed) == kills else f" (it gave up after {len(theirs.killed)} kills)"
    print(f"{device}, {kills} kills: useful time {ours.useful_share():.1%}, torchrun {told}{given_up}")
    if not given_up and device == "cuda":
        assert ours.useful_share() > theirs.useful_share()


def under_torchrun(script: str, folder: Path, device: str, kills: int) -> Training:
    """Runs the same training with the same faults."""
    arguments = ("--standalone", "--nproc-per-node=1", f"--max-restarts={kills + 5}", script, str(folder))
    trace = str(folder / "trace.jsonl")
    environment = {**os.environ, "DEVICE": device, "TRACE": trace, COOKIE: str(folder)}
    with (
        (folder / "output").open("wb") as output,
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *arguments], env=environment, stdout=output, stderr=output
        ) as process,
    ):
        theirs = Training(folder, lambda: process.poll() is None)
        try:
            theirs.kill_at_random(kills)
            (folder / "end").touch()
            process.wait(120)
        finally:
            process.kill()
            for pid in processes_with(str(folder), COOKIE):
                os.kill(pid, signal.SIGKILL)
    return theirs


@pytest.mark.parametrize(
    ("device", "pairs"),
    [pytest.param("cpu", 4, marks=pytest.mark.soak), pytest.param("cuda", 60, marks=pytest.mark.gpu)],
)
def test_heartbeats_sections_and_ping_cost_a_step_nothing(start: Start, device: str, pairs: int) -> None:
    launch = start(str(SCRIPTS / "steps_of_1_ms.py"), str(pairs), "250", environment={"DEVICE": device})
    assert launch.wait(300) == 0, launch.explained()
    [line] = [each for each in launch.stdout_text().splitlines() if each.startswith("{")]
    found = json.loads(line)
    print(
        f"{device}: a step of {found['step_s'] * 1000:.3f} ms takes {found['mean']:+.3%} longer when watched "
        f"(95 %: {found['from']:+.3%} to {found['to']:+.3%})"
    )
    assert 0.0009 < found["step_s"] < (0.002 if device == "cuda" else 0.02)
    assert found["from"] <= found["mean"] <= found["to"]
    if device == "cuda":  # a CPU that others use, too, shows nothing
        assert found["to"] < 0.01
