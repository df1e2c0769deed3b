"""Nodes that elect their leader by a real etcd, with networks of their own: what becomes of the job when the leader, or
etcd, is lost and comes back? After each test as in test_torn_networks.py.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from supervisor.ports.rendezvous_backend import SURE_S
from tests.cluster.etcd_nodes import elected_job, start, until_led_by
from tests.cluster.job import ClusterJob

pytestmark = pytest.mark.usefixtures("namespaces")

SOON_S = 6.0
BACK_S = 15.0  # to the last rank of the new cycle; 10 if the machine does nothing else (TARGETS)


def more_steps(job: ClusterJob, count: int) -> None:
    steps = job.steps_saved()
    job.until(lambda: job.steps_saved() > steps + count, f"{count} more steps")


@pytest.mark.soak
def test_d7_d8_a_leader_that_is_cut_off_is_replaced_and_comes_back_as_an_ordinary_node(tmp_path: Path):
    with elected_job(tmp_path, "2:3", nodes=3, members=1) as (job, etcd):
        start(job, etcd, 1)
        until_led_by(job, etcd, 1)
        start(job, etcd, 2)
        job.until_steps(0, nodes={1, 2})
        start(job, etcd, 3)
        job.until(lambda: "node3" in str(etcd.kept("ledger").get("witnesses")), "the spare")
        job.lab.nodes[1].unplug()
        leader = until_led_by(job, etcd, 2, 3)
        job.until_steps(1, nodes={2, 3})
        made_s = max(at_s for each in job.lives(0) for at_s, _ in each.steps)
        assert max(each.began_s for each in job.lives(1)) - made_s < BACK_S
        job.lab.nodes[1].plug_in()
        job.until(lambda: f"this node no longer leads job {job.job_id}" in job.output(1), "the end of the old lead")
        job.until(lambda: "node1" in str(etcd.kept("ledger").get("witnesses")), "the old leader as a node")
        other = 5 - leader
        job.lab.nodes[other].lose_power()
        job.until_steps(2, nodes={1, leader})
        job.let_end()
        assert job.codes(1, leader) == {1: 0, leader: 0}
        assert job.wrong() == []
        assert job.cycles() == {0, 1, 2}
        assert "restarts used 2 of 3" in job.output(leader)


@pytest.mark.soak
@pytest.mark.parametrize("fault", ["power", "kill"])
def test_d7_the_loss_of_a_leader_that_takes_part_takes_six_seconds(tmp_path: Path, fault: str):
    with elected_job(tmp_path, "2:3", nodes=3, members=1) as (job, etcd):
        began_s = time.monotonic()
        start(job, etcd, 1)
        until_led_by(job, etcd, 1)
        start(job, etcd, 2)
        job.until_steps(0, nodes={1, 2})
        start(job, etcd, 3)
        job.until(lambda: "node3" in str(etcd.kept("ledger").get("witnesses")), "the spare")
        sure_s = began_s + SURE_S + 5.0  # the first lead begins some time after the first node
        job.until(lambda: time.monotonic() > sure_s, "an etcd that has surely lost nothing", limit_s=2 * SURE_S)
        node, lost_s = job.lab.nodes[1], time.monotonic()
        if fault == "power":
            node.lose_power()
        else:
            node.kill()
        job.until_steps(1, nodes={2, 3})
        took_s = min(at_s for each in job.lives(1) for at_s, _ in each.steps) - lost_s
        print(f"{fault}: first step after {took_s:.2f} s")
        job.let_end()
        assert job.codes(2, 3) == {2: 0, 3: 0}
        assert job.wrong() == []
        assert took_s < SOON_S


@pytest.mark.soak
def test_d9_etcd_loses_its_leader_its_quorum_and_its_leases_and_training_goes_on(tmp_path: Path):
    with elected_job(tmp_path, "2", nodes=2, members=3) as (job, etcd):
        for number in (1, 2):
            start(job, etcd, number)
        job.until_steps(0, nodes={1, 2})
        lost = etcd.leader()
        etcd.kill(lost)
        more_steps(job, 50)
        job.until(lambda: etcd.leader() not in (0, lost), "another leader of etcd")
        rest = [number for number in (3, 4, 5) if number != lost]
        etcd.kill(rest[0])
        more_steps(job, 350)  # longer than a lease, and than the fence
        for number in (lost, rest[0]):
            etcd.start(number)
        job.until(lambda: etcd.kept("ledger").get("cycle") == 0, "etcd")
        etcd.revoke_all()
        job.until(lambda: "cycle 0 goes on, 2 of 2 nodes are there" in job.output(1) + job.output(2), "a take-over")
        more_steps(job, 10)
        job.let_end()
        assert job.codes(1, 2) == {1: 0, 2: 0}
        assert job.wrong() == []
        assert job.cycles() == {0}
