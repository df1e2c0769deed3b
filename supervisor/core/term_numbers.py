"""Which term does a lead get, so that no two leads have the same one, and a later one is greater?

A backend counts its changes. The term of a lead is the count at which it was made, and what was added for it: as much
as for the lead before, and a random part. If the backend loses its data or goes back to an older state, it counts again
from less, and adds less. Then the random part tells two leads of the same count apart, though neither knows of the
other. A node that notices the loss, because it knows a term that the backend has not given yet, begins another era:
from then on, all terms are greater than those before, by whichever nodes the loss was noticed.
"""

from __future__ import annotations

ERA = 2**40  # more than a backend's changes and a job's random parts in their life
PARTS = 2**20  # random parts


def added_to(count: int, *, added: int, newest_term: int, part: int) -> int:
    """Returns what is added to the backend's count for a term later than the newest one that the node knows.

    `added`: for the lead before, as far as the backend knows. `part`: at random, less than PARTS.
    """
    begins_at = (newest_term // ERA + 1) * ERA if newest_term > count + added else added
    return begins_at + 1 + part


def is_of_earlier_era(term: int, *, now: int) -> bool:
    """Returns whether the backend has lost data, as far as the leader of the term `now` knows, since that one."""
    return term // ERA < now // ERA
