"""Three `holdfast daemon` whose job brings its etcd: supervisors that are killed come back with their members."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import time
from pathlib import Path

import msgspec
import pytest

from supervisor.core.etcd_membership import Published
from tests.e2e.launch import wait_until
from tests.e2e.test_cluster_supervisor_returns import pids, start_again, until_shown
from tests.e2e.test_many_nodes_daemons import LIMIT_S, Job, Node, nodes
from tests.e2e.test_own_etcd import free_port

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(400),
    pytest.mark.skipif(shutil.which("etcdctl") is None, reason="needs etcd: apt-get install etcd-server etcd-client"),
]


def _knows_three(node: Node, job: Job) -> bool:
    """Whether the supervisor of this node has kept three members for the one after it."""
    found = node.home / "state" / "etcd" / job.job_id / node.address / "members"
    return found.exists() and len(msgspec.json.decode(found.read_bytes(), type=Published).endpoints) == 3


def _all_members_answer(on: list[Node], job: Job, endpoint: str) -> bool:
    folder, port = on[0].home / "state" / "etcd" / job.job_id / on[0].address, endpoint.rpartition(":")[2]
    command = [
        "etcdctl",
        "--endpoints",
        ",".join(f"https://{node.address}:{port}" for node in on),
        "endpoint",
        "health",
    ]
    for flag, name in (("--cacert", "authority"), ("--cert", "certificate"), ("--key", "key")):
        command += [flag, f"{folder}/{name}.pem"]
    told = subprocess.run(command, env={"PATH": os.defpath, "ETCDCTL_API": "3"}, capture_output=True, check=False)
    return told.returncode == 0


def test_killed_supervisors_come_back_one_after_another_and_nothing_restarts(tmp_path: Path):
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    with nodes(tmp_path, 3) as all_nodes:
        endpoint = f"127.0.0.1:{free_port()}"
        job = Job(
            tmp_path, "job", all_nodes, "3", "600", etcd=endpoint,
            conf=f"members=3,token_file={token}",
        )  # fmt: skip
        job.until_running(0, 6)
        wait_until(lambda: all(_knows_three(node, job) for node in all_nodes), timeout_s=LIMIT_S, what="three members")
        before = pids(all_nodes[0], job)
        for node in all_nodes:
            node.kill()
            start_again(node, time.monotonic())
            until_shown(node, job, before, is_said=False)
            wait_until(lambda: _all_members_answer(all_nodes, job, endpoint), timeout_s=LIMIT_S, what="its member")
        assert not list(job.folder.glob("1-*"))
        job.let_end()
        assert job.exit_codes() == [0, 0, 0]
        for node in all_nodes:
            assert not (node.home / "state" / "etcd" / job.job_id).exists()
