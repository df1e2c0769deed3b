"""Does accounting (slurmdbd, `sacct`) record jobs of Holdfast as they were?"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.slurm import accounting, slurm_lab
from tests.slurm.accounting import AccountedLab
from tests.slurm.batch import TRAIN, submit

pytestmark = pytest.mark.soak
WELL = [("", "COMPLETED", "0:0"), (".batch", "COMPLETED", "0:0"), (".0", "COMPLETED", "0:0")]


@pytest.fixture(scope="module")
def accounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AccountedLab]:
    if why := slurm_lab.missing() or accounting.missing():
        pytest.skip(f"cannot start Slurm with accounting: {why}")
    with slurm_lab.slurm_lab(tmp_path_factory.mktemp("accounts"), AccountedLab) as running:
        assert isinstance(running, AccountedLab)
        yield running


def test_a_recovered_job_is_completed_in_all_its_steps(accounted: AccountedLab):
    job = submit(accounted, "one", "job.sbatch", str(TRAIN), ".", "0.5", "kill:3:0")
    assert job.end() == ("COMPLETED", "0:0"), job.log()
    assert accounted.accounted(job.number) == WELL


def test_a_cancelled_job_is_cancelled_and_its_step_says_by_which_signal(accounted: AccountedLab):
    job = submit(accounted, "cancelled", "job.sbatch", str(TRAIN), ".", "600")
    job.until_noted("started", 4)
    accounted.ask("scancel", job.number)
    job.end()
    accounted.until_idle()
    found = [("", "CANCELLED", "0:0"), (".batch", "CANCELLED", "0:15"), (".0", "FAILED", "15:0")]
    assert accounted.accounted(job.number) == found


def test_each_attempt_of_a_requeued_job_is_kept(accounted: AccountedLab):
    job = submit(accounted, "array", "array.sbatch", str(TRAIN), ".", "0", "task0:1:first", flags=("--array=0",))
    assert job.end() == ("COMPLETED", "0:0"), job.log()
    first = [("_0", "REQUEUED", "0:0"), ("_0.batch", "FAILED", "1:0"), ("_0.0", "FAILED", "1:0")]
    assert accounted.accounted(job.number) == first + [(f"_0{step}", state, code) for step, state, code in WELL]


def test_the_code_of_a_job_that_no_restart_would_help_is_that_of_all_its_steps(accounted: AccountedLab):
    job = submit(accounted, "usage", "array.sbatch", "--no-such-flag", str(TRAIN), flags=("--array=0",))
    assert job.end() == ("FAILED", "2:0"), job.log()
    assert {(state, code) for _, state, code in accounted.accounted(job.number)} == {("FAILED", "2:0")}
