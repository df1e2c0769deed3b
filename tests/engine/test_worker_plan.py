"""With what is each worker of a cycle started, and with what a replacement for a lost one?"""

from __future__ import annotations

from pathlib import Path

from holdfast_wire.spawner_link import WorkerPlan

from supervisor.config import JobSpec, Redirect
from supervisor.config.job_logs import JobLogs
from supervisor.config.job_spec import Nodes
from supervisor.core.facts import Assignment
from supervisor.engine.job_record import JobRecord
from supervisor.engine.output_plan import Console
from supervisor.engine.worker_plan import WorkerPlanner

ASSIGNMENT = Assignment(3, group_rank=1, group_world_size=2, world_size=4, first_rank=2)


def record(log_dir: Path, *, redirects: tuple[tuple[int | None, Redirect], ...] = ()) -> JobRecord:
    spec = JobSpec("j", ("t.py",), local_world_size=2, redirects=redirects)
    return JobRecord(spec, {}, 5, str(log_dir))


def plan(job: JobRecord, *, local_ranks: tuple[int, ...] | None = None, respawn: int = 0) -> tuple[WorkerPlan, ...]:
    planner = WorkerPlanner(console=Console(), worker_socket="/s/worker.sock")
    return planner.plan(
        job,
        ASSIGNMENT,
        token_path=Path("/tokens/j-3"),
        store_host="10.0.0.1",
        store_port=29400,
        local_ranks=local_ranks,
        respawn=respawn,
    )


def test_each_local_rank_gets_its_place_in_the_world_and_the_store(tmp_path: Path) -> None:
    plans = plan(record(tmp_path))
    assert [(each.local_rank, each.rank) for each in plans] == [(0, 2), (1, 3)]
    for each in plans:
        assert each.env["RANK"] == str(each.rank)
        assert each.env["WORLD_SIZE"] == "4"
        assert (each.env["MASTER_ADDR"], each.env["MASTER_PORT"]) == ("10.0.0.1", "29400")
        assert "/s/worker.sock" in each.env.values()
        assert "/tokens/j-3" in each.env.values()


def test_one_that_stands_in_neither_reads_nor_empties_what_the_lost_one_has_written(tmp_path: Path) -> None:
    job = record(tmp_path, redirects=((None, Redirect.OUT),))
    first = plan(job)
    (second,) = plan(job, local_ranks=(1,), respawn=2)
    assert (second.local_rank, second.rank) == (1, 3)
    assert second.env["TORCHELASTIC_ERROR_FILE"].endswith("/rank_3/error-respawn2.json")
    assert first[1].env["TORCHELASTIC_ERROR_FILE"].endswith("/rank_3/error.json")
    assert second.stdout.file == f"{first[1].stdout.file}.respawn2"
    assert second.stderr.file == first[1].stderr.file  # the spawner itself appends to that one


def test_all_ranks_print_into_the_file_of_the_cycle_with_their_number_before_each_line(tmp_path: Path) -> None:
    assert plan(record(tmp_path))[0].cycle_log == ""
    logs = JobLogs("/lustre/train.log")
    job = JobRecord(JobSpec("j", ("t.py",), local_world_size=2, logs=logs), {}, 5, str(tmp_path))
    assert [(each.cycle_log, each.cycle_log_prefix) for each in plan(job)] == [
        ("/lustre/train_cycle3.log", "2: "),
        ("/lustre/train_cycle3.log", "3: "),
    ]


def test_a_worker_finds_the_record_of_its_cycle(tmp_path: Path) -> None:
    assert "NVRX_CURRENT_CYCLE_INFO" not in plan(record(tmp_path))[0].env
    logs = JobLogs(cycle_info_dir="/c")
    job = JobRecord(JobSpec("j", ("t.py",), logs=logs), {"SLURM_JOB_ID": "12"}, 5, str(tmp_path))
    assert plan(job)[0].env["NVRX_CURRENT_CYCLE_INFO"] == "/c/cycle_info.12.current"
    task = {"SLURM_JOB_ID": "13", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "1", "SLURM_JOB_NUM_NODES": "2"}
    # Three nodes meet from several tasks; a task of two is a job with room for more.
    for least, most, name in ((1, 1, "12_1"), (2, 2, "12_1"), (1, 4, "12_1"), (3, 3, "12"), (3, 4, "12")):
        nodes = Nodes(least, most, "n1", 1, "n1") if most > 1 else None
        job = JobRecord(JobSpec("j", ("t.py",), logs=logs, nodes=nodes), task, 5, str(tmp_path))
        assert plan(job)[0].env["NVRX_CURRENT_CYCLE_INFO"] == f"/c/cycle_info.{name}.current"
