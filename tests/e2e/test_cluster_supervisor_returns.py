"""A killed supervisor continues its part of a job on several nodes, as leader and as follower."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_many_nodes_daemons import Job, Node, nodes

pytestmark = pytest.mark.timeout(180)


def shown(node: Node, job: Job) -> dict[str, Any]:
    return json.loads(node.holdfast("status", job.job_id, "-o", "json"))["jobs"][0]


def pids(node: Node, job: Job) -> dict[int, int]:
    return {rank["rank"]: rank["pid"] for rank in shown(node, job)["ranks"]}


def events(node: Node, job: Job) -> list[dict[str, Any]]:
    return [json.loads(line) for line in node.holdfast("events", job.job_id, "-o", "jsonl").splitlines()]


@pytest.mark.parametrize("killed", [0, 1], ids=["leader", "follower"])
def test_a_killed_supervisor_comes_back_and_what_happened_meanwhile_is_handled(tmp_path: Path, killed: int):
    with nodes(tmp_path, 2) as both:
        leader, away = both[0], both[killed]
        job = Job(tmp_path, "job", both, "2", "60")
        job.until_running(0, 4)
        before = pids(leader, job)
        away.kill()
        away.start_again()
        assert pids(leader, job) == before
        assert not list(job.folder.glob("1-*"))

        away.kill()
        os.kill(before[3], signal.SIGKILL)
        away.start_again()
        job.until_running(1, 4)
        assert shown(leader, job)["restarts_used"] == 1
        job.let_end()
        assert job.exit_codes() == [0, 0], away.daemon_said
        assert not list(job.folder.glob("2-*"))

        told = events(leader, job)
        assert [event["sequence"] for event in told] == list(range(1, len(told) + 1))
        started = [(each["cycle"], each["rank"]) for each in told if each["kind"] == "worker_started"]
        assert sorted(started) == [(cycle, rank) for cycle in (0, 1) for rank in range(4)]
        assert sum(each["kind"] == "restart_decided" for each in told) == 1
        assert sum(each["kind"] == "supervisor_returned" for each in told) == 2
        assert not [each for each in told if each["kind"] in ("node_lost", "events_missing")]
