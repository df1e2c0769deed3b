"""While etcd is away, a stop still reaches the ranks of its node at once, and the job ends with one verdict."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.e2e.launch import wait_until
from tests.e2e.test_many_nodes import HOLDFAST, LIMIT_S, Nodes, nodes
from tests.etcd_server import Etcd, etcd

AT_ONCE_S = 5.0  # a stop that waits for etcd waits for as long as etcd is away
SCRIPT = """
import os, signal, sys, time
folder, rank = sys.argv[1], os.environ["RANK"]
cycle = os.environ["TORCHELASTIC_RESTART_COUNT"]

def save(number, frame):
    os.symlink(f"/proc/{os.getpid()}", f"{folder}/saved-{rank}")
    while "stays" in sys.argv:
        time.sleep(0.05)
    os._exit(1)

signal.signal(signal.SIGTERM, save)
signal.signal(signal.SIGINT, save)
open(f"{folder}/{cycle}-{rank}", "w").write(f"{rank} of {os.environ['WORLD_SIZE']} store x")
while True:
    time.sleep(0.05)
"""
RANKS = {1: (0, 1), 2: (2, 3)}  # by node


@pytest.fixture
def server(tmp_path: Path) -> Generator[Etcd]:
    with etcd(tmp_path / "etcd") as started:
        yield started


@pytest.fixture
def job(tmp_path: Path) -> Generator[Nodes]:
    with nodes(tmp_path, "2") as started:
        (tmp_path / "train.py").write_text(SCRIPT)
        yield started


def _begin(job: Nodes, server: Etcd, *arguments: str) -> int:
    """Starts two nodes with two ranks each. Returns the number of the node that leads."""
    job.endpoint = server.endpoint
    for number in (1, 2):
        job.start(number, *arguments, flags=("--rdzv-backend", "etcd"))
    job.until_running(0, 4)
    return int(str(server.record(f"/holdfast/{job.job_id}/leader")["node"])[-1])


def _until_saved(job: Nodes, *numbers: int, within_s: float = AT_ONCE_S) -> None:
    wait_until(
        lambda: all((job.folder / f"saved-{rank}").is_symlink() for number in numbers for rank in RANKS[number]),
        timeout_s=within_s,
        what=f"the graceful stop of the ranks of nodes {numbers}",
    )


@pytest.mark.parametrize(("leads", "is_paused"), [(False, False), (True, True)])
def test_a_signal_to_one_node_stops_its_ranks_at_once_and_the_job_once_etcd_is_back(
    job: Nodes, server: Etcd, *, leads: bool, is_paused: bool
):
    leader = _begin(job, server)
    number = leader if leads else 3 - leader
    server.signal(signal.SIGSTOP) if is_paused else server.stop()
    job.processes[number - 1].send_signal(signal.SIGINT if leads else signal.SIGTERM)
    _until_saved(job, number)
    assert all(process.poll() is None for process in job.processes), "no verdict before the other node knows"
    server.signal(signal.SIGCONT) if is_paused else server.start()
    assert [process.wait(LIMIT_S) for process in job.processes] == [130 if leads else 143] * 2
    assert not list(job.folder.glob("1-*"))
    assert "restarting" not in job.output(1) + job.output(2)


@pytest.mark.soak
def test_signals_to_all_nodes_stop_all_ranks_at_once_and_a_second_one_kills_them(job: Nodes, server: Etcd):
    _begin(job, server, "stays")
    server.stop()
    for process in job.processes:
        process.send_signal(signal.SIGTERM)
    _until_saved(job, 1, 2)

    def have_ended() -> bool:
        for process in job.processes:
            process.send_signal(signal.SIGTERM)  # A second one within 2 s is taken for the same.
        return not any((job.folder / f"saved-{rank}").exists() for rank in range(4))

    wait_until(have_ended, timeout_s=AT_ONCE_S, what="the end of the ranks")
    server.start()
    assert [process.wait(LIMIT_S) for process in job.processes] == [143, 143]


def test_stop_wait_stops_the_ranks_at_once_and_returns_with_the_verdict(job: Nodes, server: Etcd):
    _begin(job, server)
    server.stop()
    wait_until(lambda: all(_says_what_waits(job, number) for number in (1, 2)), timeout_s=LIMIT_S, what="the outage")
    with (job.folder / "stop.txt").open("w") as said:
        command = [str(HOLDFAST), "stop", job.job_id, "--wait"]
        stop = subprocess.Popen(command, env=job.environment(2), stdout=said, stderr=said)
    _until_saved(job, 1, 2, within_s=2 * AT_ONCE_S)  # both nodes are on this machine; it asks first which answer
    server.start()
    assert stop.wait(LIMIT_S) == 0
    assert len({process.wait(LIMIT_S) for process in job.processes}) == 1
    assert "has ended: holdfast stop by " in (job.folder / "stop.txt").read_text()


def _says_what_waits(job: Nodes, number: int) -> bool:
    """Returns whether `status` on that node says that a restart waits for etcd."""
    command = [str(HOLDFAST), "status", job.job_id]
    told = subprocess.run(command, env=job.environment(number), capture_output=True, text=True, timeout=LIMIT_S)
    return "the rendezvous backend has not answered for" in told.stdout and "a restart waits for it" in told.stdout


@pytest.mark.soak
def test_a_new_leader_learns_of_the_stop_of_a_node(job: Nodes, server: Etcd):
    """The leader dies with what it knew; only the other node still knows that it has stopped its part."""
    leader = _begin(job, server)
    server.stop()
    other = 3 - leader
    job.processes[other - 1].send_signal(signal.SIGTERM)
    _until_saved(job, other)
    job.processes[leader - 1].kill()
    server.start()
    assert job.processes[other - 1].wait(LIMIT_S) == 143
    assert not list(job.folder.glob("1-*"))
