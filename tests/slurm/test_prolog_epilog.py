"""Do the prolog, the task prolog and the epilog of deploy/slurm do under a real Slurm what they say?"""

from __future__ import annotations

import os
import signal

import pytest

from tests.slurm.batch import EXAMPLES, TRAIN, Job, submit
from tests.slurm.slurm_lab import HOME, USER_ID, SlurmLab

COMMENT = ("--comment=holdfast",)
LEFTOVER = """#!/bin/bash
#SBATCH --output=%x-%j.log
setsid sleep 1234 < /dev/null > /dev/null 2>&1 &
touch started
"""
SUBMITS = """#!/bin/bash
#SBATCH --output=%x-%j.log
[ -n "$HOLDFAST_SOCKET_DIR" ] && sbatch --parsable --array=0 "$1" "$2" . 0 > number
"""


def test_the_prolog_starts_a_supervisor_of_the_user_and_nothing_of_it_is_left(slurm: SlurmLab):
    job = submit(slurm, "served", "job.sbatch", str(TRAIN), ".", "600", flags=COMMENT)
    ranks = job.until_noted("started", 4)
    folder = f"/run/holdfast-slurm/{job.number}"
    assert {rank["HOLDFAST_SOCKET"] for rank in ranks} == {f"{folder}/worker/worker.sock"}
    assert {(rank["uid"], rank["oom_score_adj"]) for rank in ranks} == {(USER_ID, 0)}
    as_user = ("setpriv", f"--reuid={USER_ID}", f"--regid={USER_ID}", "--clear-groups", "env", f"HOME={HOME}")
    shown = slurm.on_node(1, *as_user, "holdfast", "status")  # in another shell: it knows nothing of the job
    assert f"slurm-{job.number}-" in shown.stdout, shown
    job.let_end()
    assert job.end() == ("COMPLETED", "0:0"), job.log()
    slurm.until_idle()
    assert slurm.strangers() == []
    assert not slurm.exists(1, folder)


def test_the_epilog_names_and_ends_what_a_job_has_left(slurm: SlurmLab):
    """Slurm's own process tracking (proctrack/linuxproc) loses a process that leaves its session."""
    job = submit(slurm, "left", LEFTOVER)
    assert job.end() == ("COMPLETED", "0:0")
    slurm.until_idle()
    assert slurm.strangers() == []
    (said,) = slurm.epilogs_said(job.number)
    assert f"job {job.number} has left on node1: pid " in said
    assert "(sleep 1234); killed" in said


@pytest.mark.soak
def test_a_node_on_which_something_can_not_be_ended_is_drained_with_the_reason(slurm: SlurmLab):
    with slurm.stuck_folder(1) as folder:
        job = submit(slurm, "stuck", LEFTOVER.replace("sleep 1234", f"ls {folder}"), flags=("--nodelist=node1",))
        assert job.end() == ("COMPLETED", "0:0")
        slurm.until(lambda: slurm.states()["node1"] == "drained", "a drained node")
        reason = slurm.ask("sinfo", "-h", "-R", "-o", "%E").stdout
        assert "holdfast: cannot end pid " in reason
        assert f" of job {job.number}: SIGKILL has no effect" in reason
    slurm.ask("scontrol", "update", "NodeName=node1", "State=RESUME")


@pytest.mark.soak
def test_a_supervisor_that_is_killed_is_replaced_and_goes_on_with_the_ranks(slurm: SlurmLab):
    job = submit(slurm, "crash", "array.sbatch", str(TRAIN), ".", "600", flags=(*COMMENT, "--array=0"))
    ranks = job.until_noted("started", 2)
    os.kill(slurm.supervisor_on(1), signal.SIGKILL)
    slurm.until(lambda: slurm.supervisor_on(1), "another supervisor")
    job.let_end()
    assert job.end() == ("COMPLETED", "0:0"), job.log()
    assert {rank["pid"] for rank in job.noted("done")} == {rank["pid"] for rank in ranks}


@pytest.mark.soak
def test_without_a_supervisor_the_job_runs_all_the_same(slurm: SlurmLab):
    with slurm.settings(HOLDFAST="/opt/nothing/holdfast"):
        job = submit(slurm, "alone", "job.sbatch", str(TRAIN), ".", "0", flags=COMMENT)
        assert job.end() == ("COMPLETED", "0:0"), job.log()
        assert not any("holdfast-slurm" in str(rank["HOLDFAST_SOCKET"]) for rank in job.noted("done"))


@pytest.mark.soak
def test_where_only_one_node_has_a_supervisor_the_other_runs_its_part_alone(slurm: SlurmLab):
    """srun passes the variables of the batch script, which runs on the first node, to the tasks of all nodes."""
    only = "/run/only/holdfast"
    slurm.on_node(1, "mkdir", "/run/only")
    slurm.on_node(1, "ln", "-s", "/opt/holdfast/bin/holdfast", only)
    with slurm.settings(HOLDFAST=only):
        flags = (*COMMENT, "--nodelist=node1,node2")
        job = submit(slurm, "partly", "job.sbatch", str(TRAIN), ".", "0", flags=flags)
        assert job.end() == ("COMPLETED", "0:0"), job.log()
        served = {(rank["node"], "holdfast-slurm" in str(rank["HOLDFAST_SOCKET"])) for rank in job.noted("done")}
        assert served == {("node1", True), ("node2", False)}


@pytest.mark.soak
def test_a_job_that_another_one_submits_does_not_look_for_the_supervisor_of_that_one(slurm: SlurmLab):
    first = submit(slurm, "first", SUBMITS, str(EXAMPLES / "array.sbatch"), str(TRAIN), flags=COMMENT)
    assert first.end() == ("COMPLETED", "0:0")
    second = Job(slurm, first.folder, (first.folder / "number").read_text().strip())
    assert second.end() == ("COMPLETED", "0:0"), second.log()
    assert not any("holdfast-slurm" in str(rank["HOLDFAST_SOCKET"]) for rank in second.noted("done"))


@pytest.mark.soak
def test_where_a_supervisor_is_required_the_node_is_drained_and_the_job_goes_back_to_the_queue(slurm: SlurmLab):
    with slurm.settings(HOLDFAST="/opt/nothing/holdfast", REQUIRED="yes"):
        job = submit(slurm, "required", "job.sbatch", str(TRAIN), ".", "0", flags=(*COMMENT, "--nodes=1"))
        slurm.until(lambda: "drained" in slurm.states().values(), "a drained node")
        assert not job.noted("started")
    slurm.ask("scancel", job.number)
    for node, state in slurm.states().items():
        if state == "drained":
            slurm.ask("scontrol", "update", f"NodeName={node}", "State=RESUME")
