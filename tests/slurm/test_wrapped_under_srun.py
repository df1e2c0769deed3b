"""Does a wrapped call under srun, without a launcher, go on after a fault before all ranks have met?"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.slurm.batch import OVER, Job, submit
from tests.slurm.slurm_lab import ROOT, SlurmLab

SCRIPT = ROOT / "tests/slurm/scripts/wrapped_early.py"
RANKS = 3
HOW = ("initialize", "early", "server")
STEPS, CALLS = 21, 10
SOAK_S = 1500.0
FIRST_PORT = 20000
BACK_S = 20.0  # the hard timeout, which would end a rank that waits, is 90 s


def steps(slurm: SlurmLab, count: int, calls: int, *how: str) -> Job:
    """Runs steps on three nodes, one after another, each in a folder of its own, with each fault in turn."""
    how = how or HOW
    lines = [
        f"mkdir {number}; MASTER_PORT={FIRST_PORT + 100 * number} srun --kill-on-bad-exit=0 -N{RANKS} "
        f"--ntasks-per-node=1 {sys.executable} {SCRIPT} {number} {calls} {how[number % len(how)]} > {number}/log 2>&1"
        for number in range(count)
    ]
    return submit(slurm, "wrapped", "\n".join(("#!/bin/sh", f"#SBATCH -N{RANKS} --ntasks-per-node=1", *lines, "")))


def backs_s(folder: Path) -> list[float]:
    """Returns how long after each fault the last rank was back; all have returned from all calls."""
    lines = [json.loads(line) for line in (folder / "trace").read_text().splitlines()]
    faults = [line["at"] for line in lines if line["what"] == "fault"]
    again = [
        sorted(each["at"] for each in lines if each["what"] == "fn" and each["iteration"] == 1 and each["rank"] == rank)
        for rank in range(RANKS)
    ]
    returned = [line["rank"] for line in lines if line["what"] == "returned"]
    said = (folder / "log").read_text()
    assert [len(each) for each in again] == [len(faults)] * RANKS, said
    assert sorted(returned) == sorted([*range(RANKS)] * len(faults)), said
    return [max(at) - fault for fault, *at in zip(faults, *again, strict=True)]


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_no_rank_waits_for_a_store_that_nobody_serves(slurm: SlurmLab):
    job = steps(slurm, len(HOW), 2)
    assert job.end() == ("COMPLETED", "0:0"), job.log()
    for number in range(len(HOW)):
        assert max(backs_s(job.folder / str(number))) < BACK_S, HOW[number]


@pytest.mark.timeout(300)
def test_a_rank_that_is_killed_before_it_serves_the_store_frees_the_others(slurm: SlurmLab):
    """No rank is left on its node, so nobody there can serve the store in its place."""
    job = steps(slurm, 1, 1, "killed")
    job.until(lambda: job.state in OVER, "the end", SOAK_S)
    lines = [json.loads(line) for line in (job.folder / "0" / "trace").read_text().splitlines()]
    said = (job.folder / "0" / "log").read_text()
    assert sorted(line["rank"] for line in lines if line["what"] == "returned") == [1, 2], said
    (killed,) = [line["at"] for line in lines if line["what"] == "fault"]
    again = [line["at"] - killed for line in lines if line["what"] == "fn" and line["iteration"] == 1]
    assert len(again) == 2
    assert max(again) < BACK_S, said


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_of_two_hundred_faults_none_leaves_a_rank_waiting(slurm: SlurmLab):
    job = steps(slurm, STEPS, CALLS)
    job.until(lambda: job.state in OVER, "the end", SOAK_S)
    assert job.end() == ("COMPLETED", "0:0"), job.log()
    took_s: list[float] = []
    for number in range(STEPS):
        found_s = backs_s(job.folder / str(number))
        assert len(found_s) == CALLS
        print(f"{HOW[number % len(HOW)]}: {' '.join(f'{each_s:.2f}' for each_s in found_s)}")
        took_s += found_s
    assert len(took_s) >= 200
    assert max(took_s) < BACK_S
