"""Which event follows from each message of a spawner, and what does the record know afterwards?"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from holdfast_wire import spawner_link as link

from supervisor.config import JobSpec
from supervisor.core.cluster import cluster_messages, coordinator, coordinator_states
from supervisor.core.facts import Assignment, Cause, JobRules, RestartRules
from supervisor.core.node import node_messages
from supervisor.core.root_cause import root_cause
from supervisor.core.worker_messages import Worker
from supervisor.engine.event_publisher import EventPublisher
from supervisor.engine.job_record import CycleRecord, JobRecord
from supervisor.engine.spawner_reports import SpawnerReports
from supervisor.engine.unsent_events import UnsentEvents
from tests.engine.world import FakeJournal, FakeWorkers, SetClock


class JobService:
    """A job whose cycle 2 runs from rank 4 on, and its third spawner's reports."""

    def __init__(self, clock: SetClock | None = None) -> None:
        self.job = JobRecord(JobSpec("j", ("t.py",), local_world_size=2), {}, 5, "/logs")
        self.job.begin_cycle(CycleRecord(Assignment(2, first_rank=4), 7, "/tokens/j", "h", 1))
        self.workers, self.journal = FakeWorkers(), FakeJournal()
        publisher = EventPublisher(
            journal=self.journal, clock=clock or SetClock(), node_name="n0", unsent=UnsentEvents(), unkept=None
        )
        self.reports = SpawnerReports(self.job, 3, workers=self.workers, publisher=publisher, clock=clock or SetClock())

    def read(self, message: link.FromSpawner) -> list[node_messages.Event]:
        return list(self.reports.read(message))


def exited(cycle: int, local_rank: int, code: int | None, signal: int | None = None, *, pid: int = 1000) -> link.Exited:
    return link.Exited(cycle, local_rank, pid, code, signal, False, True, 2_000_000_000)


@pytest.mark.parametrize(("method", "starts_workers"), [("fork", True), ("exec", True), ("adopt", False)])
def test_a_spawner_is_ready_under_its_own_number(method: str, starts_workers: bool) -> None:
    job_service = JobService()
    ready = link.Ready(77, 1, "3.11", method, "it is a test", (), "")
    assert job_service.read(ready) == [node_messages.SpawnerReady("j", 3, starts_workers=starts_workers)]
    assert job_service.job.spawner_reason == "it is a test"
    assert job_service.journal.kinds() == ["spawner_ready"]


def test_stores_come_and_go() -> None:
    job_service = JobService()
    assert job_service.read(link.StoreReady(2, "h", 9)) == [node_messages.StoreReady("j", 2, "h", 9)]
    assert job_service.read(link.StoreFailed(3, "no port")) == [node_messages.StoreFailed("j", 3, "no port")]
    assert job_service.read(link.StoreExited(2, 78, "SIGKILL")) == [node_messages.StoreFailed("j", 2, "SIGKILL")]


def test_workers_of_the_running_cycle_have_pids_and_others_do_not() -> None:
    job_service = JobService()
    for cycle in (2, 1):
        told = job_service.read(link.Spawned(cycle, 1, 1000 + cycle, 0, "fork"))
        assert told == [node_messages.WorkerSpawned("j", cycle, 1, 1000 + cycle)]
    assert job_service.job.pids == {1: 1002}
    assert job_service.workers.expected == [(2, 1, 1002), (1, 1, 1001)]
    job_service.read(exited(1, 1, 0))
    assert job_service.job.pids == {1: 1002}
    job_service.read(exited(2, 1, 0, pid=1002))
    assert job_service.job.pids == {}


def test_an_exit_of_a_process_that_another_has_replaced_changes_nothing() -> None:
    """As in a wrapped call: the rank is the same, and so is the cycle."""
    job_service = JobService()
    for pid in (1000, 1001):
        job_service.read(link.Spawned(2, 1, pid, 0, "fork"))
    assert job_service.read(exited(2, 1, None, 9, pid=1000)) == []
    assert job_service.job.pids == {1: 1001}
    assert len(job_service.read(exited(2, 1, None, 9, pid=1001))) == 1


def test_what_was_not_started_says_why() -> None:
    told = JobService().read(link.SpawnFailed(2, 1, "cannot start x: not found; check PATH", 127))
    assert told == [node_messages.SpawnFailed("j", 2, 1, "cannot start x: not found; check PATH", 127)]


def test_an_exit_is_told_by_global_rank() -> None:
    (event,) = JobService().read(exited(2, 1, None, 9))
    assert isinstance(event, node_messages.WorkerExited)
    told = event.exit
    assert (event.cycle, told.local_rank, told.rank, told.signal, told.at_s) == (2, 1, 5, 9, 2.0)
    assert told.out_of_memory
    assert not told.core_dumped


def test_a_rank_that_saves_and_exits_0_for_want_of_a_supervisor_has_not_succeeded() -> None:
    (event,) = JobService().read(exited(2, 1, 0)._replace(unattended_s=60.0))
    assert isinstance(event, node_messages.WorkerExited)
    assert not event.exit.succeeded
    late = "no supervisor came back within --supervisor-return-timeout (60 s)"
    assert event.exit.predicate == f"exited with code 0: {late}"


def test_the_longest_silence_of_a_cycle_is_told_once_its_processes_are_gone() -> None:
    job_service = JobService()
    for local_rank, longest_s in ((0, 1.5), (1, 8.1)):
        job_service.read(exited(2, local_rank, 0)._replace(silence_longest_s=longest_s))
    job_service.read(link.Emptied(2, 0, ()))
    assert job_service.journal.kinds() == [], "the job has no limit"
    job_service.job.spec = msgspec.structs.replace(job_service.job.spec, auto_heartbeat_s=10.0)
    for local_rank, longest_s in ((0, 1.5), (1, 8.1)):
        job_service.read(exited(2, local_rank, 0)._replace(silence_longest_s=longest_s))
    for _ in range(2):
        job_service.read(link.Emptied(2, 0, ()))
    (told,) = job_service.journal.events
    assert (told.kind, told.cycle, told.rank) == ("main_threads_measured", 2, 5)
    assert told.reason == (
        "the longest time without Python code was 8.1 s, of rank 5 (limit 10 s); 5 times that is 40 s"
    )


def test_a_first_output_is_told_with_its_moment() -> None:
    told = JobService().read(link.FirstOutput(2, 1, 2_000_000_000))
    assert told == [node_messages.RankPrinted("j", 2, 1, 2.0)]


def test_a_stop_and_its_end_are_told_with_their_moments() -> None:
    told = JobService().read(link.RankStopped(2, 1, 1001, 19, 2_000_000_000))
    assert told == [node_messages.RankStopped("j", 2, 1, 1001, 19, 2.0)]
    told = JobService().read(link.RankContinued(2, 1, 3_000_000_000))
    assert told == [node_messages.RankContinued("j", 2, 1, 3.0)]


def test_a_cycle_that_was_emptied_names_what_is_stuck() -> None:
    assert JobService().read(link.Emptied(2, 1, (1001,))) == [node_messages.WorkersEmptied("j", 2, (1001,))]


def test_what_is_only_for_people_moves_no_machine(tmp_path: Path) -> None:
    job_service = JobService()
    assert job_service.read(link.OutputDropped(1, 4096, "the pipe was full", 2)) == []
    assert job_service.read(link.OutputDropped(-1, 7, "cannot write /l/t_cycle0.log: full", 2)) == []
    assert job_service.read(link.Learned(("torch",), (), "it saves 2 s")) == []
    assert job_service.read(link.Ended()) == []
    assert job_service.journal.kinds() == ["output_dropped", "output_dropped", "preload_learned"]
    of_rank, of_log = job_service.journal.events[:2]
    assert (of_rank.rank, of_rank.reason) == (5, "4096 bytes of output of rank 5 were not kept: the pipe was full")
    assert of_log.rank is None
    assert "7 bytes of the log of the cycle were not kept: cannot write" in of_log.reason


@pytest.mark.parametrize(("cycle", "told"), [(1, 1), (-1, 2)], ids=["an earlier cycle", "a spawner that names none"])
def test_output_that_was_lost_in_an_earlier_cycle_is_not_blamed_on_a_rank_of_this_one(cycle: int, told: int) -> None:
    """The node may have had other ranks then."""
    job_service = JobService()
    job_service.read(link.OutputDropped(1, 4096, "the pipe was full", cycle))
    (event,) = job_service.journal.events
    assert (event.cycle, event.rank) == (told, None)
    assert event.reason == "4096 bytes of output of a rank were not kept: the pipe was full"


def test_the_complete_log_of_a_cycle_is_an_event_with_its_path_and_what_it_lacks() -> None:
    job_service = JobService()
    assert job_service.read(link.CycleLogClosed(2, "/l/t_cycle2.log", 4096, 0, 0, "")) == []
    assert job_service.read(link.CycleLogClosed(3, "/l/t_cycle3.log", 10, 5, 99, "the disk is full")) == []
    whole, torn = job_service.journal.events
    assert (whole.kind, whole.cycle, whole.reason) == (
        "cycle_log_closed", 2, "the output of cycle 2 is complete in /l/t_cycle2.log",
    )  # fmt: skip
    assert torn.reason == "the output of cycle 3 is in /l/t_cycle3.log, but 5 lines of it are lost: the disk is full"
    assert dict(torn.details) == {
        "path": "/l/t_cycle3.log", "written_bytes": "10", "lost_lines": "5", "lost_bytes": "99",
    }  # fmt: skip


def test_what_is_slower_than_it_could_be_is_told_once_a_job() -> None:
    job_service = JobService()
    lost = "each worker loads torch itself: it is a test; do something"
    job_service.read(link.Learned((), (), "nothing is loaded ahead", lost))
    job_service.read(link.Ready(77, 1, "3.11", "fork", "it is a test", (), "", lost=lost))
    assert job_service.journal.kinds() == ["preload_learned", "preload_lost", "spawner_ready"]
    assert job_service.journal.events[1].reason == lost


class NodeClock(SetClock):
    """The clocks of one node, of which the wall clock may be wrong."""

    def __init__(self, at_s: float, *, unix_s: float) -> None:
        self.at_s, self.unix_s = at_s, unix_s

    def unix_ns(self) -> int:
        return int(self.unix_s * 1e9)

    def failed(self, local_rank: int, *, written_at_unix_s: float) -> Worker:
        ended = exited(2, local_rank, code=1)._replace(error_at_unix_s=written_at_unix_s)
        (event,) = JobService(self).read(ended)
        assert isinstance(event, node_messages.WorkerExited)
        return Worker(local_rank, event.exit.rank, 1000, event.exit)

    def cause(self, local_rank: int, *, age_s: float) -> Cause:
        """Returns what this node reports of a rank whose error file is as old as that."""
        worker = self.failed(local_rank, written_at_unix_s=self.unix_s - age_s)
        found = root_cause((worker,), local_rank, self.at_s)
        assert found is not None
        return found


@pytest.mark.parametrize("step_s", [5.0, -5.0])
def test_of_two_ranks_the_older_file_wins_although_the_wall_clock_was_set_between_their_exits(step_s: float) -> None:
    clock = NodeClock(100.0, unix_s=1_800_000_000.0)
    raised_at, followed_at = clock.unix_s - 0.5, clock.unix_s - 0.3
    for first, second in (((0, raised_at), (1, followed_at)), ((1, followed_at), (0, raised_at))):
        workers = (clock.failed(first[0], written_at_unix_s=first[1]),)
        clock.unix_s += step_s
        workers += (clock.failed(second[0], written_at_unix_s=second[1]),)
        clock.unix_s -= step_s
        found = root_cause(workers, first[0], clock.at_s)
        assert found is not None
        assert found.sentence.startswith("rank 4 ")


def test_of_two_nodes_whose_clocks_differ_the_one_that_failed_first_is_named() -> None:
    first = NodeClock(100.0, unix_s=1_800_000_000.0).cause(0, age_s=5.0)
    follower = NodeClock(7000.0, unix_s=1_800_000_000.0 - 60.0).cause(1, age_s=1.0)
    coordinated = coordinator.initial_state("j")
    rules = JobRules("j", 1, restart=RestartRules(max_restarts=0, min_nodes=2))
    reports: list[cluster_messages.Event] = [cluster_messages.JobOpened(each, rules) for each in ("a", "b")]
    reports += [cluster_messages.NodeJoined(each, -1) for each in ("a", "b")]
    reports += [
        cluster_messages.NodeFailed("a", 0, first.sentence, first_failure=first.sentence),
        cluster_messages.NodeStopped("a", all_succeeded=False, cause=first),
        cluster_messages.NodeStopped("b", all_succeeded=False, cause=follower),
    ]
    for report in reports:
        coordinated, _ = coordinator.step(coordinated, report, now_s=50.0, jitter=0.0)
    assert isinstance(coordinated.phase, coordinator_states.Ended)
    assert coordinated.phase.verdict.reason == f"{first.sentence}; restarts used 0 of 0"


def test_what_only_a_newer_spawner_says_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    job_service = JobService()
    for kind in ("Rewind", "Rewind", "x\n" * 9000):
        assert job_service.read(link.Unknown(kind)) == []
    assert caplog.messages == ["job j: skipped a message of its spawner, which is newer: 'Rewind'"]
    assert len(job_service.read(link.Spawned(2, 1, 1000, 0, "fork"))) == 1
