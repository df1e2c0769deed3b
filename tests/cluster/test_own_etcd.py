"""Nodes with networks of their own whose job brings its etcd: what becomes of it when a member's node is lost?

After each test as in test_torn_networks.py; besides, nothing of etcd is left.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.job import ClusterJob
from tests.cluster.lab import lab_of

pytestmark = [pytest.mark.usefixtures("namespaces"), pytest.mark.timeout(600)]

PORT = 2379
LONG_S = 180.0  # etcd itself is slow where others use its processors


class OwnEtcdJob(ClusterJob):
    def start_all(self, *numbers: int) -> None:
        for number in numbers:
            self.start(number, endpoint=f"{self.lab.nodes[1].address}:{PORT}")

    def etcd_folder(self, number: int) -> Path:
        return self.folder / f"node{number}" / "state" / "etcd" / self.job_id / f"node{number}"

    def voters(self, asked: int) -> set[int]:
        """Returns the nodes whose members vote, as the member of one node knows them; none if it does not answer."""
        folder, address = self.etcd_folder(asked), self.lab.nodes[asked].address
        command = ["env", "ETCDCTL_API=3", "etcdctl", "--endpoints", f"https://{address}:{PORT}", "member", "list"]
        for flag, name in (("--cacert", "authority"), ("--cert", "certificate"), ("--key", "key")):
            command += [flag, f"{folder}/{name}.pem"]
        told = subprocess.run(self.lab.nodes[asked].command(*command), capture_output=True, text=True, check=False)
        rows = [line.split(", ") for line in told.stdout.splitlines()]
        started = [row[3] for row in rows if row[1] == "started" and row[5] == "false"]
        return {int(url.rpartition(":")[0].rpartition(".")[2]) for url in started}

    def until_voters(self, *numbers: int, asked: int) -> None:
        self.until(lambda: self.voters(asked) == set(numbers), f"the members {numbers}", LONG_S)

    def go_on(self) -> None:
        steps = self.steps_saved()
        self.until(lambda: self.steps_saved() > steps + 5, "more steps", LONG_S)


@contextmanager
def own_etcd_job(folder: Path, nnodes: str, *flags: str, nodes: int) -> Generator[OwnEtcdJob]:
    if shutil.which("etcd") is None or shutil.which("etcdctl") is None:
        pytest.skip("needs etcd: apt-get install etcd-server etcd-client")
    with lab_of(nodes) as lab:
        job = OwnEtcdJob(lab, folder, nnodes, "--rdzv-backend", "etcd", *flags)
        job.conf = f",members=3,endpoints={lab.nodes[2].address}:{PORT}"
        yield job


@pytest.mark.soak
def test_each_member_is_lost_the_next_node_becomes_one_and_the_first_comes_back(tmp_path: Path):
    with own_etcd_job(tmp_path, "2:4", nodes=4) as job:
        job.start_all(1, 2, 3)
        job.until_voters(1, 2, 3, asked=1)
        job.start_all(4)
        job.until(lambda: job.nodes_training() != set(), "the first cycle")
        job.go_on()
        job.lab.nodes[1].lose_power()  # the endpoint's, which leads the job, as a rule
        job.go_on()
        job.until_voters(2, 3, 4, asked=2)
        job.lab.boot_again(1)
        shutil.rmtree(job.folder / "node1" / "state")  # it knows nothing any more
        job.start_all(1)
        job.until(lambda: "this node joins them" in job.output(1), "the way to the members")
        job.lab.nodes[3].lose_power()
        job.until_voters(1, 2, 4, asked=2)
        job.lab.nodes[2].lose_power()
        job.until(lambda: job.nodes_training() == {"node1", "node4"}, "a cycle on those that are left")
        job.go_on()
        job.let_end()
        assert job.codes(1, 4) == {1: 0, 4: 0}
        assert job.wrong() == []
        assert not any(job.etcd_folder(number).exists() for number in (1, 4))


@pytest.mark.soak
def test_the_endpoints_host_is_silent_for_long_and_its_new_node_begins_no_second_etcd(tmp_path: Path):
    """The kernel repeats a connection's first packet after 35 and 67 s, for instance: the node begins in between."""
    with own_etcd_job(tmp_path, "2:4", nodes=3) as job:
        job.conf = ",members=3"  # so the new node knows of no other place
        job.start_all(1, 2, 3)
        job.until_voters(1, 2, 3, asked=1)
        first = job.lab.nodes[1]
        for other in (2, 3):
            job.lab.nodes[other].lose_to(first)
        first.lose_power()
        time.sleep(50.0)
        job.lab.boot_again(1)
        shutil.rmtree(job.folder / "node1" / "state")
        for other in (2, 3):
            job.lab.nodes[other].reach_again(first)
        job.start_all(1)
        job.until_voters(1, 2, 3, asked=2)
        assert "this node joins them" in job.output(1)
        job.go_on()
        job.let_end()
        assert job.codes(1, 2, 3) == {1: 0, 2: 0, 3: 0}
        assert job.wrong() == []


@pytest.mark.soak
def test_a_drained_member_leaves_and_the_next_node_becomes_one(tmp_path: Path):
    with own_etcd_job(tmp_path, "2:4", "--on-sigterm", "leave", nodes=4) as job:
        job.start_all(1, 2, 3)
        job.until_voters(1, 2, 3, asked=1)
        job.start_all(4)
        job.go_on()
        job.runs[1].signal(signal.SIGTERM)
        assert job.codes(1) == {1: 0}
        assert not job.etcd_folder(1).exists()
        job.until_voters(2, 3, 4, asked=2)
        job.go_on()
        job.let_end()
        assert job.codes(2, 3, 4) == {2: 0, 3: 0, 4: 0}
        assert job.wrong() == []
        assert not any(job.etcd_folder(number).exists() for number in (2, 3, 4))
