"""Which records of cycles follow from the leader's orders?"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from supervisor.config import JobSpec
from supervisor.config.job_logs import JobLogs
from supervisor.core.cluster.messages import Event as Report
from supervisor.core.facts import Assignment, JobState, Verdict
from supervisor.core.ledger import Ledger
from supervisor.core.orders import Conclude, JoinAgain, Order, StartCycle, WindDown
from supervisor.engine.cycle_records import RecordedPeers
from supervisor.engine.job_record import JobRecord, RecordedCycle
from supervisor.engine.loop import Engine
from supervisor.engine.recovery import record_text
from supervisor.ports.reports import CycleInfo
from tests.engine.world import SetClock


class Nodes:
    """Peers that keep what they get."""

    def __init__(self, orders: list[Order]) -> None:
        self._orders = orders

    def leads(self, job_id: str) -> bool:
        return job_id == "j"

    def send(self, node: str, job_id: str, order: Order) -> None:
        del node, job_id
        self._orders.append(order)

    def report(self, job_id: str, report: Report) -> None:
        raise NotImplementedError(f"{job_id} {report}")

    def record(self, job_id: str, ledger: Ledger) -> None:
        raise NotImplementedError(f"{job_id} {ledger}")


class Leader:
    """Peers that are recorded, and their records."""

    def __init__(self, environ: Mapping[str, str], *, folder: str = "/c") -> None:
        self.clock = SetClock()
        engine = Engine(clock=self.clock, node_name="n1", jitter=lambda: 0.0)
        spec = JobSpec("j", ("t.py",), local_world_size=2, logs=JobLogs("/l/t.log", "", folder))
        self.job = JobRecord(spec, environ, 5, "/logs")
        jobs = {"j": self.job}
        self.kept: list[tuple[str, CycleInfo]] = []
        self.passed_on: list[Order] = []
        self.peers = RecordedPeers(
            Nodes(self.passed_on), jobs, engine, self.clock, lambda where, info: self.kept.append((where, info))
        )

    def start(self, cycle: int, *nodes: str, is_running: bool = False) -> None:
        for number, name in enumerate(nodes):
            part = Assignment(cycle, number, len(nodes), 2 * len(nodes), first_rank=2 * number)
            self.send(StartCycle(part, "why", is_running=is_running), name)

    def send(self, order: Order, node: str = "n1") -> None:
        self.peers.send(node, "j", order)

    @property
    def last(self) -> CycleInfo:
        return self.kept[-1][1]


def test_a_cycle_is_recorded_once_all_its_nodes_have_their_part() -> None:
    leader = Leader({})
    leader.start(0, "n2", "n10", "n1")
    ((folder, info),) = leader.kept
    assert folder == "/c"
    assert info == CycleInfo(
        "j", 0, 0, 100_000_000_000, None, "/l/t_cycle0.log", "n[1-2],n10", "", "4-5,0-1,2-3", generation=0
    )


def test_the_next_cycle_and_the_end_of_the_job_give_a_cycle_its_end() -> None:
    leader = Leader({})
    leader.start(0, "n1")
    leader.clock.at_s = 130.0
    leader.send(JoinAgain(1, "a rank has failed"))
    leader.send(JoinAgain(1, "a rank has failed"))
    assert (leader.last.cycle, leader.last.ended_at_ns, leader.last.generation) == (0, 130_000_000_000, 1)
    leader.start(1, "n1")
    assert (leader.last.cycle, leader.last.started_at_ns, leader.last.ended_at_ns) == (1, 130_000_000_000, None)
    leader.send(WindDown("all ranks exited"))
    leader.send(Conclude(Verdict(JobState.SUCCEEDED, 0, "all ranks exited")))
    assert (leader.last.cycle, leader.last.ended_at_ns, leader.last.generation) == (1, 130_000_000_000, 1)
    assert len(leader.kept) == 4


def test_a_node_that_takes_the_place_of_another_is_in_the_next_generation() -> None:
    leader = Leader({})
    leader.start(0, "n1", "n2")
    leader.send(StartCycle(Assignment(0, 1, 2, 4, first_rank=2), "n2 is lost", is_running=True), "n3")
    assert (leader.last.active_nodes, leader.last.active_ranks, leader.last.generation) == ("n[1,3]", "0-1,2-3", 1)


def test_a_supervisor_that_comes_back_writes_the_end_of_the_cycle_that_the_one_before_it_has_begun() -> None:
    before = Leader({})
    before.start(0, "n1", "n2")
    kept = record_text.read(record_text.write(before.job.recorded_cycle))
    assert isinstance(kept, RecordedCycle)
    leader = Leader({})
    leader.job.recorded_cycle = kept
    leader.clock.at_s = 140.0
    leader.send(JoinAgain(1, "a rank has failed"))
    again, end = (info for _, info in leader.kept)
    assert again == before.last  # it may not have reached the disk
    assert (end.cycle, end.active_nodes, end.generation) == (0, "n[1-2]", 1)
    assert (end.started_at_ns, end.ended_at_ns) == (again.started_at_ns, 140_000_000_000)


def test_the_scheduler_says_what_the_job_is_called_and_how_often_it_was_started() -> None:
    leader = Leader({"SLURM_JOB_ID": "12", "SLURM_ARRAY_JOB_ID": "11", "SLURM_RESTART_COUNT": "3"})
    leader.start(0, "n1")
    assert (leader.last.job_id, leader.last.attempt) == ("11", 3)


def test_orders_reach_the_real_peers_and_a_job_that_does_not_ask_is_not_recorded(tmp_path: Path) -> None:
    leader = Leader({}, folder="")
    leader.start(0, "n1")
    assert leader.kept == []
    assert len(leader.passed_on) == 1
    assert leader.peers.leads("j")


def test_ten_thousand_parts_are_recorded_without_looking_at_all_of_them_for_each() -> None:
    leader = Leader({})
    names = [f"n{number}" for number in range(10_000)]
    before_s = time.process_time()
    leader.start(0, *names)
    assert time.process_time() - before_s < 5.0  # looking at all of them for each takes half a minute
    assert leader.last.active_nodes == "n[0-9],n[10-99],n[100-999],n[1000-9999]"
