"""How much does an event matter to people, and what does its sentence add to the one before it?"""

from __future__ import annotations

from supervisor.core.event_kinds import KINDS, Weight

__all__ = ["CAUSES", "ENDS", "SETTLED", "Weight", "addition", "told_after", "weight"]

# Events that lead to restarts, besides all faults.
CAUSES = frozenset({"restart_requested", "hang_detected", "node_lost"})
SETTLED = frozenset({"hang_ended", "fault_tolerated", "restart_refused"})  # faults after which the workers continue
ENDS = frozenset({"job_succeeded", "job_failed", "job_stopped"})


def addition(reason: str, before: str) -> str:
    """Returns what a sentence adds to the one shown just before it: "x failed; restarting" after "x failed"."""
    return reason.removeprefix(f"{before}; ") if before else reason


def told_after(reason: str, before: str, *, is_loss: bool) -> str:
    """Returns the line for people who have just read `before`. `is_loss`: the job has failed for good.

    It is printed after the program's name, so "holdfast stop by kim" is told without it.
    """
    added = addition(reason, before)
    return f"the job ends: {added}" if is_loss and added != reason else added.removeprefix("holdfast ")


def weight(kind: str) -> Weight:
    """Returns the weight of events of that kind. An unknown kind counts as news."""
    known = KINDS.get(kind)
    return known.weight if known else Weight.NEWS
