"""What does the record of one run keep from one cycle, and one spawner, to the next?"""

from msgspec.structs import replace

from supervisor.config import JobSpec
from supervisor.core.facts import Assignment, JobEvent
from supervisor.engine.job_record import CycleRecord, JobRecord
from supervisor.ports.reports import RecordedEvent
from tests.engine.world import ObedientSpawner


def record() -> JobRecord:
    return JobRecord(JobSpec("j", ("t.py", "--token=s3cret")), {"A": "secret"}, 5, "/logs/j/run")


def cycle(number: int, *, first_rank: int = 0) -> CycleRecord:
    return CycleRecord(Assignment(number, first_rank=first_rank), 7, "/tokens/j", "h", 1)


def test_before_the_first_cycle_nothing_runs() -> None:
    job = record()
    assert (job.cycle, job.first_rank, job.runs(0)) == (0, 0, False)


def test_a_new_cycle_begins_without_the_processes_of_the_last() -> None:
    job = record()
    job.begin_cycle(cycle(0))
    job.pids[0] = 1000
    job.begin_cycle(cycle(1, first_rank=4))
    assert job.pids == {}
    assert (job.cycle, job.first_rank, job.runs(0), job.runs(1)) == (1, 4, False, True)


def test_a_new_spawner_begins_without_what_was_said_of_the_last() -> None:
    job = record()
    job.begin_spawner(1)
    job.spawner, job.spawner_doom = ObedientSpawner(lambda _: None), "it was too slow"
    job.begin_spawner(2)
    assert (job.spawner, job.spawner_number, job.spawner_doom) == (None, 2, "")


def test_events_are_numbered_without_gaps() -> None:
    job = record()
    events = [job.record(JobEvent(kind, "because"), node="n0", at_ns=9) for kind in ("a", "b", "c")]
    assert [(each.sequence, each.kind, each.job_id, each.node) for each in events] == [
        (1, "a", "j", "n0"), (2, "b", "j", "n0"), (3, "c", "j", "n0"),
    ]  # fmt: skip


def test_what_a_coordinator_has_counted_stays_after_it() -> None:
    job = record()
    job.show(restarts_used=2, iteration=5)
    assert (job.shown.restarts_used, job.shown.iteration) == (2, 5)
    before = job.shown
    job.show(restarts_used=2, iteration=5)
    assert job.shown is before


def test_secrets_are_forgotten_and_never_shown() -> None:
    job = record()
    assert job.shown_command == ("t.py", "--token=***")
    job.end(9)
    assert (job.environment, job.ended_at_ns) == ({}, 9)


def test_what_was_recorded_before_is_recognised_once_by_where_it_happened() -> None:
    job = record()
    own = RecordedEvent("j", 1, 5, "workers_started", "all run", node="n0")
    other = RecordedEvent("j", 2, 6, "workers_started", "all run", node="n1", details=(("arrived_at_ns", "7"),))
    job.recorded_before = [own, other]
    again = RecordedEvent("j", 9, 6, "workers_started", "all run", node="n1")
    assert not job.was_taken_in(replace(again, at_ns=7))
    assert job.was_taken_in(again)
    assert not job.was_taken_in(again)
    assert not job.was_recorded(JobEvent("workers_started", "all run"), node="n1")
    assert job.was_recorded(JobEvent("workers_started", "all run"), node="n0")
    assert job.recorded_before == []


def test_a_restart_that_is_decided_again_for_another_reason_is_the_one_that_was_recorded() -> None:
    """The previous supervisor had stacks of the hung rank; it was killed before its decision was kept."""
    job = record()
    before = RecordedEvent(
        "j", 7, 5, "restart_decided", "rank 1 is in load_batch; restarting at once", cycle=5, node="n0"
    )
    job.recorded_before = [before]
    assert not job.was_recorded(JobEvent("restart_decided", "rank 1 sent no heartbeat; restarting", 6), node="n0")
    assert job.was_recorded(JobEvent("restart_decided", "rank 1 sent no heartbeat; restarting", 5), node="n0")
    assert not job.was_recorded(JobEvent("restart_decided", "rank 1 sent no heartbeat; restarting", 5), node="n0")
