"""A rank that computes longer than the others is named, on whichever node it runs, while the job continues."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.e2e.launch import wait_until
from tests.e2e.test_many_nodes import HOLDFAST, LIMIT_S, Nodes, nodes

SCRIPT = """
import os, sys, time
from worker_client import RankMonitorClient
folder, rank = sys.argv[1], int(os.environ["RANK"])
client = RankMonitorClient()
client.init_workload_monitoring()
while not os.path.exists(f"{folder}/end"):
    slow = rank == 3 and not os.path.exists(f"{folder}/well")
    for name in ("forward", "wait"):
        client.start_section(name)
        time.sleep(0.08 if slow and name == "forward" else 0.04)
        client.end_section(name)
client.shutdown_workload_monitoring()
"""


def _told(job: Nodes, *arguments: str) -> str:
    command = [str(HOLDFAST), *arguments]
    return subprocess.run(
        command, env=job.environment(1), capture_output=True, text=True, timeout=30, check=True
    ).stdout


def _said(job: Nodes) -> str:
    """Returns the output. Either node may lead: both have the endpoint's address."""
    return job.output(1) + job.output(2)


@pytest.mark.alone
def test_a_slow_rank_of_the_second_node_is_named_and_let_go(tmp_path: Path):
    with nodes(tmp_path, "2") as job:
        (tmp_path / "train.py").write_text(SCRIPT)
        flags = ("--ft-rank-section-timeouts", "forward:60,wait:60")
        processes = [job.start(number, flags=flags) for number in (1, 2)]
        wait_until(lambda: "is slow in section 'forward'" in _said(job), timeout_s=LIMIT_S, what="the verdict")
        (report,) = json.loads(_told(job, "status", job.job_id, "-o", "json"))["jobs"]
        (slow,) = report["stragglers"]
        assert (slow["section"], slow["ranks"], slow["compared_ranks"]) == ("forward", [3], 4)
        assert 1.4 < slow["ratio"] < 2.6
        (name,) = [rank["node"] for rank in report["ranks"] if rank["rank"] == 3]
        assert slow["node"] == name
        (node,) = [each for each in json.loads(_told(job, "nodes", "-o", "json"))["nodes"] if each["name"] == name]
        assert f"rank 3 on node {name} is slow in section 'forward'" in node["reason"]
        page = tmp_path / "report.html"
        _told(job, "report", job.job_id, "-o", str(page))
        assert f"<td>3</td><td>{name}</td>" in page.read_text()  # The slow node, not the one that has compared.
        (tmp_path / "well").touch()
        wait_until(lambda: "is no longer slow in section 'forward'" in _said(job), timeout_s=LIMIT_S, what="its end")
        job.let_end()
        assert [process.wait(LIMIT_S) for process in processes] == [0, 0]
        assert "section 'wait'" not in _said(job)
