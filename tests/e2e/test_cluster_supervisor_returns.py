"""A killed supervisor continues its part of a job on several nodes, as leader and as follower."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.launch import wait_until
from tests.e2e.test_many_nodes_daemons import LIMIT_S, Job, Node, nodes
from tests.etcd_server import Etcd, etcd

pytestmark = pytest.mark.timeout(180)

AWAY_MAX_S = 3.0  # the fence is 4 s, and the last heartbeat was up to a second before the kill
PLAIN_MAX_S = 0.5  # `holdfast --version`, which takes 0.1 s


def start_again(node: Node, killed_s: float) -> None:
    """A node whose supervisor is away for too long may be lost by right. Only a very busy machine excuses that."""
    node.start_again()
    back_s = time.monotonic()
    away_s = back_s - killed_s
    if away_s > AWAY_MAX_S:
        node.holdfast("--version")
        plain_s = time.monotonic() - back_s
        assert plain_s > PLAIN_MAX_S, f"a supervisor took {away_s:.1f} s to come back, a plain command {plain_s:.1f} s"
        pytest.skip(f"a plain command takes {plain_s:.1f} s: this machine is too busy to judge what follows")


def shown(node: Node, job: Job) -> dict[str, Any]:
    return json.loads(node.holdfast("status", job.job_id, "-o", "json"))["jobs"][0]


def pids(node: Node, job: Job) -> dict[int, int]:
    return {rank["rank"]: rank["pid"] for rank in shown(node, job)["ranks"]}


def until_shown(node: Node, job: Job, before: dict[int, int], *, is_said: bool = True) -> None:
    """Waits until all ranks are shown again, with the processes that they had: nodes take a moment to reconnect.

    `is_said`: whatever is not shown meanwhile is said to be missing. A new leader does not say so of a node that has
    connected and not yet reported its ranks.
    """
    whole: dict[str, Any] = {}

    def is_whole() -> bool:
        nonlocal whole
        whole = shown(node, job)
        if len(whole["ranks"]) == len(before):
            return True
        assert not is_said or any(words in whole["reason"] for words in ("not shown", "asks all others")), whole
        return False

    wait_until(is_whole, timeout_s=LIMIT_S, what="all ranks")
    assert {rank["rank"]: rank["pid"] for rank in whole["ranks"]} == before


def events(node: Node, job: Job) -> list[dict[str, Any]]:
    return [json.loads(line) for line in node.holdfast("events", job.job_id, "-o", "jsonl").splitlines()]


# A leader of more than 16 nodes keeps them in parts; at most 1,024 could be led again once.
@pytest.mark.parametrize(
    ("killed", "nnodes"), [(0, "2"), (1, "2"), (0, "2:1025")], ids=["leader", "follower", "leader of many"]
)
def test_a_killed_supervisor_comes_back_and_what_happened_meanwhile_is_handled(
    tmp_path: Path, killed: int, nnodes: str
):
    with nodes(tmp_path, 2) as both:
        leader, away = both[0], both[killed]
        job = Job(tmp_path, "job", both, nnodes, "60", conf="last_call_timeout=0.5")
        job.until_running(0, 4)
        before = pids(leader, job)
        away.kill()
        away.start_again()
        until_shown(leader, job, before)
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


def leader_of(server: Etcd, job: Job) -> dict[str, Any]:
    """As etcd has it; {}: nobody leads."""
    found = server.ctl("get", "--print-value-only", f"/holdfast/{job.job_id}/leader").strip()
    return json.loads(found) if found else {}


def until_led(server: Etcd, job: Job, both: list[Node]) -> Node:
    """The node that leads, once somebody does."""
    wait_until(lambda: leader_of(server, job), timeout_s=LIMIT_S, what="a leader")
    name = leader_of(server, job).get("node")
    return next(node for node in both if node.address == name)


def test_an_elected_leaders_killed_supervisor_comes_back_to_its_ranks(tmp_path: Path):
    with etcd(tmp_path / "etcd") as server, nodes(tmp_path, 2) as both:
        job = Job(tmp_path, "job", both, "2", "60", etcd=server.endpoint)
        job.until_running(0, 4)
        leader = until_led(server, job, both)
        before = pids(leader, job)
        leader.kill()
        killed_s = time.monotonic()
        start_again(leader, killed_s)
        until_shown(leader, job, before, is_said=False)
        assert shown(leader, job)["restarts_used"] == 0
        job.let_end()
        assert job.exit_codes() == [0, 0], [node.daemon_said for node in both]
        assert not list(job.folder.glob("1-*"))
        for node in both:
            assert not [each for each in events(node, job) if each["kind"] in ("node_lost", "events_missing")]


@pytest.mark.soak
def test_with_etcd_too_a_killed_supervisor_comes_back_whether_it_led_or_not(tmp_path: Path):
    with etcd(tmp_path / "etcd") as server, nodes(tmp_path, 2) as both:
        job = Job(tmp_path, "job", both, "2", "60", etcd=server.endpoint)
        job.until_running(0, 4)
        leader = until_led(server, job, both)
        follower = next(node for node in both if node is not leader)
        before = pids(leader, job)

        follower.kill()
        killed_s = time.monotonic()
        start_again(follower, killed_s)
        until_shown(follower, job, before, is_said=False)
        assert until_led(server, job, both) is leader

        leader.kill()
        killed_s = time.monotonic()
        start_again(leader, killed_s)
        until_shown(leader, job, before, is_said=False)
        assert not list(job.folder.glob("1-*"))

        away = until_led(server, job, both)
        mine = next(rank["pid"] for rank in shown(away, job)["ranks"] if rank["node"] == away.address)
        away.kill()
        killed_s = time.monotonic()
        os.kill(mine, signal.SIGKILL)
        start_again(away, killed_s)
        job.until_running(1, 4)
        assert shown(away, job)["restarts_used"] == 1
        job.let_end()
        assert job.exit_codes() == [0, 0], [node.daemon_said for node in both]
        assert not list(job.folder.glob("2-*"))
        for node in both:
            told = [each for each in events(node, job) if each["kind"] in ("node_lost", "events_missing")]
            assert not told


@pytest.mark.soak
@pytest.mark.parametrize("elects", [False, True], ids=["built-in", "etcd"])
def test_a_stop_that_is_asked_while_a_supervisor_is_away_ends_the_job_there_too(tmp_path: Path, elects: bool):
    with ExitStack() as stack:
        server = stack.enter_context(etcd(tmp_path / "etcd")) if elects else None
        both = stack.enter_context(nodes(tmp_path, 2))
        job = Job(tmp_path, "job", both, "2", "60", etcd=server.endpoint if server is not None else "")
        job.until_running(0, 4)
        leader = until_led(server, job, both) if server is not None else both[0]
        away = next(node for node in both if node is not leader)
        away.kill()
        killed_s = time.monotonic()
        leader.holdfast("stop", job.job_id)
        start_again(away, killed_s)
        assert job.exit_codes() == [93, 93], [node.daemon_said for node in both]
        for node in both:
            told = [each["kind"] for each in events(node, job)]
            assert "job_stopped" in told
            assert "node_lost" not in told
        assert not list(job.folder.glob("1-*"))


@pytest.mark.soak
def test_a_relay_and_a_node_that_went_by_it_come_back_one_after_the_other(tmp_path: Path):
    with nodes(tmp_path, 3) as (leader, *others):
        job = Job(tmp_path, "job", [leader, *others], "3", "60", conf="fan_out=1")
        job.until_running(0, 6)
        before = pids(leader, job)
        for away in (*others, *others):
            away.kill()
            killed_s = time.monotonic()
            start_again(away, killed_s)
            until_shown(leader, job, before)
        assert "is no longer a relay of job" in leader.daemon_said
        job.let_end()
        assert job.exit_codes() == [0, 0, 0], leader.daemon_said
        assert not list(job.folder.glob("1-*"))
        assert not [each for each in events(leader, job) if each["kind"] in ("node_lost", "events_missing")]
