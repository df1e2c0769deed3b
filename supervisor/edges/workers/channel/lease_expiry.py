"""Until when does the lease of a job's ranks hold?

Decisions count CLOCK_MONOTONIC, which stops while a machine is suspended, and others replace the node meanwhile.
So a lease is told in CLOCK_BOOTTIME, and counts from before any suspension that the decision may not have seen.
"""

from __future__ import annotations

from collections import deque

from holdfast_wire import page_layout

from supervisor.core.fence_times import FENCE_S
from supervisor.ports.edges import Clock

NS_PER_S = 1_000_000_000
SEEN_S = FENCE_S + 1  # a fence is moved because of something that was sent less than this time ago


class Leases:
    """The leases of all jobs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until_ns: dict[str, int] = {}
        self._offsets: deque[tuple[float, int]] = deque()  # when, and by how much CLOCK_BOOTTIME was ahead then
        self._earliest_offset_ns()

    def begin(self, job_id: str, *, is_fenced: bool) -> None:
        """Begins a cycle. If the job is fenced, its last lease still counts."""
        if is_fenced:
            self._until_ns.setdefault(job_id, page_layout.LEASE_ENDED)
        else:
            self._until_ns[job_id] = page_layout.LEASE_UNBOUNDED

    def extend(self, job_id: str, until_s: float) -> None:
        """Sets the lease's end, on CLOCK_MONOTONIC.

        A fence that is further away than anything the leader has answered was moved because nothing is to run.
        """
        if until_s > self._clock.now_s() + SEEN_S:
            return
        self._until_ns[job_id] = int(until_s * NS_PER_S) + self._earliest_offset_ns()

    def until_ns(self, job_id: str) -> int:
        """Returns a time on CLOCK_BOOTTIME, or one of the page's LEASE_ values."""
        return self._until_ns.get(job_id, page_layout.LEASE_ENDED)

    def is_unbounded(self, job_id: str) -> bool:
        return self.until_ns(job_id) == page_layout.LEASE_UNBOUNDED

    def left_ns(self, job_id: str) -> int:
        """Returns how long the lease still holds; 0 or less: it has ended."""
        return self.until_ns(job_id) - self._clock.boot_ns()

    def _earliest_offset_ns(self) -> int:
        """Returns by how much CLOCK_BOOTTIME was ahead SEEN_S ago, or earlier; it only grows."""
        now_s = self._clock.now_s()
        self._offsets.append((now_s, self._clock.boot_ns() - int(now_s * NS_PER_S)))
        while len(self._offsets) > 1 and self._offsets[1][0] <= now_s - SEEN_S:
            self._offsets.popleft()
        return self._offsets[0][1]
