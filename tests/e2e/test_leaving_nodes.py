"""A node without ranks leaves its job alone, with exit code 0, whether or not a leader is in reach."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from supervisor.core.node.job_leaving import ANSWER_WITH_RANKS_S
from supervisor.core.stop_verdict import SAME_SIGNAL_S
from tests.e2e.launch import wait_until
from tests.e2e.test_many_nodes import HOLDFAST, LIMIT_S, Nodes, listens, nodes
from tests.e2e.test_many_nodes_daemons import Job
from tests.e2e.test_many_nodes_daemons import nodes as daemons
from tests.etcd_server import Etcd, etcd

SPARE = "127.0.0.3"
LEFT = f"node {SPARE} has left the job (holdfast run got SIGTERM)"
ALONE_S = 15.0  # without an answer: much less than any leader's or backend's absence


@pytest.fixture
def server(tmp_path: Path) -> Generator[Etcd]:
    with etcd(tmp_path / "etcd") as started:
        yield started


def _start(job: Nodes, *numbers: int, flags: tuple[str, ...] = ()) -> None:
    """Starts these nodes, of which the first leads."""
    for number in numbers:
        job.start(number, "60", flags=flags)
        if number == numbers[0] and not flags:
            wait_until(lambda: listens(job.port), timeout_s=LIMIT_S, what="a leader")


def _until_spare(job: Nodes, asked: int = 1) -> None:
    def said() -> str:
        command = [str(HOLDFAST), "status", job.job_id]
        return subprocess.run(
            command, env=job.environment(asked), capture_output=True, text=True, timeout=LIMIT_S, check=False
        ).stdout

    wait_until(lambda: " spare" in said(), timeout_s=LIMIT_S, what="the spare")


def _begin_with_etcd(job: Nodes, server: Etcd) -> None:
    """Starts a job whose spare leads."""
    job.endpoint = server.endpoint
    flags = ("--rdzv-backend", "etcd", "--rdzv-conf", "last_call_timeout=10")
    _start(job, 3, flags=flags)
    wait_until(lambda: _leader(job, server) == SPARE, timeout_s=LIMIT_S, what="the spare leads")
    _start(job, 1, 2, flags=flags)
    job.until_running(0, 4)


def _begin_with_etcd_to_leave(job: Nodes, server: Etcd) -> None:
    """Starts a job whose first node leads and runs ranks, with a spare; each node leaves at a signal."""
    job.endpoint = server.endpoint
    flags = ("--rdzv-backend", "etcd", *LEAVE)
    _start(job, 1, flags=flags)
    wait_until(lambda: _leader(job, server) == "127.0.0.1", timeout_s=LIMIT_S, what="a leader")
    _start(job, 2, 3, flags=flags)
    job.until_running(0, 4)
    _until_spare(job)


def _leader(job: Nodes, server: Etcd) -> str:
    return str(server.record(f"/holdfast/{job.job_id}/leader").get("node", ""))


def _end_well(job: Nodes) -> None:
    assert not list(job.folder.glob("1-*")), "nothing has restarted"
    job.let_end()
    assert [process.wait(LIMIT_S) for process in job.processes if process.returncode is None] == [0, 0]


def test_a_signal_to_a_spare_ends_it_with_0_and_the_job_goes_on(tmp_path: Path) -> None:
    with nodes(tmp_path, "2:3") as job:
        _start(job, 1, 2)
        job.until_running(0, 4)
        _start(job, 3)
        _until_spare(job)
        job.processes[2].send_signal(signal.SIGTERM)
        assert job.processes[2].wait(LIMIT_S) == 0
        assert f"{LEFT}; the job goes on without it" in job.output(3)
        _end_well(job)
        assert "is lost" not in job.output(1)


def test_a_spare_leaves_although_its_leader_does_not_answer(tmp_path: Path) -> None:
    with nodes(tmp_path, "2:3") as job:
        _start(job, 1, 2, 3)
        job.until_running(0, 4)
        _until_spare(job)
        job.processes[0].send_signal(signal.SIGSTOP)
        asked_s = time.monotonic()
        job.processes[2].send_signal(signal.SIGTERM)
        assert job.processes[2].wait(LIMIT_S) == 0
        assert time.monotonic() - asked_s < ALONE_S
        job.processes[0].send_signal(signal.SIGCONT)


@pytest.mark.soak
def test_a_leader_that_leaves_lets_another_node_lead(tmp_path: Path, server: Etcd) -> None:
    with nodes(tmp_path, "2:3") as job:
        _begin_with_etcd(job, server)
        job.processes[0].send_signal(signal.SIGTERM)
        assert job.processes[0].wait(LIMIT_S) == 0
        assert LEFT in job.output(3)
        wait_until(lambda: _leader(job, server) not in ("", SPARE), timeout_s=LIMIT_S, what="another leader")
        _end_well(job)


@pytest.mark.alone  # its nodes may be without a leader for 4 s
@pytest.mark.parametrize("leads", [False, True])
def test_a_spare_leaves_while_etcd_is_away_and_the_job_goes_on(tmp_path: Path, server: Etcd, *, leads: bool) -> None:
    with nodes(tmp_path, "2:3") as job:
        if leads:
            _begin_with_etcd(job, server)
        else:
            job.endpoint = server.endpoint
            _start(job, 1, flags=("--rdzv-backend", "etcd"))
            wait_until(lambda: _leader(job, server), timeout_s=LIMIT_S, what="a leader")
            _start(job, 2, flags=("--rdzv-backend", "etcd"))
            job.until_running(0, 4)
            _start(job, 3, flags=("--rdzv-backend", "etcd"))
        _until_spare(job)
        spare = job.processes[0 if leads else 2]
        server.stop()
        asked_s = time.monotonic()
        spare.send_signal(signal.SIGTERM)
        assert spare.wait(LIMIT_S) == 0
        assert time.monotonic() - asked_s < ALONE_S
        assert LEFT in job.output(3)
        server.start()
        if not leads:  # else the record is of the spare until its lease ends
            server.end_lead(job.job_id)
        wait_until(lambda: _leader(job, server) not in ("", SPARE), timeout_s=LIMIT_S, what="another leader")
        _end_well(job)


def test_the_service_of_a_spare_is_stopped_and_its_job_goes_on(tmp_path: Path) -> None:
    with daemons(tmp_path, 3) as (first, second, third):
        job = Job(tmp_path, "shared", [first, second, third], "2:3", "60")
        job.until_running(0, 4)
        wait_until(lambda: " spare" in first.holdfast("status", job.job_id), timeout_s=LIMIT_S, what="the spare")
        third.process.send_signal(signal.SIGTERM)
        assert third.process.wait(LIMIT_S) == 0
        assert job.processes[2].wait(LIMIT_S) == 0
        assert f"node {SPARE} has left the job (the node's supervisor was stopped)" in third.said(job.job_id)
        assert not list(job.folder.glob("1-*"))
        job.let_end()
        assert job.exit_codes() == [0, 0, 0]


def test_a_signal_to_the_command_of_a_spare_under_a_service_ends_its_part_alone(tmp_path: Path) -> None:
    with daemons(tmp_path, 3) as (first, second, third):
        job = Job(tmp_path, "shared", [first, second, third], "2:3", "60")
        job.until_running(0, 4)
        wait_until(lambda: " spare" in first.holdfast("status", job.job_id), timeout_s=LIMIT_S, what="the spare")
        job.processes[2].send_signal(signal.SIGTERM)
        assert job.processes[2].wait(LIMIT_S) == 0
        assert LEFT in third.said(job.job_id)
        job.let_end()
        assert job.exit_codes() == [0, 0, 0]


# --- nodes with ranks -----------------------------------------------------------------------------------------------

LEAVE = ("--on-sigterm", "leave")


def _ended_in_cycle_1(job: Nodes, left: int, *, leader_said: str = "") -> None:
    """Checks that a spare has taken the place of that process, and no restart of the budget was used."""
    job.until_running(1, 4)
    assert job.processes[left].wait(LIMIT_S) == 0
    job.let_end()
    assert [process.wait(LIMIT_S) for process in job.processes if process.returncode is None] == [0, 0]
    said = "".join(job.output(number) for number in (1, 2, 3))
    assert "restarting at once, which uses no restart of the budget" in said
    assert "restarts used" not in said
    assert leader_said in said


def test_a_node_with_ranks_leaves_and_a_spare_takes_its_place(tmp_path: Path) -> None:
    with nodes(tmp_path, "2:3") as job:
        _start(job, 1)
        for number in (2, 3):
            job.start(number, "60", flags=LEAVE)
        job.until_running(0, 4)
        _until_spare(job)
        job.processes[1].send_signal(signal.SIGTERM)
        _ended_in_cycle_1(job, 1, leader_said="node 127.0.0.2 leaves the job (holdfast run got SIGTERM)")


def test_an_elected_leader_with_ranks_leaves_and_another_node_leads(tmp_path: Path, server: Etcd) -> None:
    with nodes(tmp_path, "2:3") as job:
        _begin_with_etcd_to_leave(job, server)
        job.processes[0].send_signal(signal.SIGTERM)
        _ended_in_cycle_1(job, 0, leader_said="node 127.0.0.1 gives up the lead: it leaves the job")


@pytest.mark.parametrize(
    ("number", "why"),
    [
        (1, "node 127.0.0.1 cannot leave the job: it leads the job, which ends with it"),
        (2, "node 127.0.0.2 cannot leave the job: 1 other node is there, and a cycle needs 2"),
    ],
)
def test_a_node_that_cannot_leave_stops_the_job_and_says_why(tmp_path: Path, number: int, why: str) -> None:
    with nodes(tmp_path, "2") as job:
        job.start(1, "60", flags=LEAVE)
        wait_until(lambda: listens(job.port), timeout_s=LIMIT_S, what="a leader")
        job.start(2, "60", flags=LEAVE)
        job.until_running(0, 4)
        job.processes[number - 1].send_signal(signal.SIGTERM)
        assert [process.wait(LIMIT_S) for process in job.processes] == [143, 143]
        assert why in job.output(1)


def test_ctrl_c_while_it_waits_to_leave_ends_this_node_alone_and_at_once(tmp_path: Path, server: Etcd) -> None:
    """The leader can't restart the job while etcd is away, so the first signal waits for it."""
    with nodes(tmp_path, "2:3") as job:
        _begin_with_etcd_to_leave(job, server)
        server.stop()
        job.processes[1].send_signal(signal.SIGTERM)
        told = (
            "got SIGTERM: this node leaves once the others run without it; another one after 2 s ends its ranks at once"
        )
        wait_until(lambda: told in job.output(2), timeout_s=LIMIT_S, what="the first signal")
        asked_s = time.monotonic()
        wait_until(lambda: time.monotonic() > asked_s + SAME_SIGNAL_S, timeout_s=LIMIT_S, what="another signal")
        job.processes[1].send_signal(signal.SIGINT)
        assert job.processes[1].wait(LIMIT_S) == 0
        assert time.monotonic() - asked_s < ANSWER_WITH_RANKS_S
        server.start()
        job.until_running(1, 4)
        job.let_end()
        assert [process.wait(LIMIT_S) for process in job.processes] == [0, 0, 0]
        assert "restarts used 2" not in "".join(job.output(number) for number in (1, 2, 3))
