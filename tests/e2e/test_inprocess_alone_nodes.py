"""Do the ranks of several nodes without `holdfast run` restart together, with a private supervisor on each node?

Two nodes on one machine: RANK and LOCAL_WORLD_SIZE decide which ranks are on one node.
"""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from tests.e2e.alone import SCRIPT, Alone, alone

WORLD_SIZE, PER_NODE = 4, 2


def start(job: Alone) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for rank in range(WORLD_SIZE):
        job.start(
            SCRIPT, RANK=str(rank), LOCAL_RANK=str(rank % PER_NODE), WORLD_SIZE=str(WORLD_SIZE),
            LOCAL_WORLD_SIZE=str(PER_NODE), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
            TORCHELASTIC_RUN_ID=job.cookie,
        )  # fmt: skip


def test_private_supervisors_of_two_nodes_find_each_other_through_the_scripts_store(tmp_path: Path):
    with alone(tmp_path, WORLD_SIZE) as job:
        start(job)
        job.until(lambda: job.entered(0) == {0, 1, 2, 3}, "the first iteration")
        assert len(job.supervisors()) == 2
        job.order("fail", 3)
        job.until(lambda: job.entered(1) == {0, 1, 2, 3}, "all ranks in iteration 1")
        job.order("die", 2)
        job.until(lambda: job.entered(2) == {0, 1, 3}, "the others in iteration 2")
        assert [job.worlds(iteration) for iteration in (0, 1, 2)] == [{"4"}, {"4"}, {"3"}]
        job.end()
        assert job.codes() == [0, 0, -9, 0]
        job.until_nothing_is_left()


@pytest.mark.soak
def test_after_the_death_of_the_leading_private_supervisor_all_of_them_begin_again(tmp_path: Path):
    """Training continues meanwhile."""
    with alone(tmp_path, WORLD_SIZE) as job:
        start(job)
        job.until(lambda: job.entered(0) == {0, 1, 2, 3}, "the first iteration")
        before = set(job.supervisors())
        (doomed,) = [pid for pid in before if "--node-rank\0000\0" in Path(f"/proc/{pid}/cmdline").read_text()]
        os.kill(doomed, signal.SIGKILL)
        job.until(lambda: len(job.supervisors()) == 2 and not before & set(job.supervisors()), "two new supervisors")
        job.until_answered(0, 1, 2, 3)
        job.order("fail", 0)
        job.until(lambda: job.entered(1) == {0, 1, 2, 3}, "all ranks in iteration 1")
        job.end()
        assert job.codes() == [0, 0, 0, 0]


@pytest.mark.soak
def test_under_srun_the_nodes_meet_in_the_scripts_own_store_and_a_reserve_node_takes_the_place_of_another(
    tmp_path: Path,
):
    """There is no MASTER_ADDR, and no LOCAL_WORLD_SIZE. In the tree of ranks, each node is a branch of a layer."""
    with alone(tmp_path, WORLD_SIZE, STORE_FILE=str(tmp_path / "store"), PER_NODE=str(PER_NODE)) as job:
        nodes = WORLD_SIZE // PER_NODE
        for rank in range(WORLD_SIZE):
            job.start(
                SCRIPT, RANK=str(rank), WORLD_SIZE=str(WORLD_SIZE), SLURM_JOB_ID=job.cookie, SLURM_STEP_ID="0",
                SLURM_NNODES=str(nodes), SLURM_NODEID=str(rank // PER_NODE), SLURM_LOCALID=str(rank % PER_NODE),
            )  # fmt: skip
        job.until(lambda: job.entered(0) == {0, 1}, "the first iteration")
        assert len(job.supervisors()) == nodes
        job.order("die", 1)
        job.until(lambda: job.entered(1) == {2, 3}, "the other node in iteration 1")
        assert {line["rank"]: line["as_rank"] for line in job.traced("fn") if line["iteration"] == 1} == {
            2: "1",
            3: "0",
        }
        job.end()
        assert job.codes() == [1, -9, 0, 0]
        assert "fewer than 2 healthy ranks are left in its branch of layer 1" in job.explained()
