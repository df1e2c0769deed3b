"""Do the examples of deploy/slurm do under a real Slurm what they say?"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.slurm.batch import TRAIN, Job, submit
from tests.slurm.slurm_lab import FREEZER, HOME, USER_ID, CgroupLab, SlurmLab, missing, slurm_lab

RANKS = 4


def test_a_job_on_two_nodes_recovers_from_a_killed_rank_and_every_fact_comes_from_slurm(slurm: SlurmLab):
    job = submit(slurm, "one", "job.sbatch", str(TRAIN), ".", "0.5", "kill:3:0")
    assert job.end() == ("COMPLETED", "0:0"), job.log()
    assert "rank 3 (pid " in job.log()
    assert "restarting at once, restarts used 1 of 3" in job.log()
    ranks = sorted(job.noted("done", cycle=1), key=lambda rank: int(str(rank["RANK"])))
    assert [rank["RANK"] for rank in ranks] == ["0", "1", "2", "3"]
    assert [rank["node"] for rank in ranks] == ["node1", "node1", "node2", "node2"]
    assert [rank["GROUP_RANK"] for rank in ranks] == [rank["SLURM_PROCID"] for rank in ranks]
    assert {rank["TORCHELASTIC_RUN_ID"] for rank in ranks} == {f"slurm-{job.number}-0"}
    assert not list(job.folder.glob(".holdfast-token*"))


@pytest.mark.parametrize("example", ["job.sbatch", pytest.param("spares.sbatch", marks=pytest.mark.soak)])
def test_scancel_ends_the_ranks_and_takes_nothing_for_a_fault(slurm: SlurmLab, example: str):
    job = submit(slurm, f"cancelled-{example}", example, str(TRAIN), ".", "600")
    job.until_noted("started", RANKS)
    slurm.ask("scancel", job.number)
    assert job.end()[0] == "CANCELLED"
    slurm.until_idle()
    assert len(job.noted("SIGTERM")) == RANKS
    assert not job.noted("started", cycle=1)
    assert "restarting" not in job.log()
    assert slurm.strangers() == []


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_an_array_queues_its_tasks_again_by_their_exit_codes(slurm: SlurmLab):
    """Task 0 succeeds, 1 fails at first, 2 always; a job without progress reports that a retry does not help."""
    orders = ("task1:1:first", "task2:1")
    job = submit(slurm, "array", "array.sbatch", str(TRAIN), ".", "0", *orders, flags=("--array=0-2",))
    tasks = [Job(slurm, job.folder, f"{job.number}_{number}") for number in range(3)]
    assert [task.end() for task in tasks] == [("COMPLETED", "0:0"), ("COMPLETED", "0:0"), ("FAILED", "1:0")], job.log()
    assert [task.shown()["Restarts"] for task in tasks] == ["0", "1", "2"]
    progress = ("--ft-checkpoint-iteration-file", "iteration")
    job = submit(slurm, "vain", "array.sbatch", *progress, str(TRAIN), ".", "0", "task0:1", flags=("--array=0",))
    (job.folder / "iteration").write_text("7")
    assert job.end() == ("FAILED", "93:0"), job.log()
    assert job.shown()["Restarts"] == "0"


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_an_array_task_that_slurm_stops_is_queued_again_however_often(slurm: SlurmLab):
    """SLURM_RESTART_COUNT counts these attempts, too. SIGTERM without the end of the job: as a preemption begins."""
    job = submit(slurm, "stops", "array.sbatch", str(TRAIN), ".", "600", flags=("--array=0",))
    for restarts in (1, 2, 3):
        job.until_noted("started", 2 * restarts)
        slurm.ask("scancel", "--signal=TERM", f"{job.number}_0")
        job.until(lambda count=str(restarts): job.shown()["Restarts"] == count, "a requeue")
    assert "exit code 143 in try 3" in job.log()
    job.until_noted("started", 8)
    job.let_end()
    assert job.end() == ("COMPLETED", "0:0"), job.log()


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("example", ["job.sbatch", "spares.sbatch"])
def test_a_job_that_fails_is_queued_again_unless_its_exit_code_is_final(slurm: SlurmLab, example: str):
    job = submit(slurm, f"again-{example}", example, str(TRAIN), ".", "0", "task:1:first")
    assert job.end() == ("COMPLETED", "0:0"), job.log()
    assert "exit code 1 in try 1 of 10" in job.log()
    assert job.shown()["Restarts"] == "1"
    wrong = submit(slurm, f"wrong-{example}", example, "--no-such-flag", str(TRAIN))
    assert wrong.end() == ("FAILED", "2:0"), wrong.log()
    assert wrong.shown()["Restarts"] == "0"


@pytest.mark.soak
def test_a_spare_takes_the_place_of_a_node_without_power(slurm: SlurmLab):
    job = submit(slurm, "spare", "spares.sbatch", str(TRAIN), ".", "600")
    job.until_noted("started", RANKS)
    slurm.lab.nodes[2].lose_power()
    job.until_noted("started", RANKS, cycle=1)
    assert {rank["node"] for rank in job.noted("started", cycle=1)} == {"node1", "node3"}
    job.let_end()
    assert job.end() == ("COMPLETED", "0:0"), job.log()
    assert "node node2 is lost" in job.log()
    slurm.boot_again(2)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_lost_node_that_is_back_before_slurm_removes_it_does_not_fail_the_job(slurm: SlurmLab):
    """Slurm then ends the step: the job is queued again, unless the ranks have reached their end."""
    job = submit(slurm, "back", "spares.sbatch", str(TRAIN), ".", "600")
    job.until_noted("started", RANKS)
    slurm.lab.nodes[2].lose_power()
    slurm.boot_again(2)
    job.until_noted("started", 2 * RANKS)
    job.let_end()
    assert job.end() == ("COMPLETED", "0:0"), job.log()


@pytest.mark.soak
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("example", "flags"), [("job.sbatch", ()), ("spares.sbatch", ()), ("array.sbatch", ("--array=0",))]
)
def test_what_an_operator_has_stopped_is_not_queued_again(slurm: SlurmLab, example: str, flags: tuple[str, ...]):
    job = submit(slurm, f"stopped-{example}", example, str(TRAIN), ".", "600", flags=flags)
    (first, *_) = job.until_noted("started", RANKS if not flags else 2)
    user = ("setpriv", f"--reuid={USER_ID}", f"--regid={USER_ID}", "--clear-groups", "env", f"HOME={HOME}")
    number, run = int(str(first["node"])[-1]), str(first["TORCHELASTIC_RUN_ID"])
    stopped = slurm.on_node(number, *user, "/opt/holdfast/bin/holdfast", "stop", run)
    assert stopped.code == 0, stopped
    assert job.end() == ("FAILED", "93:0"), job.log()
    assert job.shown()["Restarts"] == "0"


@pytest.mark.soak
def test_a_node_that_is_ill_leaves_and_the_job_still_counts_as_a_success(slurm: SlurmLab):
    for number in (1, 3):
        slurm.on_node(number, "touch", "/run/fit")
    flags = ("--ft-storage-health-check-path", "/run/fit")
    job = submit(slurm, "ill", "spares.sbatch", *flags, str(TRAIN), ".", "0.5")
    assert job.end() == ("COMPLETED", "0:0"), job.log()
    assert {rank["node"] for rank in job.noted("done")} == {"node1", "node3"}
    assert "node2" in job.log()


@pytest.mark.soak
@pytest.mark.timeout(240)
@pytest.mark.parametrize("example", ["job.sbatch", "spares.sbatch"])
def test_a_job_whose_first_node_is_lost_is_queued_again_by_slurm(slurm: SlurmLab, example: str):
    """The batch script and the leader are on it."""
    job = submit(slurm, f"first-{example}", example, str(TRAIN), ".", "600")
    job.until_noted("started", RANKS)
    slurm.lab.nodes[1].lose_power()
    job.until(lambda: job.shown()["Restarts"] == "1", "a requeue")
    slurm.boot_again(1)
    job.until_noted("started", 2 * RANKS)
    again = [rank for rank in job.noted("started") if rank.get("SLURM_RESTART_COUNT") == "1"]
    assert {(rank["cycle"], rank["TORCHELASTIC_RUN_ID"]) for rank in again} == {(0, f"slurm-{job.number}-0")}
    job.let_end()
    assert job.end() == ("COMPLETED", "0:0"), job.log()


@pytest.mark.soak
@pytest.mark.timeout(240)
@pytest.mark.parametrize("example", ["job.sbatch", "spares.sbatch"])
def test_a_job_with_higher_priority_takes_the_nodes_after_the_ranks_have_saved(slurm: SlurmLab, example: str):
    """GraceTime is 20 s. The ranks need 2 s of it, and the job restarts when the nodes are free."""
    job = submit(slurm, f"preempted-{example}", example, str(TRAIN), ".", "600", "save:2")
    job.until_noted("started", RANKS)
    urgent = submit(slurm, "urgent", "#!/bin/sh\nexit 0\n", flags=("--partition=urgent", "--nodes=3", "--exclusive"))
    assert urgent.end() == ("COMPLETED", "0:0")
    assert len(job.noted("saved")) == RANKS
    job.until(lambda: job.shown()["Restarts"] == "1", "a requeue")
    job.until_noted("started", 2 * RANKS)
    assert "restarting" not in job.log()
    job.let_end()
    assert job.end() == ("COMPLETED", "0:0"), job.log()


@pytest.mark.soak
@pytest.mark.timeout(240)
@pytest.mark.skipif(bool(missing()), reason=missing())
@pytest.mark.skipif(not FREEZER.is_dir(), reason="needs control groups of version 1")
def test_slurm_that_signals_the_first_process_of_a_task_alone_lets_the_ranks_save(tmp_path: Path):
    """As it does with proctrack/cgroup. In spares.sbatch, this process is a shell."""
    with slurm_lab(tmp_path, CgroupLab) as slurm:
        job = submit(slurm, "spares", "spares.sbatch", str(TRAIN), ".", "600", "save:2")
        job.until_noted("started", RANKS)
        slurm.ask("scancel", "--signal=TERM", job.number)
        job.until(lambda: job.shown()["Restarts"] == "1", "a requeue")
        assert len(job.noted("saved")) == RANKS
        slurm.ask("scancel", job.number)
        slurm.until_idle()
        assert slurm.strangers() == []


@pytest.mark.soak
@pytest.mark.timeout(240)
@pytest.mark.parametrize("example", ["job.sbatch", "spares.sbatch"])
def test_the_time_limit_leaves_the_ranks_the_kill_wait_to_save(slurm: SlurmLab, example: str):
    job = submit(slurm, f"limit-{example}", example, str(TRAIN), ".", "600", "save:1", flags=("--time=1",))
    job.until_noted("started", RANKS)
    slurm.until(lambda: job.state == "TIMEOUT", "the time limit", 150)
    assert len(job.noted("saved")) == RANKS
    assert "restarting" not in job.log()
    slurm.until_idle()
    assert slurm.strangers() == []
