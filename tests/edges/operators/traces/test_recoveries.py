"""Are a job's events divided into recoveries, each with its phases?"""

from __future__ import annotations

from supervisor.edges.operators.metrics.event_counters import JOBS_MAX
from supervisor.edges.operators.traces.recoveries import EVENTS_MAX, Recoveries, Recovery
from supervisor.ports.reports import RecordedEvent


def event(kind: str, at_s: int, job_id: str = "j") -> RecordedEvent:
    return RecordedEvent(job_id, 1, at_s * 10**9, kind, f"{kind} happened")


def found(*events: RecordedEvent) -> list[Recovery]:
    recoveries = Recoveries()
    return [recovery for each in events if (recovery := recoveries.take(each)) is not None]


def phases(recovery: Recovery) -> list[tuple[str, int]]:
    return [(name, (ended_ns - began_ns) // 10**9) for name, began_ns, ended_ns in recovery.phases()]


def test_a_restart_of_all_workers():
    (recovery,) = found(
        event("workers_started", 1),
        event("worker_failed", 10),
        event("workers_stopping", 11),
        event("restart_decided", 11),
        event("workers_stopped", 13),
        event("cycle_started", 16),
        event("running_again", 20),
        event("worker_started", 21),
    )
    assert (recovery.cause.kind, recovery.end.kind, recovery.has_succeeded) == ("worker_failed", "running_again", True)
    assert phases(recovery) == [("decide", 1), ("stop", 2), ("rendezvous", 3), ("start", 4)]


def test_a_phase_without_an_end_belongs_to_the_next_one():
    (recovery,) = found(event("worker_failed", 1), event("workers_stopped", 3), event("running_again", 7))
    assert phases(recovery) == [("stop", 2), ("start", 4)]


def test_a_restart_inside_the_process():
    (recovery,) = found(event("worker_failed", 1), event("iteration_interrupted", 2), event("iteration_restarted", 5))
    assert phases(recovery) == [("interrupt", 1), ("restart", 3)]


def test_the_fault_is_the_cause_though_the_order_to_stop_was_recorded_before_it():
    (recovery,) = found(event("workers_stopping", 1), event("worker_failed", 1), event("running_again", 2))
    assert recovery.cause.kind == "worker_failed"
    (elsewhere,) = found(event("workers_stopping", 1), event("running_again", 2))
    assert elsewhere.cause.kind == "workers_stopping"


def test_a_recovery_that_ends_with_the_job():
    (recovery,) = found(event("worker_failed", 1), event("workers_stopping", 2), event("job_failed", 4))
    assert not recovery.has_succeeded


def test_the_end_of_a_job_that_ends_well_is_no_recovery():
    assert found(event("workers_stopping", 1), event("workers_stopped", 2), event("job_succeeded", 3)) == []
    assert found(event("worker_failed", 1), event("workers_stopping", 1), event("job_stopped", 3)) == []


def test_what_leads_to_nothing_is_no_recovery():
    assert found(event("hang_detected", 1), event("hang_ended", 2), event("job_succeeded", 3)) == []
    assert found(event("defect_met", 1), event("job_succeeded", 3)) == []
    (recovery,) = found(
        event("defect_met", 1), event("worker_failed", 900), event("workers_stopping", 901), event("running_again", 902)
    )
    assert recovery.cause.kind == "worker_failed"


def test_memory_is_bounded():
    recoveries = Recoveries()
    for number in range(2 * JOBS_MAX):
        recoveries.take(event("worker_failed", 1, f"j{number}"))
    assert len(recoveries._open) == JOBS_MAX  # pyright: ignore[reportPrivateUsage]
    (recovery,) = found(
        event("workers_stopping", 1), *[event("worker_exited", 2)] * 2 * EVENTS_MAX, event("running_again", 9)
    )
    assert len(recovery.events) == EVENTS_MAX + 1
