"""Nodes with their own networks: what happens to a job if a node, a link, or one direction of it is lost?

Checked after each test: no two groups of the job were alive at once, and no step in a checkpoint was lost.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.cluster.job import PORT, ClusterJob, cluster_job
from tests.cluster.slow_link import slow_link

pytestmark = pytest.mark.usefixtures("namespaces")

SEED = 8
FLAP_S = 1.2  # shorter than the fence, and than TCP's pauses between attempts
MANY_SECTIONS = ",".join(f"section-{number}:3600" for number in range(60))
DNS_TIMEOUT_S = 5.0  # the resolver's, for one attempt
FIRST_ATTEMPT_S = 10  # half of the time to join; it fails if the handshake does not get through
ESTABLISHED = "01"  # in /proc/net/tcp


def test_d15_a_rank_is_killed_and_two_nodes_without_names_restart_in_one_cycle_and_end_well(tmp_path: Path):
    with cluster_job(tmp_path, 2, "2") as job:
        for node in job.lab.nodes.values():
            node.lose_names()
        job.start_leader()
        job.start(2)
        job.until_steps(0, nodes={1, 2})
        job.order(1, "kill")
        job.until_steps(1, nodes={1, 2})
        killed_s = min(each.ended_s for each in job.lives(0))
        assert min(each.began_s for each in job.lives(1)) - killed_s < DNS_TIMEOUT_S
        job.let_end()
        assert job.codes(1, 2) == {1: 0, 2: 0}
        assert job.wrong() == []
        assert job.cycles() == {0, 1}


def test_d1_d2_d4_nodes_that_are_cut_off_in_one_or_both_directions_are_replaced_and_come_back_as_spares(tmp_path: Path):
    with cluster_job(tmp_path, 7, "4:7") as job:
        nodes = job.lab.nodes
        job.start_leader()
        for number in (2, 3, 4):
            job.start(number)
        job.until_steps(0, nodes={1, 2, 3, 4})
        for number in (5, 6, 7):
            job.start(number)
        nodes[2].unplug()
        nodes[1].lose_to(nodes[3])  # node 3 is deaf
        nodes[4].lose_to(nodes[1])  # node 4 is not heard
        cut_s = time.monotonic()
        job.until_steps(1, nodes={1, 5, 6, 7})
        assert 4 < min(each.began_s for each in job.lives(1)) - cut_s < 8
        nodes[2].plug_in()
        nodes[1].reach_again(nodes[3])
        nodes[4].reach_again(nodes[1])
        for number in (2, 3, 4):
            job.until(lambda number=number: f"node{number} comes back" in job.output(1), "the return of those cut off")
        assert "restarts used 2" not in job.output(1)  # one fault, one restart
        job.order(0, "kill")
        job.until_steps(2, nodes={1, 2, 3, 4})
        job.let_end()
        assert job.codes(*range(1, 8)) == dict.fromkeys(range(1, 8), 0)
        assert job.wrong() == []
        assert job.cycles() == {0, 1, 2}
        assert not [number for number in range(1, 8) if "failed" in job.output(number)]


def test_d5_d6_slow_links_and_short_losses_cost_nothing(tmp_path: Path):
    with cluster_job(tmp_path, 3, "3") as job:
        leader = job.start_leader()
        with slow_link(job.lab, job.lab.nodes[1], PORT, seed=SEED) as link:
            job.start(2, endpoint=link.endpoint)
            job.start(3)
            job.until_steps(0, nodes={1, 2, 3})
            job.lab.nodes[2].lose_to(job.lab.nodes[3])
            job.lab.nodes[3].lose_to(job.lab.nodes[2])
            link.say("delay 0 0.1")
            job.lab.nodes[3].unplug()
            link.say(f"stall {FLAP_S}")
            time.sleep(FLAP_S)  # the duration of the fault
            job.lab.nodes[3].plug_in()
            link.say("cut")
            steps = job.steps_saved()
            job.until(lambda: job.steps_saved() > steps + 100, "more steps")
            assert leader.poll() is None
            job.let_end()
            assert job.codes(1, 2, 3) == {1: 0, 2: 0, 3: 0}
        assert job.wrong() == []
        assert job.cycles() == {0}


def test_d5_a_collective_of_two_nodes_that_do_not_reach_each_other_is_found_as_a_hang(tmp_path: Path):
    """Both reach the leader, so no node is lost."""
    (tmp_path / "ring").touch()
    with cluster_job(tmp_path, 3, "3", "--ft-rank-heartbeat-timeout", "2") as job:
        job.start_leader()
        job.start(2)
        job.start(3)
        job.until_steps(0, nodes={1, 2, 3})
        job.lab.nodes[2].lose_to(job.lab.nodes[3])
        job.lab.nodes[3].lose_to(job.lab.nodes[2])
        job.until(lambda: any(job.has_told(number, "hang_detected", 0) for number in (1, 2, 3)), "the hang")
        job.lab.nodes[2].reach_again(job.lab.nodes[3])
        job.lab.nodes[3].reach_again(job.lab.nodes[2])
        job.until_steps(1, nodes={1, 2, 3})
        job.let_end()
        assert job.codes(1, 2, 3) == {1: 0, 2: 0, 3: 0}
        assert job.wrong() == []
        assert job.cycles() == {0, 1}


def test_d16_a_node_to_which_no_large_packet_gets_takes_part_all_the_same(tmp_path: Path):
    """The rules of the job, with which it joins, are too large for one small packet."""
    with cluster_job(tmp_path, 2, "2", "--ft-rank-section-timeouts", MANY_SECTIONS) as job:
        job.conf = f",join_timeout={2 * FIRST_ATTEMPT_S}"
        job.lab.lose_large(2)
        job.start_leader()
        job.start(2)
        job.until_steps(0, nodes={1, 2})
        job.order(1, "kill")
        job.until_steps(1, nodes={1, 2})
        job.let_end()
        assert job.codes(1, 2) == {1: 0, 2: 0}
        assert job.wrong() == []
        assert job.cycles() == {0, 1}


def test_d3_a_leader_that_stays_cut_off_ends_the_job_with_one_verdict(tmp_path: Path):
    with cluster_job(tmp_path, 3, "3", "--workers-stop-timeout", "2") as job:
        job.conf = ",join_timeout=8"  # for so long each side waits for the other
        job.start_leader()
        job.start(2)
        job.start(3)
        job.until_steps(0, nodes={1, 2, 3})
        job.lab.nodes[1].unplug()
        assert job.codes(1, 2, 3) == {1: 1, 2: 1, 3: 1}
        for number in (2, 3):
            assert "the leader at 10.77.0.1:29400 is lost" in job.output(number)
        assert job.wrong() == []


def test_d3_a_leader_that_is_cut_off_for_a_while_goes_on_with_its_nodes(tmp_path: Path):
    with cluster_job(tmp_path, 3, "3") as job:
        leader = job.start_leader()
        job.start(2)
        job.start(3)
        job.until_steps(0, nodes={1, 2, 3})
        job.lab.nodes[1].unplug()
        job.until(lambda: job.has_stopped(2, 0) and job.has_stopped(3, 0), "the end of the ranks beyond the cut")
        job.lab.nodes[1].plug_in()
        job.until_steps(1, nodes={1, 2, 3})
        leader.signal(signal.SIGSTOP)
        job.until(lambda: job.has_stopped(2, 1) and job.has_stopped(3, 1), "the end of the ranks without their leader")
        leader.signal(signal.SIGCONT)
        job.until_steps(2, nodes={1, 2, 3})
        job.let_end()
        assert job.codes(1, 2, 3) == {1: 0, 2: 0, 3: 0}
        assert job.wrong() == []
        assert "restarts used 3" not in job.output(1)


def test_b3_a_supervisor_that_is_stopped_for_long_is_replaced_and_its_ranks_are_not_left_running(tmp_path: Path):
    with cluster_job(tmp_path, 3, "2:3") as job:
        job.start_leader()
        second = job.start(2)
        job.until_steps(0, nodes={1, 2})
        job.start(3)
        second.signal(signal.SIGSTOP)
        job.until_steps(1, nodes={1, 3})
        second.signal(signal.SIGCONT)
        job.until(lambda: "node2 comes back" in job.output(1), "the return of the node")
        job.let_end()
        assert job.codes(1, 2, 3) == {1: 0, 2: 0, 3: 0}
        assert job.wrong() == []


@pytest.mark.soak
def test_d11_a_relay_loses_its_power_and_the_nodes_behind_it_go_on(tmp_path: Path):
    """The leader takes two connections. The first two nodes become relays, and the others use them."""
    with cluster_job(tmp_path, 6, "5:6") as job:
        job.conf = ",fan_out=2"
        job.start_leader()
        for number in (2, 3):
            job.start(number)
        job.until(lambda: connections(job) == {2: 2, 3: 2}, "two relays")
        for number in (4, 5, 6):
            job.start(number)
        job.until_steps(0, nodes={1, 2, 3, 4, 5})
        job.until(lambda: "6 of 6 nodes" in job.output(1) or "node6" in job.output(1), "the spare")
        assert connections(job) == {2: 2, 3: 2}
        job.lab.nodes[2].lose_power()
        job.until_steps(1, nodes={1, 3, 4, 5, 6}, steps=30)
        job.let_end()
        assert job.codes(1, 3, 4, 5, 6) == dict.fromkeys((1, 3, 4, 5, 6), 0)
        assert job.wrong() == []
        assert job.cycles() == {0, 1}
        assert "restarts used 1 of 3" in job.output(1)


def connections(job: ClusterJob) -> dict[int, int]:
    """Returns how many connections each node has to the leader."""
    table = Path(f"/proc/{job.lab.nodes[1].init_pid}/net/tcp").read_text().splitlines()[1:]
    lines = [line.split()[1:4] for line in table]
    peers = [peer for own, peer, state in lines if own.endswith(f":{PORT:04X}") and state == ESTABLISHED]
    return dict(Counter(int(peer[:2], 16) for peer in peers))  # the last byte of the address comes first
