"""Which term does a lead get, so that no two leads have the same one, and a later one is greater?

A backend counts its changes, and the count at which a lead was made is its term. If the backend loses its data or goes
back to an older state, it counts from less. A node that notices this, because it knows a greater term, begins another
era: from then on, all terms are greater than those before, by whichever nodes the loss was noticed.
"""

from __future__ import annotations

ERA = 2**40  # more changes than a backend makes in its life


def added_to(count: int, *, newest_term: int) -> int:
    """Returns what is added to the backend's count for a term later than the newest one that the node knows."""
    era, counted = divmod(newest_term, ERA)
    return (era + (count < counted)) * ERA


def is_of_earlier_era(term: int, *, now: int) -> bool:
    """Whether the backend has lost data, as far as the leader of the term `now` knows, since that one."""
    return term // ERA < now // ERA
