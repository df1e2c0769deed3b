"""When was this rank's last heartbeat, and what was the longest silence between two?

This is the client's hottest path. After a pause of the rank, nearly all of its cost is cache misses, so it touches as
little memory as it can: one clock reading, one object and two stores, with the word numbers of page_layout.py written
out. It takes no lock: each store is valid by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns

from worker_client.progress_page_writer import Carried, ProgressPage


class HeartbeatIntervals:
    """The heartbeats of one rank since `begin()`. Any thread may beat, and so may a signal handler during a beat."""

    __slots__ = ("attends", "count", "first_gap_ns", "last_ns", "longest_gap_ns", "rouse", "words")

    def __init__(self, page: ProgressPage, rouse: Callable[[], None]) -> None:
        """The next beat after `attends` is set calls `rouse`."""
        self.words = page.words
        self.rouse = rouse
        self.count = 0
        self.begin(monotonic_ns())

    def begin(self, now_ns: int) -> None:
        """Starts the silence before the first heartbeat."""
        self.last_ns = now_ns
        self.first_gap_ns = self.longest_gap_ns = 0  # 0: not measured yet
        self.attends = True  # the first beat is a special case

    def beat(self) -> None:
        now_ns = monotonic_ns()
        gap_ns = now_ns - self.last_ns
        if gap_ns > self.longest_gap_ns:
            self.longest_gap_ns = gap_ns
        self.last_ns = now_ns
        self.count = count = self.count + 1
        words = self.words  # after the count: a page that arrives meanwhile has counted this beat
        words[2] = now_ns
        words[3] = count
        if self.attends:
            self._attend()

    def _attend(self) -> None:
        self.attends = False
        if not self.first_gap_ns:
            self.first_gap_ns, self.longest_gap_ns = self.longest_gap_ns, 0
        self.rouse()

    def move(self, page: ProgressPage, carried: Carried) -> None:
        """Moves the stamps to a new page."""
        self.words = page.words
        # After the page is in place: a beat that went to the old one is seen here, a later one goes to the new.
        last_ns = self.last_ns
        if self.count:
            page.beat(carried.stamp(last_ns), self.count)
        if self.last_ns != last_ns:
            page.beat(self.last_ns, self.count)  # A beat during the move must not look older than it is.
