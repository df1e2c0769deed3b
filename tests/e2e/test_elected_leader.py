"""Several `holdfast run` with a real etcd: the leader is killed, another leads, and the job goes on and ends well."""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.e2e.launch import wait_until
from tests.e2e.test_many_nodes import LIMIT_S, Nodes, nodes
from tests.etcd_server import Etcd, etcd

BACK_S = 10.0  # TARGETS: the control plane is back


@pytest.fixture
def server(tmp_path: Path) -> Generator[Etcd]:
    with etcd(tmp_path / "etcd") as started:
        yield started


def _kept(server: Etcd, job: Nodes, key: str) -> dict[str, object]:
    found = server.ctl("get", "--print-value-only", f"/holdfast/{job.job_id}/{key}").strip()
    return json.loads(found) if found else {}


def _until_led_by(server: Etcd, job: Nodes, *names: str) -> str:
    wait_until(
        lambda: _kept(server, job, "leader").get("node") in names, timeout_s=LIMIT_S, what=f"a leader of {names}"
    )
    return str(_kept(server, job, "leader")["node"])


def _start(job: Nodes, server: Etcd, number: int) -> None:
    job.endpoint = server.endpoint
    job.start(number, "60", flags=("--rdzv-backend", "etcd"))


def test_the_leaders_node_is_lost_and_a_spare_steps_in(tmp_path: Path, server: Etcd):
    with nodes(tmp_path, "2:3") as job:
        _start(job, server, 1)
        _until_led_by(server, job, "127.0.0.1")
        for number in (2, 3):
            _start(job, server, number)
        job.until_running(0, 4)
        job.processes[0].kill()
        killed_s = time.monotonic()
        _until_led_by(server, job, "127.0.0.2", "127.0.0.3")
        back_s = time.monotonic() - killed_s
        assert len(job.until_running(1, 4)) == 1
        job.let_end()
        assert [process.wait(LIMIT_S) for process in job.processes[1:]] == [0, 0]
        assert back_s < BACK_S
        said = job.output(2) + job.output(3)
        assert "node 127.0.0.1 of group rank 0 is lost: it has not said how it stands to the new leader" in said
        assert "restarts used 1 of 2" in said
        assert not _kept(server, job, "ledger")  # A job that has ended leaves nothing to take over.


def test_leases_are_revoked_etcd_is_started_again_and_training_goes_on(tmp_path: Path, server: Etcd):
    """No step is lost, no restart takes place, and the budget stays whole."""
    with nodes(tmp_path, "2") as job:
        for number in (1, 2):
            _start(job, server, number)
        job.until_running(0, 4)
        for lease in server.ctl("lease", "list").split()[3:]:
            server.ctl("lease", "revoke", lease)
        wait_until(lambda: _take_overs(job) > 0, timeout_s=LIMIT_S, what="the first take-over")
        server.stop()
        time.sleep(3.0)  # Longer than a lease lasts.
        server.start()
        _until_led_by(server, job, "127.0.0.1", "127.0.0.2")
        job.let_end()
        assert [process.wait(LIMIT_S) for process in job.processes] == [0, 0]
        assert not list(tmp_path.glob("1-*"))


def _take_overs(job: Nodes) -> int:
    said = job.output(1) + job.output(2)
    return said.count("the leader is new; cycle 0 goes on, 2 of 2 nodes are there")
