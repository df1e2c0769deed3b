"""How much does an event matter to people: is it for the files alone, news, a fault, or the end of the job?"""

from __future__ import annotations

import enum


class Weight(enum.IntEnum):
    # A healthy run goes through it too, or something better follows: a rank that was found to be silent may only wait
    # for another, and hang_explained says which one hangs, and where the others stand. It stands in the journal and in
    # the log files.
    ROUTINE = 0
    NEWS = 1
    FAULT = 2
    LOSS = 3  # the job has failed


_ROUTINE = frozenset(
    {
        "job_submitted", "spawner_ready", "cycle_started", "worker_started", "workers_started", "worker_exited",
        "workers_stopping", "workers_stopped", "job_succeeded", "hang_detected", "limits_calculated", "preload_learned",
        "call_entered", "call_committed", "replacement_waits", "rank_lost_in_call", "rank_left_call", "rank_discarded",
        "stacks_collected", "node_checked", "gpu_memory_free", "workers_bound",
        "cycle_log_closed",
    }
)  # fmt: skip
_FAULTS = frozenset(
    {
        "worker_failed", "hang_explained", "spawn_failed", "spawner_lost", "store_failed", "workers_stuck",
        "iteration_interrupted", "replacement_late", "replacement_lost", "call_refused", "call_lost",
        "hard_timeout_reached", "defect_met", "node_unhealthy", "gpu_memory_not_freed", "node_suspect",
    }
)  # fmt: skip
# What restarts lead from, beside all that are faults.
CAUSES = frozenset({"restart_requested", "hang_detected", "node_lost"})
SETTLED = frozenset({"hang_ended", "fault_tolerated", "restart_refused"})  # a fault after which the workers run on
ENDS = frozenset({"job_succeeded", "job_failed", "job_stopped"})


def addition(reason: str, before: str) -> str:
    """What a sentence adds to the one that was told just before it: "x failed; restarting" after "x failed"."""
    return reason.removeprefix(f"{before}; ") if before else reason


def weight(kind: str) -> Weight:
    """Of an event of that kind. A kind that is not known here is news."""
    if kind in _ROUTINE:
        return Weight.ROUTINE
    if kind == "job_failed":
        return Weight.LOSS
    return Weight.FAULT if kind in _FAULTS else Weight.NEWS
