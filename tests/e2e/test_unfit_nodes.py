"""An unfit node of several leaves alone, with exit code 0; the job ends only when too few nodes are left."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.launch import wait_until
from tests.e2e.test_many_nodes import LIMIT_S, Nodes, listens, nodes

pytestmark = pytest.mark.timeout(150)

# Rank 3 is on node 2: it harms its node, then fails.
SCRIPT = """
import os, sys, time
folder, what, path = sys.argv[1:4]
rank, cycle = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
open(f"{folder}/{cycle}-{rank}", "w").write(f"{rank} of {os.environ['WORLD_SIZE']} in {cycle} store 0")
while len([name for name in os.listdir(folder) if name.startswith("0-")]) < int(os.environ["WORLD_SIZE"]):
    time.sleep(0.02)
if (rank, cycle) == ("3", "0"):
    if what == "breaks":
        os.rmdir(path)
    if what == "excludes":
        from worker_client.rank_monitor_client import RankMonitorClient
        from worker_client.workload_control import WorkloadAction, WorkloadControlRequest
        client = RankMonitorClient()
        client.init_workload_monitoring()
        client.send_workload_control_request(WorkloadControlRequest(WorkloadAction.ExcludeThisNode, "bad GPU"))
    sys.exit(3)
deadline = time.monotonic() + 60
while time.monotonic() < deadline and not os.path.exists(f"{folder}/end"):
    time.sleep(0.02)
"""


def begin(job: Nodes, number: int, *arguments: str) -> None:
    (job.folder / "train.py").write_text(SCRIPT)
    data = job.folder / f"node{number}-data"
    job.start(number, *arguments, str(data), flags=("--ft-storage-health-check-path", str(data)))
    wait_until(lambda: listens(job.port), timeout_s=LIMIT_S, what="a leader")


def test_a_node_that_is_unfit_from_the_start_leaves_and_the_others_run(tmp_path: Path) -> None:
    with nodes(tmp_path, "2:3") as job:
        for number in (1, 3):
            (tmp_path / f"node{number}-data").mkdir()
        begin(job, 1, "nothing")
        begin(job, 2, "nothing")
        assert job.processes[1].wait(LIMIT_S) == 0
        assert f"node 127.0.0.2 is unhealthy: {tmp_path}/node2-data can't be read" in job.output(2)
        assert "the job goes on without it" in job.output(2)
        begin(job, 3, "nothing")
        job.until_running(0, 4)
        job.let_end()
        assert [job.processes[number].wait(LIMIT_S) for number in (0, 2)] == [0, 0]


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("breaks", "node 127.0.0.2 is unhealthy: {path} can't be read: No such file or directory"),
        ("excludes", "rank 3 asked to exclude node 127.0.0.2"),
    ],
)
def test_a_node_that_becomes_unfit_leaves_at_the_next_restart_and_a_spare_takes_its_place(
    tmp_path: Path, what: str, reason: str
) -> None:
    with nodes(tmp_path, "2:3") as job:
        for number in (1, 2, 3):
            (tmp_path / f"node{number}-data").mkdir()
            begin(job, number, what)
            if number == 2:
                job.until_running(0, 4)
        assert job.processes[1].wait(LIMIT_S) == 0
        assert reason.format(path=f"{tmp_path}/node2-data") in job.output(2)
        assert "the job goes on without it" in job.output(2)
        job.until_running(1, 4)
        job.let_end()
        assert [job.processes[number].wait(LIMIT_S) for number in (0, 2)] == [0, 0]


def test_with_too_few_nodes_left_the_job_ends_everywhere_with_the_reason(tmp_path: Path) -> None:
    with nodes(tmp_path, "2") as job:
        for number in (1, 2):
            (tmp_path / f"node{number}-data").mkdir()
            begin(job, number, "breaks")
        assert [process.wait(LIMIT_S) for process in job.processes] == [1, 1]
        for number in (1, 2):
            assert "node 127.0.0.2 is unhealthy" in job.output(number)
            assert "1 node is left where 2 are needed" in job.output(number)
        assert not list(tmp_path.glob("1-*"))


def test_an_unfit_node_that_leads_stays_to_lead_and_ends_as_the_job_does(tmp_path: Path) -> None:
    with nodes(tmp_path, "2:3") as job:
        for number in (2, 3):
            (tmp_path / f"node{number}-data").mkdir()
        for number in (1, 2, 3):
            begin(job, number, "nothing")
        job.until_running(0, 4)
        job.let_end()
        assert [process.wait(LIMIT_S) for process in job.processes] == [0, 0, 0]
