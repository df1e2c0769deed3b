"""Does torchrun's default form, told by a master's address and the node's rank, mean the same job here?"""

from __future__ import annotations

import pytest

from supervisor.config.job_spec import JobSpec
from supervisor.config.resolve import parse_run
from supervisor.errors import InvalidRequestError

STATIC = ("--nnodes", "2", "--node-rank", "1", "--master-addr", "127.0.0.1")


def spec(*argv: str, **environ: str) -> JobSpec:
    return parse_run([*argv, "train.py"], environ=environ, cwd="/data", count_gpus=lambda _: 0).spec


@pytest.mark.parametrize(
    ("more", "port"), [((), 29500), (("--master-port", "1234"), 1234), (("--rdzv-backend", "static"), 29500)]
)
def test_the_masters_address_is_where_the_nodes_meet(more: tuple[str, ...], port: int) -> None:
    found = spec(*STATIC, *more)
    assert found.nodes is not None
    assert (found.nodes.host, found.nodes.port, found.job_id, found.run_id) == ("127.0.0.1", port, "none", "none")
    assert found.facts.infrastructure_rank == 1
    assert (found.master_addr, found.master_port) == (spec().master_addr, spec().master_port)


def test_an_id_or_an_endpoint_that_is_given_counts() -> None:
    assert spec(*STATIC, "--rdzv-id", "night").job_id == "night"
    found = spec(*STATIC, "--rdzv-endpoint", "localhost:7")
    assert found.nodes is not None
    assert (found.nodes.host, found.nodes.port, found.master_addr, found.job_id) == (
        "localhost",
        7,
        "127.0.0.1",
        "none",
    )
    found = spec("--nnodes", "2", "--master-addr", "::1", "--rdzv-id", "x")
    assert found.nodes is not None
    assert (found.nodes.host, found.nodes.port) == ("::1", 29500)


def test_alone_and_by_c10d_the_masters_address_is_the_stores() -> None:
    alone = spec("--master-addr", "127.0.0.1", "--master-port", "1234")
    assert (alone.nodes, alone.master_addr, alone.master_port) == (None, "127.0.0.1", 1234)
    with pytest.raises(InvalidRequestError, match="must be told where they meet and which job"):
        spec(*STATIC, "--rdzv-backend", "c10d")


def test_in_a_step_of_slurm_its_id_is_the_better_one() -> None:
    step = {
        "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "n[1-2]",
        "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1",
    }  # fmt: skip
    found = spec(*STATIC, **step)
    assert found.nodes is not None
    assert (found.nodes.host, found.nodes.port, found.job_id) == ("127.0.0.1", 29500, "slurm-7-0")


def test_by_c10d_nodes_that_are_told_where_they_meet_have_torchruns_id_if_they_have_none() -> None:
    meet = ("--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:7")
    found = spec(*meet)
    assert found.nodes is not None
    assert (found.nodes.port, found.job_id, found.run_id) == (7, "none", "none")
    assert spec(*meet, "--rdzv-id", "night").job_id == "night"
    assert spec("--nnodes", "1", *meet[2:]).job_id != "none", "a job on one node has an id of its own"
    with pytest.raises(InvalidRequestError, match="must be told which job they share"):
        spec("--nnodes", "2", "--rdzv-endpoint", "localhost:7")
