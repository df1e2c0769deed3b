"""Do the events of a recovery add up to its cause, its phases and its duration?"""

from __future__ import annotations

import logging

import pytest

from supervisor.edges.operators.metrics import event_counters as module
from supervisor.edges.operators.metrics.event_counters import (
    ELSEWHERE,
    INSIDE,
    START,
    STOP,
    WHOLE,
    EventCounterHandler,
    EventCounters,
    Histogram,
)
from supervisor.ports.reports import RecordedEvent

S = 10**9


def event(kind: str, at_s: float, job_id: str = "j") -> RecordedEvent:
    return RecordedEvent(job_id, 1, int(at_s * S), kind, "")


def told(*events: RecordedEvent) -> EventCounters:
    counters = EventCounters()
    for each in events:
        counters.take(each)
    return counters


def sums(counters: EventCounters) -> dict[str, float]:
    return {phase: round(found.sum_s, 6) for phase, found in counters.recoveries.items() if sum(found.counts)}


def test_a_restart_of_all_workers():
    counters = told(
        event("job_submitted", 0),
        event("worker_failed", 10),
        event("worker_failed", 10.01),
        event("workers_stopping", 10.02),
        event("restart_decided", 10.03),
        event("workers_stopped", 10.5),
        event("workers_started", 11.9),
        event("running_again", 12),
    )
    assert counters.restarts == {"worker_failed": 1}
    assert sums(counters) == {STOP: 0.5, START: 1.5, WHOLE: 2.0}
    assert counters.lost_s == 2.0
    assert counters.events["worker_failed"] == 2


def test_the_second_restart_has_a_cause_of_its_own():
    again = [event(kind, at_s) for at_s, kind in ((1, "worker_failed"), (1, "restart_decided"), (2, "running_again"))]
    hang = [event(kind, at_s) for at_s, kind in ((5, "hang_detected"), (5, "restart_decided"), (6, "running_again"))]
    asked = [
        event(kind, at_s) for at_s, kind in ((8, "restart_requested"), (8, "restart_decided"), (9, "running_again"))
    ]
    counters = told(*again, *hang, *asked)
    assert counters.restarts == {"worker_failed": 1, "hang_detected": 1, "restart_requested": 1}
    assert counters.lost_s == 3.0


def test_jobs_recover_side_by_side():
    counters = told(
        event("worker_failed", 1, "a"),
        event("hang_detected", 2, "b"),
        event("restart_decided", 3, "b"),
        event("restart_decided", 4, "a"),
        event("running_again", 5, "a"),
        event("running_again", 7, "b"),
    )
    assert counters.restarts == {"worker_failed": 1, "hang_detected": 1}
    assert sums(counters) == {WHOLE: 9.0}


def test_a_restart_inside_the_process():
    counters = told(event("iteration_interrupted", 1), event("iteration_restarted", 1.25))
    assert counters.restarts == {INSIDE: 1}
    assert sums(counters) == {INSIDE: 0.25}


def test_a_job_that_ends_leaves_nothing_open():
    counters = told(
        event("worker_failed", 1), event("job_failed", 2), event("job_submitted", 3), event("running_again", 4)
    )
    assert sums(counters) == {}
    assert counters.restarts == {}


def test_a_fault_of_another_node_counts_once_there_and_apart_here():
    """The leader learns of it by its own decision, a third node by the order to stop its workers."""
    leader = told(event("restart_decided", 1), event("workers_stopping", 1), event("running_again", 2))
    faulty = told(event("worker_failed", 1), event("workers_stopping", 1), event("running_again", 2))
    third = told(event("workers_stopping", 1.5), event("workers_stopped", 1.75), event("running_again", 2))
    assert (leader.restarts, leader.lost_s) == ({ELSEWHERE: 1}, 1.0)
    assert (faulty.restarts, faulty.lost_s) == ({"worker_failed": 1}, 1.0)
    assert third.restarts == {ELSEWHERE: 1}
    assert sums(third) == {STOP: 0.25, START: 0.25, WHOLE: 0.5}


@pytest.mark.parametrize("settled", ["hang_ended", "fault_tolerated", "restart_refused", "iteration_restarted"])
def test_a_fault_after_which_the_workers_ran_on_is_no_cause_of_a_later_restart(settled: str):
    counters = told(
        event("hang_detected", 1),
        event(settled, 2),
        event("worker_failed", 1000),
        event("restart_decided", 1000),
        event("running_again", 1001),
    )
    assert counters.restarts == {"worker_failed": 1}
    assert counters.lost_s == 1.0


def test_a_fault_that_has_led_to_nothing_is_forgotten():
    counters = told(
        event("defect_met", 1),
        event("worker_failed", 1000),
        event("workers_stopping", 1000),
        event("worker_failed", 1300),
        event("restart_decided", 1300),
        event("running_again", 1301),
    )
    assert counters.restarts == {"worker_failed": 1}
    assert counters.lost_s == 301.0, "one that is being acted on is not forgotten, however long that takes"


@pytest.mark.parametrize("fault", ["hard_timeout_reached", "attribution_unavailable", "leave_refused"])
def test_a_restart_long_after_a_fault_lasts_only_from_its_own_beginning(fault: str):
    """The node that leads settles such a fault, or nobody does, so no event here says that it is over."""
    counters = told(
        event(fault, 1), event("workers_stopping", 1000), event("workers_stopped", 1001), event("running_again", 1002)
    )
    assert counters.restarts == {ELSEWHERE: 1}
    assert sums(counters) == {STOP: 1.0, START: 1.0, WHOLE: 2.0}
    assert counters.lost_s == 2.0


def test_a_recovery_that_takes_long_is_not_forgotten():
    lost = told(event("spawner_lost", 1), event("workers_stopped", 1.5), event("running_again", 301))
    assert (lost.restarts, lost.lost_s) == ({"spawner_lost": 1}, 300.0)
    inside = told(
        event("hard_timeout_reached", 1), event("iteration_interrupted", 1), event("iteration_restarted", 301)
    )
    assert (inside.restarts, inside.lost_s) == ({INSIDE: 1}, 300.0)


def test_the_end_of_a_job_is_no_recovery():
    assert sums(told(event("workers_stopping", 1), event("workers_stopped", 2), event("job_stopped", 3))) == {}


def test_memory_is_bounded():
    counters = told(*(event("worker_failed", 1, f"j{number}") for number in range(2 * module.JOBS_MAX)))
    assert len(counters._open) == module.JOBS_MAX  # pyright: ignore[reportPrivateUsage]


def test_a_bucket_holds_what_is_at_most_its_limit():
    histogram = Histogram()
    for took_s in (0.0, 0.02, 0.021, 3600.0, 3601.0):
        histogram.add(took_s)
    assert (histogram.counts[0], histogram.counts[1], histogram.counts[-2], histogram.counts[-1]) == (2, 1, 1, 1)


def test_recoveries_between_five_minutes_and_an_hour_are_told_apart():
    """A quantile never exceeds the last bound, and above five minutes large models load."""
    histogram = Histogram()
    for minutes in (6, 15, 25, 50):
        histogram.add(minutes * 60.0)
    assert [count for count in histogram.counts if count] == [1, 1, 1, 1]
    assert histogram.counts[-1] == 0


def test_events_come_by_the_log():
    counters = EventCounters()
    logger = logging.Logger("x", logging.DEBUG)
    logger.addHandler(EventCounterHandler(counters))
    logger.debug("routine", extra={"event": event("worker_started", 1)})
    logger.info("no event")
    assert counters.events == {"worker_started": 1}
