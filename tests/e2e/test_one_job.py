"""A job on three nodes is one job for people: from each node they see all of it, and act on all of it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from supervisor.edges.machine.folders import private_registry
from tests.e2e.launch import wait_until
from tests.e2e.test_many_nodes import HOLDFAST, LIMIT_S, Nodes, listens, nodes

SCRIPT_SAYS = """import os
print("hello from rank", os.environ["RANK"], "in cycle", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
"""


@pytest.fixture(autouse=True)
def places_of_the_machine() -> None:
    """Leaves the default places as they are: supervisors of other processes register there."""


class People:
    """People on the nodes who type commands."""

    def __init__(self, job: Nodes) -> None:
        self._job = job

    def type(self, number: int, *words: str) -> subprocess.CompletedProcess[str]:
        """Types a command. JOB stands for the job's name; the node's own supervisor is asked while it lives."""
        words = tuple(self._job.job_id if word == "JOB" else word for word in words)
        pid = self._job.processes[number - 1].pid
        for known in private_registry.registered():
            if known.pid == pid:
                words = (*words, "--socket-dir", str(known.directory))
        return subprocess.run(
            [str(HOLDFAST), *words],
            env=self._job.environment(number),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    def read(self, number: int, *words: str) -> str:
        done = self.type(number, *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def status(self, number: int) -> dict[str, Any]:
        done = self.type(number, "status", "JOB", "-o", "json")
        return json.loads(done.stdout)["jobs"][0] if done.returncode == 0 else {"nodes": [], "ranks": []}

    def states(self, number: int) -> dict[str, str]:
        return {node["name"]: node["state"] for node in self.status(number)["nodes"]}

    def until(self, number: int, **states: str) -> None:
        wanted = {f"127.0.0.{name[1:]}": state for name, state in states.items()}
        wait_until(lambda: self.states(number) == wanted, timeout_s=LIMIT_S, what=f"{wanted} seen from node {number}")

    def events(self, number: int) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.read(number, "events", "JOB", "-o", "jsonl").splitlines()]


@pytest.mark.soak
def test_every_node_shows_the_whole_job_and_acts_on_it(tmp_path: Path):
    with nodes(tmp_path, "2:3") as job:
        path = tmp_path / "train.py"
        path.write_text(SCRIPT_SAYS + path.read_text())
        people = People(job)
        job.start(1, "60")
        wait_until(lambda: listens(job.port), timeout_s=LIMIT_S, what="a leader")
        second = job.start(2, "60")
        job.until_running(0, 4)
        third = job.start(3, "60")
        for number in (1, 2, 3):
            people.until(number, n1="active", n2="active", n3="spare")
        shown = people.status(3)
        assert [(rank["rank"], rank["node"], rank["state"]) for rank in shown["ranks"]] == [
            (0, "127.0.0.1", "running"), (1, "127.0.0.1", "running"),
            (2, "127.0.0.2", "running"), (3, "127.0.0.2", "running"),
        ]  # fmt: skip
        everywhere = [people.read(number, "logs", "JOB") for number in (1, 2, 3)]
        expected = "".join(f"[cycle 0 rank {rank}] hello from rank {rank} in cycle 0\n" for rank in range(4))
        assert everywhere == [expected] * 3
        assert people.read(3, "logs", "JOB", "--rank", "2") == "hello from rank 2 in cycle 0\n"
        assert "ranks 0-3:" in people.read(2, "stacks", "JOB")
        assert "rank 1:" in people.read(2, "stacks", "JOB", "--rank", "1")
        assert f"job {job.job_id} has ranks 0 to 3" in people.type(2, "stacks", "JOB", "--rank", "4").stderr
        told = people.type(3, "cordon", "127.0.0.9")
        assert told.returncode == 1
        assert "it is not among the nodes known here; choose one of 127.0.0.1, 127.0.0.2, 127.0.0.3" in told.stderr

        people.read(3, "cordon", "127.0.0.2", "--reason", "bad memory")
        assert "bad memory" in people.read(1, "nodes")
        assert "cycle 1 comes next" in people.type(3, "restart", "JOB").stderr
        job.until_running(1, 4)
        people.until(2, n1="active", n3="active", n2="cordoned")
        people.read(2, "uncordon", "127.0.0.2")
        people.until(2, n1="active", n3="active", n2="spare")

        third.kill()
        job.until_running(2, 4)
        people.until(2, n1="active", n2="active", n3="lost")
        lost = next(node for node in people.status(2)["nodes"] if node["state"] == "lost")
        assert "the other side has closed the connection" in lost["reason"]
        assert lost["ranks"] == [2, 3]
        assert "the output of node 127.0.0.3 is on that node in" in people.type(2, "logs", "JOB").stderr
        wait_until(lambda: people.events(1) == people.events(2), timeout_s=LIMIT_S, what="the same events everywhere")
        events = people.events(2)
        assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
        of_third = [event["kind"] for event in events if event["node"] == "127.0.0.3"]
        assert {"job_submitted", "restart_requested", "worker_started"} <= set(of_third)

        people.read(2, "stop", "JOB")
        assert second.wait(LIMIT_S) == 93
        assert job.processes[0].wait(LIMIT_S) == 93
        ended = people.status(1)
        assert ended["state"] == "stopped"
        assert {node["name"]: node["state"] for node in ended["nodes"]}["127.0.0.3"] == "lost"
        assert {event["node"] for event in people.events(1)} == {f"127.0.0.{number}" for number in (1, 2, 3)}
