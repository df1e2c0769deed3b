"""Is a step of srun one job of its nodes, unless set otherwise, and is everything else unchanged?"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from supervisor.config.resolve import RunRequest, parse_run
from supervisor.config.slurm_step import PORT_FIRST, PORTS, first_node
from supervisor.errors import ConfigurationError

STEP = {
    "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_PROCID": "1", "SLURMD_NODENAME": "n2",
}  # fmt: skip
TOKEN = ("--rdzv-conf", "token_file=/srv/me/token")


def run(*flags: str, **environ: str) -> RunRequest:
    return parse_run([*flags, "train.py"], environ={**STEP, **environ}, cwd="/data", count_gpus=lambda _: 0)


def test_a_step_of_several_nodes_is_one_job():
    request = run(*TOKEN)
    spec, nodes = request.spec, request.spec.nodes
    assert nodes is not None
    assert spec.job_id == "slurm-4711-0"
    assert (nodes.min_nodes, nodes.max_nodes, nodes.host, nodes.name) == (2, 2, "n1", "n2")
    assert PORT_FIRST <= nodes.port < PORT_FIRST + PORTS
    assert (spec.facts.infrastructure_rank, spec.facts.rank_source) == (1, "SLURM_PROCID")
    assert request.sources["nnodes"] == "--nnodes 2 (from SLURM_STEP_NUM_NODES=2)"


def test_all_tasks_agree_and_another_step_meets_elsewhere():
    first, second = run(*TOKEN).spec, run(*TOKEN, SLURM_PROCID="0", SLURMD_NODENAME="n1").spec
    assert first.nodes is not None
    assert second.nodes is not None
    assert replace(second.nodes, name="n2") == first.nodes
    other = run(*TOKEN, SLURM_STEP_ID="1").spec
    assert other.nodes is not None
    assert (other.job_id, other.nodes.port) != (first.job_id, first.nodes.port)
    assert other.nodes.port != first.nodes.port


def test_what_is_written_holds():
    flags = ("--nnodes", "1:2", "--rdzv-id", "night", "--rdzv-endpoint", "127.0.0.1:7", "--local-addr", "127.0.0.9")
    spec = run(*flags).spec
    assert spec.nodes is not None
    assert (spec.job_id, spec.nodes.min_nodes, spec.nodes.port, spec.nodes.name) == ("night", 1, 7, "127.0.0.9")
    spec = run("--nnodes", "1:2", *TOKEN).spec
    assert spec.nodes is not None
    assert (spec.nodes.min_nodes, spec.nodes.max_nodes, spec.nodes.host) == (1, 2, "n1")
    spec = run(PET_RDZV_BACKEND="etcd", PET_RDZV_ENDPOINT="127.0.0.1:2379").spec
    assert spec.nodes is not None
    assert (spec.nodes.backend, spec.nodes.port, spec.nodes.min_nodes) == ("etcd", 2379, 2)


@pytest.mark.parametrize(
    ("flags", "environ"),
    [
        (("--standalone",), {}),
        (("--nnodes", "1"), {}),
        ((), {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1"}),
        ((), {"SLURM_STEP_NUM_TASKS": "8"}),  # each task trains with one rank: no work for a launcher
        ((), {"SLURM_STEP_NUM_NODES": "", "SLURM_STEP_NUM_TASKS": ""}),  # the batch script itself
        ((), {"SLURM_STEP_NODELIST": "n[1-2"}),
        ((), {"SLURM_JOB_ID": ""}),
        ((), {"PET_NNODES": "1"}),
    ],
)
def test_elsewhere_a_run_has_one_node(flags: tuple[str, ...], environ: dict[str, str]):
    assert run(*flags, **environ).spec.nodes is None


TASKS = {"SLURM_STEP_NUM_NODES": "4", "SLURM_STEP_NUM_TASKS": "8", "SLURM_NTASKS_PER_NODE": "2", "SLURM_PROCID": "0"}


def test_several_tasks_on_each_node_are_separate_jobs_and_the_first_task_says_so():
    (warning,) = run(**TASKS).warnings
    assert "8 tasks on 4 nodes (SLURM_STEP_NUM_TASKS=8, SLURM_NTASKS_PER_NODE=2)" in warning
    assert "each of them is a job of its own" in warning
    assert "srun --ntasks=4 --ntasks-per-node=1" in warning


@pytest.mark.parametrize(
    ("flags", "environ"),
    [
        ((), {**TASKS, "SLURM_PROCID": "3"}),  # eight times would be too often
        (("--standalone",), TASKS),
        (("--nnodes", "1"), TASKS),
        ((), {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}),
        ((), {"SLURM_STEP_NUM_NODES": "", "SLURM_STEP_NUM_TASKS": "", "SLURM_PROCID": "0"}),
        (TOKEN, {"SLURM_PROCID": "0"}),
    ],
)
def test_nothing_is_said_of_a_step_that_is_as_it_was_asked_for(flags: tuple[str, ...], environ: dict[str, str]):
    assert run(*flags, **environ).warnings == ()


def test_without_a_secret_the_reason_says_where_the_nodes_come_from():
    with pytest.raises(ConfigurationError) as caught:
        run()
    assert str(caught.value).startswith("cannot use --rdzv-endpoint n1:2")
    assert "(from SLURM_STEP_NODELIST=n[1-2]): anybody who reaches that address could join the job" in str(caught.value)


@pytest.mark.parametrize(
    ("node_list", "first"),
    [
        ("n1", "n1"),
        ("n1,n2", "n1"),
        ("n[1-3,7]-ib0", "n1-ib0"),
        ("gpu[007-011],head", "gpu007"),
        ("rack[01-02]n[3,5]", "rack01n3"),
        ("a.b-c_d[1]", "a.b-c_d1"),
        ("", ""),
        ("n[1-", ""),
        ("n[a]", ""),
        ("n 1", ""),
    ],
)
def test_the_first_of_a_list_of_nodes(node_list: str, first: str):
    assert first_node(node_list) == first
