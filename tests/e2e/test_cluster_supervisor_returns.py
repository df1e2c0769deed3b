"""A supervisor that was killed goes on with its part of a job of several nodes, as the leader and as one that follows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.test_many_nodes_daemons import Job, Node, nodes

pytestmark = pytest.mark.timeout(180)


def pids(job: Job, cycle: int) -> dict[str, str]:
    return {path.name: path.read_text() for path in job.folder.glob(f"{cycle}-*")}


def kinds(node: Node, job: Job) -> list[str]:
    told = node.holdfast("events", job.job_id, "-o", "json").splitlines()
    return [json.loads(line)["kind"] for line in told]


@pytest.mark.parametrize("killed", [0, 1], ids=["leader", "follower"])
def test_a_supervisor_that_is_killed_and_started_again_costs_its_job_nothing(tmp_path: Path, killed: int):
    with nodes(tmp_path, 2) as both:
        job = Job(tmp_path, "job", both, "2", "60")
        job.until_running(0, 4)
        both[killed].kill()
        both[killed].start_again()
        job.let_end()
        assert job.exit_codes() == [0, 0], both[killed].daemon_said
        assert len(pids(job, 0)) == 4
        assert not pids(job, 1)
