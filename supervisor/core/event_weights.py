"""How much does an event matter to people, and what does its sentence add to the one before it?"""

from __future__ import annotations

from supervisor.core.event_kinds import KINDS, Weight

__all__ = ["CAUSES", "ENDS", "SETTLED", "Weight", "addition", "weight"]

# What restarts lead from, beside all that are faults.
CAUSES = frozenset({"restart_requested", "hang_detected", "node_lost"})
SETTLED = frozenset({"hang_ended", "fault_tolerated", "restart_refused"})  # a fault after which the workers run on
ENDS = frozenset({"job_succeeded", "job_failed", "job_stopped"})


def addition(reason: str, before: str) -> str:
    """What a sentence adds to the one that was told just before it: "x failed; restarting" after "x failed"."""
    return reason.removeprefix(f"{before}; ") if before else reason


def weight(kind: str) -> Weight:
    """Of an event of that kind. A kind that is not known here is news."""
    known = KINDS.get(kind)
    return known.weight if known else Weight.NEWS
