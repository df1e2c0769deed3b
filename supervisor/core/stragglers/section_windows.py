"""How long does one section take on each rank of a job, over windows of equal length on all of them?

The ranks report how often they have closed the section and how long it was open in all. A round is over once each rank
has closed it WINDOW_TIMES more, which gives its mean since the last round. So the ranks are compared over the same
steps, and rare work (a checkpoint, a garbage collection) falls into one round of many. Private arrays by rank keep the
cost to a few bytes per rank.
"""

from __future__ import annotations

from array import array

WINDOW_TIMES = 5
MISSED_ROUNDS_MAX = 3  # a rank that took no part in so many no longer runs the section
UNKNOWN, KNOWN, FULL = 0, 1, 2


class SectionWindows:
    """The times of one section. `now_s` is the time at which a rank's report arrived."""

    def __init__(self) -> None:
        self._status = bytearray()  # of each rank
        self._missed = bytearray()
        self._times = array("q")  # as told last
        self._total_s = array("d")
        self._base_times = array("q")  # as the last round ended
        self._base_s = array("d")
        self._known = 0
        self._full = 0
        self._opened_s: float | None = None  # when the first rank of this round was full

    def take(self, rank: int, times: int, total_s: float, *, now_s: float) -> None:
        """Takes a rank's report. A count that decreases comes from a new process or page and restarts the window."""
        if rank >= len(self._status):
            self._grow(rank + 1)
        status = self._status[rank]
        if status == UNKNOWN or times < self._times[rank] or total_s < self._total_s[rank]:
            self._known += status == UNKNOWN
            self._full -= status == FULL
            self._status[rank], self._missed[rank] = KNOWN, 0
            self._base_times[rank], self._base_s[rank] = times, total_s
        elif status == KNOWN and times - self._base_times[rank] >= WINDOW_TIMES:
            self._status[rank] = FULL
            self._full += 1
            if self._opened_s is None:
                self._opened_s = now_s
        self._times[rank], self._total_s[rank] = times, total_s

    def is_due(self, now_s: float, *, patience_s: float) -> bool:
        """Returns whether the round is over: all ranks have completed it, or the wait for the rest was long enough."""
        if self._full < 2 or self._opened_s is None:
            return False
        return self._full == self._known or now_s - self._opened_s >= patience_s

    def close_round(self) -> tuple[list[int], list[float]]:
        """Returns the ranks that took part, ascending, and each one's mean in seconds. Begins the next round."""
        ranks = [rank for rank, status in enumerate(self._status) if status == FULL]
        means = [
            (self._total_s[rank] - self._base_s[rank]) / (self._times[rank] - self._base_times[rank]) for rank in ranks
        ]
        if len(ranks) < self._known:
            self._note_missing()
            for rank in ranks:
                self._status[rank], self._missed[rank] = KNOWN, 0
                self._base_times[rank], self._base_s[rank] = self._times[rank], self._total_s[rank]
        else:  # All at once: one by one, tens of thousands of ranks would take the leader too long.
            self._status = self._status.replace(bytes([FULL]), bytes([KNOWN]))
            self._missed = bytearray(len(self._missed))
            self._base_times, self._base_s = self._times[:], self._total_s[:]
        self._full, self._opened_s = 0, None
        return ranks, means

    def _note_missing(self) -> None:
        for rank, status in enumerate(self._status):
            if status == KNOWN:
                self._missed[rank] += 1
                if self._missed[rank] >= MISSED_ROUNDS_MAX:
                    self._status[rank] = UNKNOWN
                    self._known -= 1

    def _grow(self, ranks: int) -> None:
        more = max(ranks, 2 * len(self._status)) - len(self._status)
        self._status.extend(bytes(more))
        self._missed.extend(bytes(more))
        for each in (self._times, self._base_times):
            each.extend([0] * more)
        for each in (self._total_s, self._base_s):
            each.extend([0.0] * more)
