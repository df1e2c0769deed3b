"""Nodes with networks of their own, and a real etcd: its data are lost, or its leader reaches it and no node. Training
goes on, and one fault uses one restart of the budget. After each test as in test_torn_networks.py.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.cluster.etcd_nodes import EtcdNodes, elected_job, start, until_led_by
from tests.cluster.job import ClusterJob

pytestmark = [pytest.mark.usefixtures("namespaces"), pytest.mark.soak]

ALONE_STEPS = 500  # ten seconds: longer than every fence, and than the wait of a first start
BACK_S = 25.0  # from a lead that reaches nobody to the last rank of the new cycle


def _lose_data(etcd: EtcdNodes) -> None:
    """Stops etcd and takes all its data."""
    for number in etcd.numbers:
        etcd.kill(number)
        shutil.rmtree(etcd.data(number))


def _more_steps(job: ClusterJob, count: int) -> None:
    steps = job.steps_saved()
    job.until(lambda: job.steps_saved() > steps + count, f"{count} more steps")


def _cut(job: ClusterJob, one: int, others: Iterable[int]) -> None:
    """Cuts a node off from these, in both directions; it reaches all others."""
    for other in others:
        job.lab.nodes[one].lose_to(job.lab.nodes[other])
        job.lab.nodes[other].lose_to(job.lab.nodes[one])


def _heal(job: ClusterJob, one: int, others: Iterable[int]) -> None:
    for other in others:
        job.lab.nodes[one].reach_again(job.lab.nodes[other])
        job.lab.nodes[other].reach_again(job.lab.nodes[one])


def _two_train_and_a_third_leads(job: ClusterJob, etcd: EtcdNodes) -> None:
    start(job, etcd, 3)
    until_led_by(job, etcd, 3)
    for number in (1, 2):
        start(job, etcd, number)
    job.until(lambda: job.nodes_training() == {"node1", "node2"}, "the first cycle")
    job.until_steps(0, nodes={1, 2})


def test_d9_etcd_loses_its_data_while_a_spare_leads_and_nothing_restarts(tmp_path: Path):
    with elected_job(tmp_path, "2:3", "--rdzv-conf", "last_call_timeout=10", nodes=3, members=1) as (job, etcd):
        _two_train_and_a_third_leads(job, etcd)
        _lose_data(etcd)
        _more_steps(job, 100)
        etcd.start(4)
        job.until(lambda: etcd.kept("ledger").get("cycle") == 0, "the ledger is written again")
        _more_steps(job, ALONE_STEPS)
        job.let_end()
        assert job.codes(1, 2, 3) == {1: 0, 2: 0, 3: 0}
        assert job.wrong() == []
        assert job.cycles() == {0}


def test_d9_etcd_loses_its_data_and_newcomers_lead_before_those_who_train(tmp_path: Path):
    with elected_job(tmp_path, "2:4", nodes=4, members=1) as (job, etcd):
        for number in (1, 2):
            start(job, etcd, number)
        job.until_steps(0, nodes={1, 2})
        _lose_data(etcd)
        for number in (1, 2):
            _cut(job, number, [5])  # only from etcd
        etcd.start(5)
        for number in (3, 4):
            start(job, etcd, number)
        until_led_by(job, etcd, 3, 4)
        for number in (1, 2):
            _heal(job, number, [5])
        job.until(lambda: etcd.kept("ledger").get("cycle") == 0, "the ledger of those who train")
        _more_steps(job, ALONE_STEPS)
        job.let_end()
        assert job.codes(1, 2, 3, 4) == {1: 0, 2: 0, 3: 0, 4: 0}
        assert job.wrong() == []
        assert job.cycles() == {0}


@pytest.mark.parametrize("takes_part", [True, False])
def test_d7_a_leader_that_reaches_etcd_and_no_node_resigns_and_the_fault_takes_one_unit(
    tmp_path: Path, *, takes_part: bool
):
    with elected_job(tmp_path, "2:3", "--rdzv-conf", "last_call_timeout=10", nodes=3, members=1) as (job, etcd):
        if takes_part:
            start(job, etcd, 1)
            until_led_by(job, etcd, 1)
            start(job, etcd, 2)
            job.until_steps(0, nodes={1, 2})
            start(job, etcd, 3)
            leader = 1
        else:
            _two_train_and_a_third_leads(job, etcd)
            leader = 3
        job.until(lambda: str(etcd.kept("ledger").get("witnesses")).count("node") == 3, "all nodes")
        others = [number for number in (1, 2, 3) if number != leader]
        _cut(job, leader, others)
        cut_s = time.monotonic()
        until_led_by(job, etcd, *others)
        job.until_steps(1, nodes=set(others))
        assert time.monotonic() - cut_s < BACK_S
        _more_steps(job, ALONE_STEPS)
        assert "gives up the lead" in job.output(leader)
        _heal(job, leader, others)
        job.until(lambda: str(etcd.kept("ledger").get("witnesses")).count("node") == 3, "all nodes again")
        job.let_end()
        assert job.codes(1, 2, 3) == {1: 0, 2: 0, 3: 0}
        assert job.wrong() == []
        assert job.cycles() == {0, 1}
        said = "".join(job.output(number) for number in (1, 2, 3))
        assert "restarts used 1 of 3" in said
        assert "restarts used 2 of 3" not in said
