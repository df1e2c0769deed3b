"""Nodes with networks of their own: what becomes of a job when a node, a link, or one direction of it is lost?

After each test: no two groups of the job were alive at once, and no step was lost that a checkpoint had.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.cluster.job import PORT, cluster_job
from tests.cluster.slow_link import slow_link

pytestmark = pytest.mark.usefixtures("namespaces")

SEED = 8
FLAP_S = 2.0  # shorter than the fence


def test_a_rank_is_killed_and_two_nodes_restart_in_one_cycle_and_end_well(tmp_path: Path):
    with cluster_job(tmp_path, 2, "2") as job:
        job.start_leader()
        job.start(2)
        job.until_steps(0, nodes={1, 2})
        job.order(1, "kill")
        job.until_steps(1, nodes={1, 2})
        job.let_end()
        assert job.codes(1, 2) == {1: 0, 2: 0}
        assert job.wrong() == []
        assert {each.cycle for each in job.stamps()} == {0, 1}


def test_d1_d2_a_node_without_a_link_is_replaced_and_comes_back_too_late(tmp_path: Path):
    with cluster_job(tmp_path, 3, "2:3") as job:
        job.start_leader()
        job.start(2)
        job.until_steps(0, nodes={1, 2})
        job.start(3)
        job.lab.nodes[2].unplug()
        unplugged_s = time.monotonic()
        job.until_steps(1, nodes={1, 3})
        first_s = min(each.at_s for each in job.stamps(1))
        assert 4 < first_s - unplugged_s < 8
        job.lab.nodes[2].plug_in()
        assert job.codes(2) == {2: 1}
        assert "the leader at 10.77.0.1:29400 is lost" in job.output(2)
        job.let_end()
        assert job.codes(1, 3) == {1: 0, 3: 0}
        assert job.wrong() == []
        assert {each.cycle for each in job.stamps()} == {0, 1}


def test_d4_where_one_direction_is_lost_both_sides_give_the_node_up(tmp_path: Path):
    with cluster_job(tmp_path, 5, "3:5") as job:
        leader = job.lab.nodes[1]
        job.start_leader()
        job.start(2)
        job.start(3)
        job.until_steps(0, nodes={1, 2, 3})
        job.start(4)
        job.start(5)
        leader.lose_to(job.lab.nodes[2])  # node 2 is deaf
        job.lab.nodes[3].lose_to(leader)  # node 3 is not heard
        job.until_steps(1, nodes={1, 4, 5})
        assert job.codes(2, 3) == {2: 1, 3: 1}
        job.let_end()
        assert job.codes(1, 4, 5) == {1: 0, 4: 0, 5: 0}
        assert job.wrong() == []


def test_d6_slow_links_and_short_losses_cost_nothing(tmp_path: Path):
    with cluster_job(tmp_path, 3, "3") as job:
        leader = job.start_leader()
        with slow_link(job.lab, job.lab.nodes[1], PORT, seed=SEED) as link:
            job.start(2, endpoint=link.endpoint)
            job.start(3)
            job.until_steps(0, nodes={1, 2, 3})
            link.say("delay 0 0.1")
            job.lab.nodes[3].unplug()
            link.say(f"stall {FLAP_S}")
            time.sleep(FLAP_S)  # so long it lasts
            job.lab.nodes[3].plug_in()
            link.say("cut")
            steps = job.steps_saved()
            job.until(lambda: job.steps_saved() > steps + 100, "more steps")
            assert leader.poll() is None
            job.let_end()
            assert job.codes(1, 2, 3) == {1: 0, 2: 0, 3: 0}
        assert job.wrong() == []
        assert {each.cycle for each in job.stamps()} == {0}


def test_d3_a_leader_that_is_cut_off_ends_the_job_with_one_verdict(tmp_path: Path):
    with cluster_job(tmp_path, 3, "3") as job:
        job.start_leader()
        job.start(2)
        job.start(3)
        job.until_steps(0, nodes={1, 2, 3})
        job.lab.nodes[1].unplug()
        assert job.codes(2, 3) == {2: 1, 3: 1}
        for number in (2, 3):
            assert "the leader at 10.77.0.1:29400 is lost" in job.output(number)
        assert job.wrong() == []
