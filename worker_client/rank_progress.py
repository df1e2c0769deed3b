"""What has this rank done so far, and in which page is that recorded?

Connects the script's stamps (heartbeat_intervals.py, sections.py) with the page of the connection, which the channel's
thread replaces. Blocks only on a lock that is held briefly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic_ns

from holdfast_wire import page_layout as layout

from worker_client.heartbeat_intervals import HeartbeatIntervals
from worker_client.progress_page_writer import Carried, ProgressPage, Snapshot
from worker_client.sections import Sections


@dataclass(frozen=True, slots=True)
class Maxima:
    """The longest silences of this rank, in seconds; 0 means none yet."""

    initial_heartbeat_s: float = 0.0
    heartbeat_s: float = 0.0
    out_of_section_s: float = 0.0
    sections_s: Mapping[str, float] = field(default_factory=dict[str, float])


class Progress:
    """The progress of one rank, for as long as a client uses its monitoring."""

    __slots__ = ("_began_ns", "_has_begun", "_lost_ns", "_page", "_wake", "_wants_wake", "heartbeats", "sections")

    def __init__(self, wake: Callable[[], None] = lambda: None) -> None:
        """`wake` tells the channel thread that something was stamped; called only after `rearm()`."""
        self._wake = wake
        self._wants_wake = False
        self._has_begun = False
        self._began_ns = 0
        self._lost_ns: int | None = 0  # since when there is no connection; None: there is one; 0: there never was
        self._page = ProgressPage.private()
        self.heartbeats = HeartbeatIntervals(self._page, self._rouse)
        self.sections = Sections(self._rouse)

    def begin(self) -> None:
        """Starts counting silences at the script's first init. A wrapped call may have connected earlier."""
        if self._has_begun:
            return
        now_ns = monotonic_ns()
        self.heartbeats.begin(now_ns)
        self.sections.begin(now_ns)
        self._has_begun = True
        self._began_ns = now_ns
        page = self._page
        page.begin(now_ns)
        page.leave_sections(now_ns)
        self._rouse()

    # --- the connection ---

    def adopt(self, page: ProgressPage, sections: Sequence[str]) -> bool:
        """Continues in the page of a new connection. Called on the channel thread. Returns whether it had one before.

        Time without a connection does not count; a silence that began before that continues where it was.
        """
        now_ns = monotonic_ns()
        lost_ns, self._lost_ns = self._lost_ns, None
        if lost_ns == 0:
            self._began_ns = now_ns  # and everything else counts from now on, too
        carried = Carried(now_ns if lost_ns is None else lost_ns, now_ns)
        self.sections.move(page, sections, carried)
        self.heartbeats.move(page, carried)
        before, self._page = self._page, page
        page.take_up()
        if self._has_begun:
            page.begin(carried.stamp(self._began_ns))
        before.leave()
        return self._has_begun and lost_ns != 0

    @property
    def lease_until_ns(self) -> int:
        """Returns the newest page's word on the lease, with or without a connection; see page_layout.py."""
        return self._page.words[layout.WORD_LEASE_UNTIL_NS]

    def lose(self) -> None:
        """Notes that there is no connection. Called on the channel thread, perhaps repeatedly."""
        if self._lost_ns is None:
            self._lost_ns = monotonic_ns()

    def snapshot(self) -> Snapshot:
        """Returns what the page shows now."""
        return self._page.snapshot()

    def rearm(self) -> Snapshot:
        """Returns what there is to send now; the next stamp calls `wake` once."""
        self._wants_wake = True
        # Last: a stamp clears its flag before it checks whether a wake is wanted, so none is lost.
        self.heartbeats.attends = self.sections.attends = True
        return self._page.snapshot()

    def disarm(self) -> None:
        """Keeps stamps from calling `wake` until the next `rearm()`."""
        self._wants_wake = False

    @property
    def has_news(self) -> bool:
        """Whether something may have been stamped since `rearm()`; a wrapped call always makes progress."""
        return not self._wants_wake or self._page.is_call_watched

    @property
    def is_call_watched(self) -> bool:
        return self._page.is_call_watched

    def leave(self) -> None:
        """Ends the use of the page, and keeps stamps in this object from here on."""
        self._page.leave()
        self.detach()

    def detach(self) -> None:
        """Keeps stamps in this object from here on, also in a forked child, where the page is the parent's."""
        self._page = page = ProgressPage.private()
        self._wants_wake = False
        self.heartbeats.words = page.words
        self.sections.detach(page)

    def _rouse(self) -> None:
        if self._wants_wake:
            self._wants_wake = False
            self._wake()

    # --- what was measured ---

    def maxima(self) -> Maxima:
        """Returns the longest silences so far, including the current time outside sections but not open sections."""
        heartbeats = self.heartbeats
        outside_ns, sections_ns = self.sections.measure()
        return Maxima(
            initial_heartbeat_s=heartbeats.first_gap_ns / 1e9,
            heartbeat_s=heartbeats.longest_gap_ns / 1e9,
            out_of_section_s=outside_ns / 1e9,
            sections_s={name: longest_ns / 1e9 for name, longest_ns in sections_ns.items()},
        )
