"""Several `holdfast run` with a real etcd: the leader is killed, another leads, and the job continues and ends well."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Generator
from datetime import datetime
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal

from supervisor.core import fence_times
from supervisor.edges.machine.journal.journal_reader import open_reader
from tests.e2e.launch import wait_until
from tests.e2e.test_many_nodes import HOLDFAST, LIMIT_S, NOT_RUN, Nodes, nodes
from tests.e2e.wrapped_nodes import WrappedNodes, wrapped_nodes
from tests.etcd_proxy import etcd_proxy
from tests.etcd_server import Etcd, etcd

OUTAGE_S = 2.0  # a node's last message may be so old when its leader is lost
BACK_S = 10.0  # TARGETS: the control plane is back


@pytest.fixture
def server(tmp_path: Path) -> Generator[Etcd]:
    with etcd(tmp_path / "etcd") as started:
        yield started


def _kept(server: Etcd, job: Nodes, key: str) -> dict[str, object]:
    return server.record(f"/holdfast/{job.job_id}/{key}")


def _until_led_by(server: Etcd, job: Nodes, *names: str) -> str:
    wait_until(
        lambda: _kept(server, job, "leader").get("node") in names, timeout_s=LIMIT_S, what=f"a leader of {names}"
    )
    return str(_kept(server, job, "leader")["node"])


def _start(job: Nodes, server: Etcd, number: int) -> None:
    job.endpoint = server.endpoint
    job.start(number, "60", flags=("--rdzv-backend", "etcd"))


@pytest.mark.alone
def test_the_leaders_node_is_lost_and_a_spare_steps_in(tmp_path: Path, server: Etcd):
    with nodes(tmp_path, "2:3") as job:
        _start(job, server, 1)
        _until_led_by(server, job, "127.0.0.1")
        for number in (2, 3):
            _start(job, server, number)
        job.until_running(0, 4)
        wait_until(lambda: _has_recorded(job, 2, "rank 1 "), timeout_s=LIMIT_S, what="the leader's events on node 2")
        job.processes[0].kill()
        killed_s, killed_at_ns = time.monotonic(), time.time_ns()
        led_by = _until_led_by(server, job, "127.0.0.2", "127.0.0.3")
        back_s = time.monotonic() - killed_s
        assert len(job.until_running(1, 4)) == 1
        job.let_end()
        assert [process.wait(LIMIT_S) for process in job.processes[1:]] == [0, 0]
        assert back_s < BACK_S
        for number in (2, 3):
            _has_the_history(job, number, lost_at_ns=killed_at_ns, is_whole=led_by == f"127.0.0.{number}")
        said = job.output(2) + job.output(3)
        assert "node 127.0.0.1 of group rank 0 is lost: it has not reported its state to the new leader" in said
        assert "restarts used 1 of 2" in said
        follower = 5 - int(led_by[-1])
        assert f"is led by node {led_by} now, no longer by node 127.0.0.1" in job.output(follower)
        # A node that missed the end finds it; a new run with this id learns that it belonged to another.
        assert _kept(server, job, "ledger")["is_told"] is True


def test_a_command_that_cannot_be_run_ends_the_job_at_once(tmp_path: Path, server: Etcd):
    """Its node says so before it has a leader; the first one hears it afterwards."""
    with nodes(tmp_path, "1:2") as job:
        (tmp_path / "train.py").unlink()
        _start(job, server, 1)
        assert job.processes[0].wait(LIMIT_S) == NOT_RUN
        assert "train.py: there is no such file" in job.output(1)


def _has_the_history(job: Nodes, number: int, *, lost_at_ns: int, is_whole: bool) -> None:
    """Checks what a node that is left has recorded: also of the node that led first, and all in its time.

    The last leader has all that anybody knows. The others have what they did and what their leaders told them.
    """
    times, nodes = list[str](), set[str]()
    for line in _told(job, number, "events").splitlines()[1:]:
        time_of_it, _, node, *_ = line.split()
        times.append(time_of_it)
        nodes.add(node)
    assert times == sorted(times)
    assert "127.0.0.1" in nodes
    life = json.loads(_told(job, number, "report", "-o", "json"))
    (incident,) = life["incidents"]
    assert (incident["kind"], incident["node"], life["restarts_used"]) == ("lost node", "127.0.0.1", 1)
    began_s = datetime.fromisoformat(incident["began_at"]).timestamp()
    assert abs(began_s - lost_at_ns / 1e9) < OUTAGE_S
    assert incident["cost_s"] > fence_times.ALONE_S - OUTAGE_S
    assert life["course"][0]["to"] < incident["began_at"], "it waits for its first start only until that"
    if is_whole:
        assert {run["node"] for run in life["runs"] if run["cycle"] == 0} == {"127.0.0.1", "127.0.0.2"}


def _has_recorded(job: Nodes, number: int, words: str) -> bool:
    with open_reader(job.folder / f"node{number}" / "state") as reader:
        return any(words in event.reason for event in reader.events(job.job_id, limit=100))


def _told(job: Nodes, number: int, *words: str) -> str:
    command, *options = words
    return subprocess.run(
        [str(HOLDFAST), command, job.job_id, *options], env=job.environment(number), check=True, text=True,
        stdout=subprocess.PIPE, timeout=LIMIT_S,
    ).stdout  # fmt: skip


@pytest.mark.soak
def test_d10_etcd_refuses_compacts_and_misses_events_and_training_goes_on(tmp_path: Path, server: Etcd):
    """No step is lost, no restart happens, and the budget stays intact. Then etcd itself is restarted."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(etcd_proxy(server.endpoint)) as proxy,
        nodes(tmp_path, "2") as job,
    ):
        job.endpoint = f"127.0.0.1:{proxy.port}"
        for number in (1, 2):
            job.start(number, "60", flags=("--rdzv-backend", "etcd"))
        job.until_running(0, 4)
        proxy.loses_events, proxy.refuses = True, True
        wait_until(lambda: not _kept(server, job, "leader"), timeout_s=LIMIT_S, what="the end of the lease")
        refused = proxy.refused
        time.sleep(fence_times.FENCE_S)
        assert proxy.refused > refused
        proxy.refuses = False
        wait_until(lambda: _take_overs(job) > 0, timeout_s=LIMIT_S, what="a take-over of which no event tells")
        assert proxy.lost
        proxy.compacts = 3
        server.stop()  # ends all watches
        server.start()
        wait_until(lambda: not proxy.compacts, timeout_s=LIMIT_S, what="three watches of a compacted history")
        server.end_lead(job.job_id)
        _until_led_by(server, job, "127.0.0.1", "127.0.0.2")
        job.let_end()
        assert [process.wait(LIMIT_S) for process in job.processes] == [0, 0]
        assert not list(tmp_path.glob("1-*"))
        assert "ends its workers" not in job.output(1) + job.output(2)


@pytest.mark.soak
def test_a_wrapped_call_goes_on_under_the_next_leader(tmp_path: Path, server: Etcd):
    """First the leader takes no part: nothing restarts, and the next fault is one of the call. Then it takes part."""
    flags = ("--rdzv-backend", "etcd", "--rdzv-endpoint", server.endpoint)
    with wrapped_nodes(tmp_path, "2:4", "wrapped_on_nodes.py", max_restarts=4) as job:
        for number in (1, 2):
            job.start(number, *flags)
        before = job.until_entered(0, 4)
        first = _leader_of(server)
        for number in (3, 4):
            job.start(number, *flags)
        job.until(lambda: str(_ledger_of(server).get("witnesses")).count("127.0.0.") == 4, "the spares")
        job.order("fail", 1)
        job.until_entered(1, 4)
        job.lose(first)
        job.until(lambda: _leader_of(server) not in (0, first), "another leader")
        cycle, iteration, entered = _whole(job, 4, without=first)
        survivor = 3 - first
        kept = {rank for rank, line in before.items() if line["node"] == str(survivor)}
        assert {line["node"] for line in entered.values()} >= {str(survivor)}
        job.order("fail", 1)
        job.until_entered(iteration + 1, 4, cycle=cycle)
        assert kept
        job.end()
        assert job.codes() == [0, 0, 0]


def _whole(job: WrappedNodes, size: int, *, without: int) -> tuple[str, int, dict[object, dict[str, object]]]:
    """Returns the first iteration of any cycle with all ranks, none of them on that node."""
    found: list[tuple[str, int]] = []

    def is_there() -> bool:
        for key in {(str(line["cycle"]), int(str(line["iteration"]))) for line in job.traced("fn")}:
            entered = job.entered(key[1], cycle=key[0])
            if len(entered) == size and all(line["node"] != str(without) for line in entered.values()):
                found.append(key)
        return bool(found)

    job.until(is_there, f"{size} ranks without node {without}")
    cycle, iteration = max(found)
    return cycle, iteration, job.entered(iteration, cycle=cycle)


def _ledger_of(server: Etcd) -> dict[str, object]:
    return server.record("/holdfast/job/ledger")


def _leader_of(server: Etcd) -> int:
    """Returns the number of the leading node; 0: nobody leads."""
    found = server.record("/holdfast/job/leader")
    return int(str(found["node"]).rpartition(".")[2]) if found else 0


def _take_overs(job: Nodes) -> int:
    said = job.output(1) + job.output(2)
    return said.count("the leader is new; cycle 0 goes on, 2 of 2 nodes are there")
