"""etcd on nodes of a lab, and a job whose nodes elect their leader with it."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.job import PACE_S, ClusterJob
from tests.cluster.lab import Node, Started, lab_of

LIMIT_S = 60.0


class EtcdNodes:
    """Members of one etcd, by the number of their node."""

    def __init__(self, folder: Path, nodes: dict[int, Node], job_id: str) -> None:
        self._folder = folder
        self._job_id = job_id
        self._nodes = nodes
        self._members: dict[int, Started] = {}
        self._cluster = ",".join(f"e{number}=http://{node.address}:2380" for number, node in nodes.items())
        self.endpoint, *others = [f"{node.address}:2379" for node in nodes.values()]
        self.others = "|".join(others)

    @property
    def numbers(self) -> list[int]:
        return list(self._nodes)

    @property
    def running(self) -> set[int]:
        return set(self._members)

    def data(self, number: int) -> Path:
        return self._folder / f"etcd{number}"

    def start(self, number: int) -> None:
        client, peer = (f"http://{self._nodes[number].address}:{port}" for port in (2379, 2380))
        command = ["etcd", "--name", f"e{number}", "--data-dir", str(self.data(number))]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer]
        command += ["--initial-advertise-peer-urls", peer, "--initial-cluster", self._cluster, "--logger", "zap"]
        with (self._folder / f"etcd{number}.log").open("ab") as log:
            environment = {"PATH": "/usr/bin:/bin"}
            self._members[number] = self._nodes[number].start(*command, environment=environment, output=log)

    def kill(self, number: int) -> None:
        member = self._members.pop(number)
        member.signal(signal.SIGKILL)
        member.wait(LIMIT_S)

    def ctl(self, *arguments: str) -> str:
        """Runs etcdctl against all running members; waits as long as they may take to start."""
        number = next(iter(self._members))
        endpoints = ",".join(f"{self._nodes[each].address}:2379" for each in self._members)
        command = ["env", "ETCDCTL_API=3", "etcdctl", "--endpoints", endpoints, "--dial-timeout", "20s"]
        told = subprocess.run(
            self._nodes[number].command(*command, "--command-timeout", "20s", *arguments),
            capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        return told.stdout if told.returncode == 0 else ""

    def leader(self) -> int:
        """Returns the number of the member that leads etcd."""
        told = json.loads(self.ctl("endpoint", "status", "-w", "json") or "[]")
        leads = {each["Endpoint"] for each in told if _leads(each["Status"])}
        return next((number for number, node in self._nodes.items() if f"{node.address}:2379" in leads), 0)

    def kept(self, key: str) -> dict[str, object]:
        found = self.ctl("get", "--print-value-only", f"/holdfast/{self._job_id}/{key}").strip()
        return json.loads(found) if found else {}

    def revoke_all(self) -> None:
        for lease in self.ctl("lease", "list").split()[3:]:
            self.ctl("lease", "revoke", lease)


def _leads(status: dict[str, Any]) -> bool:
    """etcdctl leaves the leader out while there is none."""
    return status.get("leader") == status["header"]["member_id"]


@contextmanager
def elected_job(
    folder: Path, nnodes: str, *flags: str, nodes: int, members: int, pace_s: float = PACE_S
) -> Generator[tuple[ClusterJob, EtcdNodes]]:
    """Makes the lab; `members` more nodes have etcd."""
    if shutil.which("etcd") is None or shutil.which("etcdctl") is None:
        pytest.skip("needs etcd: apt-get install etcd-server etcd-client")
    with lab_of(nodes + members) as lab:
        job = ClusterJob(lab, folder, nnodes, "--rdzv-backend", "etcd", *flags, pace_s=pace_s)
        etcd = EtcdNodes(folder, {number: node for number, node in lab.nodes.items() if number > nodes}, job.job_id)
        for number in range(nodes + 1, nodes + members + 1):
            etcd.start(number)
        yield job, etcd


def start(job: ClusterJob, etcd: EtcdNodes, number: int) -> None:
    conf = f"token_file={job.token},endpoints={etcd.others}" if etcd.others else f"token_file={job.token}"
    job.start(number, "--rdzv-conf", conf, endpoint=etcd.endpoint)


def until_led_by(job: ClusterJob, etcd: EtcdNodes, *numbers: int) -> int:
    names = {f"node{number}": number for number in numbers}
    job.until(lambda: etcd.kept("leader").get("node") in names, f"a leader of {sorted(names)}")
    return names[str(etcd.kept("leader")["node"])]
