"""A rank of one node hangs, and while its evidence is taken a rank of another node crashes: the hang is the fault."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.launch import wait_until
from tests.e2e.test_many_nodes import HOLDFAST, LIMIT_S, Nodes, listens, nodes

HANG, CRASH = "rank 0 sent no heartbeat", "failed with exit code 7"
HANG_LIMIT_S = 0.5
BUDGET_S = 1.0  # the node that stands still is not lost before 2.5 s, so all is decided before
SCRIPT = """
import os, sys, time
from worker_client import RankMonitorClient
folder = sys.argv[1]
rank, cycle = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
is_there = lambda name: os.path.exists(f"{folder}/{name}")
client = RankMonitorClient()
client.init_workload_monitoring()
client.send_heartbeat()
open(f"{folder}/{cycle}-{rank}", "w").write(f"{rank} of {os.environ['WORLD_SIZE']} store {os.environ['MASTER_PORT']}")
until_s = time.monotonic() + 60
while time.monotonic() < until_s and not is_there("end"):
    if (rank, cycle) == ("3", "0") and is_there("crash"):
        sys.exit(7)
    if (rank, cycle) != ("0", "0") or not is_there("hang"):
        client.send_heartbeat()
    time.sleep(0.02)
client.shutdown_workload_monitoring()
"""


def asked(job: Nodes, number: int, *arguments: str) -> str:
    command = [str(HOLDFAST), *arguments, job.job_id]
    return subprocess.run(command, env=job.environment(number), capture_output=True, text=True, check=True).stdout


@pytest.mark.timeout(120)
@pytest.mark.parametrize("max_restarts", [pytest.param(1, marks=pytest.mark.soak), 0])
def test_a_crash_on_another_node_during_the_evidence_of_a_hang_is_not_the_reason(tmp_path: Path, max_restarts: int):
    flags = ("--ft-rank-heartbeat-timeout", str(HANG_LIMIT_S), "--evidence-budget-s", str(BUDGET_S))
    flags += ("--max-restarts", str(max_restarts))
    hook = ("--on-event", f"touch {tmp_path}/crash", "--on-event-kinds", "hang_detected")
    with nodes(tmp_path, "3") as job:
        (tmp_path / "train.py").write_text(SCRIPT)
        job.start(1, flags=(*flags, *hook))
        wait_until(lambda: listens(job.port), timeout_s=LIMIT_S, what="a leader")
        processes = [job.processes[0], *(job.start(number, flags=flags) for number in (2, 3))]
        job.until_running(0, 6)
        processes[2].send_signal(signal.SIGSTOP)  # the evidence waits for its stacks until the budget is over
        (tmp_path / "hang").touch()
        wait_until(lambda: "first noticed" in job.output(1), timeout_s=LIMIT_S, what="a verdict")
        processes[2].send_signal(signal.SIGCONT)
        if max_restarts:
            job.until_running(1, 6)
            check_reasons(job, "restart_decided")
            job.let_end()
        codes = [process.wait(LIMIT_S) for process in processes]
        assert codes == ([0] * 3 if max_restarts else [1] * 3), job.output(1)
        if not max_restarts:
            check_reasons(job, "job_failed")
            for number in (1, 2, 3):
                (shown,) = json.loads(asked(job, number, "status", "-o", "json"))["jobs"]
                assert HANG in shown["reason"]
                assert CRASH not in shown["reason"]


def check_reasons(job: Nodes, decision: str) -> None:
    events: list[dict[str, Any]] = [json.loads(line) for line in asked(job, 1, "events", "-o", "jsonl").splitlines()]
    at = {each["kind"]: number for number, each in reversed(list(enumerate(events)))}
    assert at["hang_detected"] < at["worker_failed"] < at["stacks_missing"] < at[decision], events
    decided = {each["reason"] for each in events if each["kind"] == decision}
    assert all(HANG in reason and CRASH not in reason for reason in decided), decided
    (incident,) = json.loads(asked(job, 1, "report", "-o", "json"))["incidents"]
    assert incident["kind"] == "hang"
    assert HANG in incident["cause"]
    assert incident["also_failed"] == [3]
    assert 3 not in incident["culprits"]
