"""Do the examples of in-process restart run as their first lines say, and show what they promise?

Limits are long: if torch deadlocks at a function's end (docs/reference/in-process.md, known limits), the hard timeout,
up to 90 s, ends that. That is slow, but not a failure of the example.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.launch import Launch, assert_nothing_left, launched
from tests.e2e.torchrun import torchrun

EXAMPLES = Path(__file__).parents[2] / "docs/examples"
BASIC, ADVANCED = str(EXAMPLES / "inprocess_basic.py"), str(EXAMPLES / "inprocess_advanced.py")
LIMIT_S = 200.0
WORLD_SIZE = 3
LOSS_MAX = 0.5  # it starts near 16

pytestmark = pytest.mark.timeout(260)


def losses(output: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"finished with loss ([\d.]+)", output)]


def starts(output: str, iteration: int) -> list[tuple[int, int, int]]:
    """Returns the ranks that began the iteration: rank, world size, step."""
    found = re.findall(rf"iteration {iteration}: rank (\d+) of (\d+) starts at step (\d+)", output)
    return sorted((int(rank), int(world_size), int(step)) for rank, world_size, step in found)


def assert_resumed(output: str, world_size: int) -> None:
    """All resume at one checkpoint: the step before the fault, or one earlier if the fault was faster."""
    begun = starts(output, 1)
    steps = {step for _, _, step in begun}
    assert steps in ({20}, {30})
    assert [each[:2] for each in begun] == [(rank, world_size) for rank in range(world_size)]


def run(launch: Launch) -> str:
    assert launch.wait(LIMIT_S) == 0, launch.explained()
    assert_nothing_left(launch)
    return launch.stdout_text()


def test_basic_goes_on_at_the_checkpoint_in_the_same_processes(tmp_path: Path):
    with launched(tmp_path, "--nproc-per-node", str(WORLD_SIZE), BASIC, "--fail-at-step", "30") as launch:
        output = run(launch)
        assert starts(output, 0) == [(rank, WORLD_SIZE, 0) for rank in range(WORLD_SIZE)]
        assert_resumed(output, WORLD_SIZE)
        assert len(losses(output)) == WORLD_SIZE
        assert max(losses(output)) < LOSS_MAX
        assert "iteration_restarted" in launch.kinds()
        assert launch.kinds().count("worker_started") == WORLD_SIZE


@pytest.mark.soak
def test_basic_under_torchrun(tmp_path: Path):
    script = (BASIC, "--fail-at-step", "30", "--checkpoint", str(tmp_path / "checkpoint.pt"))
    ended = torchrun(tmp_path, "--standalone", "--nproc-per-node", "2", *script)
    output = ended.stdout.decode()
    assert ended.code == 0, output + ended.stderr.decode()
    assert_resumed(output, 2)
    assert len(losses(output)) == 2
    assert max(losses(output)) < LOSS_MAX


@pytest.mark.soak
def test_basic_under_plain_python(tmp_path: Path):
    launchers = ("HOLDFAST", "TORCHELASTIC", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_", "SLURM_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(launchers)}
    environment["HOLDFAST_STATE_DIR"] = str(tmp_path / "state")
    ended = subprocess.run(
        [sys.executable, BASIC], env=environment, cwd=tmp_path,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr[-4000:]
    assert starts(ended.stdout, 0) == [(0, 1, 0)]
    assert "iteration 1" not in ended.stdout
    (loss,) = losses(ended.stdout)
    assert loss < LOSS_MAX


def test_advanced_puts_its_reserve_in_place_of_a_killed_rank(tmp_path: Path):
    options = ("--nproc-per-node", str(WORLD_SIZE + 1), "--max-restarts", "2")
    with launched(tmp_path, *options, ADVANCED, "--active", str(WORLD_SIZE), "--kill-at-step", "30") as launch:
        output = run(launch)
        assert starts(output, 0) == [(rank, WORLD_SIZE, 0) for rank in range(WORLD_SIZE)]
        assert_resumed(output, WORLD_SIZE)
        assert output.count("iteration 0 is over, closing its files") == WORLD_SIZE  # all but the killed one
        assert output.count("finished") >= WORLD_SIZE
        assert {"iteration_interrupted", "rank_replaced", "iteration_restarted"} <= set(launch.kinds())
