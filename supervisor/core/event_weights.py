"""How much does an event matter to people?"""

from __future__ import annotations

from supervisor.core.event_kinds import KINDS, Weight

__all__ = ["CAUSES", "ENDS", "SETTLED", "Weight", "weight"]

# Events that lead to restarts, besides all faults.
CAUSES = frozenset({"restart_requested", "hang_detected", "node_lost"})
SETTLED = frozenset({"hang_ended", "fault_tolerated", "restart_refused"})  # faults after which the workers continue
ENDS = frozenset({"job_succeeded", "job_failed", "job_stopped"})


def weight(kind: str) -> Weight:
    """Returns the weight of events of that kind. An unknown kind counts as news."""
    known = KINDS.get(kind)
    return known.weight if known else Weight.NEWS
