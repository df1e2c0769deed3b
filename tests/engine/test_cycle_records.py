"""Which records of cycles follow from what the leader's coordinator announces?"""

from __future__ import annotations

import time
from collections.abc import Mapping

from supervisor.config import JobSpec
from supervisor.config.job_logs import JobLogs
from supervisor.core.announcements import Announcement, CycleBegan, CycleEnded, JobEnded, LeadChanged, PartsChanged
from supervisor.core.facts import JobState, Verdict
from supervisor.engine.cycle_records import CycleRecords
from supervisor.engine.job_record import JobRecord, RecordedCycle
from supervisor.engine.recovery import record_text
from supervisor.ports.reports import CycleInfo
from tests.engine.world import SetClock


class Leader:
    """What a leader announces of a job, and what is recorded of it."""

    def __init__(self, environ: Mapping[str, str], *, folder: str = "/c") -> None:
        self.clock = SetClock()
        spec = JobSpec("j", ("t.py",), local_world_size=2, logs=JobLogs("/l/t.log", "", folder))
        self.job = JobRecord(spec, environ, 5, "/logs")
        self.kept: list[tuple[str, CycleInfo]] = []
        self.records = CycleRecords(self.clock, lambda where, info: self.kept.append((where, info)))

    def announce(self, *announcements: Announcement) -> None:
        for each in announcements:
            self.records.announced(self.job, each)

    @property
    def last(self) -> CycleInfo:
        return self.kept[-1][1]


def test_a_cycle_is_recorded_with_its_nodes_and_those_that_stand_by() -> None:
    leader = Leader({})
    leader.announce(LeadChanged(leads=True), CycleBegan(0, ("n2", "n10", "n1"), standby=("n3",)))
    ((folder, info),) = leader.kept
    assert folder == "/c"
    assert info == CycleInfo(
        "j",
        0,
        0,
        100_000_000_000,
        None,
        "/l/t_cycle0.log",
        "n[1-2],n10",
        "n3",
        "4-5,0-1,2-3",
        generation=0,
        stem="cycle_info.j",
    )


def test_a_cycle_gets_its_end_once() -> None:
    leader = Leader({})
    leader.announce(CycleBegan(0, ("n1",)))
    leader.clock.at_s = 130.0
    leader.announce(CycleEnded(0, ("n1",)))
    assert (leader.last.cycle, leader.last.ended_at_ns, leader.last.generation) == (0, 130_000_000_000, 1)
    leader.announce(CycleBegan(1, ("n1",)))
    assert (leader.last.cycle, leader.last.started_at_ns, leader.last.ended_at_ns) == (1, 130_000_000_000, None)
    verdict = Verdict(JobState.SUCCEEDED, 0, "all ranks exited")
    leader.announce(CycleEnded(1, ("n1",)), CycleEnded(1, ("n1",)), JobEnded(verdict))
    assert (leader.last.cycle, leader.last.ended_at_ns, leader.last.generation) == (1, 130_000_000_000, 1)
    assert len(leader.kept) == 4


def test_a_node_that_takes_the_place_of_another_is_in_the_next_generation() -> None:
    leader = Leader({})
    leader.announce(CycleBegan(0, ("n1", "n2"), standby=("n3",)), PartsChanged(0, ("n1", "n3")))
    assert (leader.last.active_nodes, leader.last.active_ranks, leader.last.generation) == ("n[1,3]", "0-1,2-3", 1)
    assert leader.last.standby_nodes == ""


def test_a_supervisor_that_comes_back_writes_the_end_of_the_cycle_that_the_one_before_it_has_begun() -> None:
    before = Leader({})
    before.announce(CycleBegan(0, ("n1", "n2")))
    kept = record_text.read(record_text.write(before.job.recorded_cycle))
    assert isinstance(kept, RecordedCycle)
    leader = Leader({})
    leader.job.recorded_cycle = kept
    leader.clock.at_s = 140.0
    leader.announce(LeadChanged(leads=True, cycle=0), CycleEnded(0, ("n1", "n2")))
    again, end = (info for _, info in leader.kept)
    assert again == before.last  # it may not have reached the disk
    assert (end.cycle, end.active_nodes, end.generation) == (0, "n[1-2]", 1)
    assert (end.started_at_ns, end.ended_at_ns) == (again.started_at_ns, 140_000_000_000)


def test_the_records_of_another_leader_are_left_alone() -> None:
    leader = Leader({})
    leader.announce(CycleBegan(0, ("n1", "n2")), LeadChanged(leads=False))
    leader.announce(LeadChanged(leads=True, cycle=3), CycleEnded(3, ("n1",)), CycleBegan(4, ("n1", "n2")))
    assert [(each.cycle, each.ended_at_ns) for _, each in leader.kept] == [(0, None), (4, None)]


def test_a_record_that_is_older_than_what_another_leader_has_ordered_is_not_written_again() -> None:
    leader = Leader({})
    leader.announce(CycleBegan(0, ("n1", "n2")))
    leader.announce(LeadChanged(leads=True, cycle=3))
    assert len(leader.kept) == 1


def test_the_scheduler_says_what_the_job_is_called_and_how_often_it_was_started() -> None:
    leader = Leader({"SLURM_JOB_ID": "12", "SLURM_ARRAY_JOB_ID": "11", "SLURM_RESTART_COUNT": "3"})
    leader.announce(CycleBegan(0, ("n1",)))
    assert (leader.last.job_id, leader.last.attempt) == ("11", 3)


def test_a_job_that_does_not_ask_is_not_recorded() -> None:
    leader = Leader({}, folder="")
    leader.announce(CycleBegan(0, ("n1",)), CycleEnded(0, ("n1",)))
    assert leader.kept == []


def test_ten_thousand_parts_are_recorded_without_looking_at_all_of_them_for_each() -> None:
    leader = Leader({})
    before_s = time.process_time()
    leader.announce(CycleBegan(0, tuple(f"n{number}" for number in range(10_000))))
    assert time.process_time() - before_s < 5.0  # looking at all of them for each takes half a minute
    assert leader.last.active_nodes == "n[0-9],n[10-99],n[100-999],n[1000-9999]"
