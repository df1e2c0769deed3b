"""What happens next in simulated time, and when does a machine with a deadline see it?

A heap of (time, what). Nothing waits and nothing reads a clock, so the same calls give the same run.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial

What = Callable[[], None]
_Planned = tuple[float, int, What]
AHEAD_S = 300.0  # what is planned for later waits unsorted: most of it no longer matters when its time comes


class Timeline:
    """The planned events. Those planned for the same moment happen in the order of planning."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.happened = 0
        self._planned = 0
        self._heap: list[_Planned] = []  # what is planned until `_later_s`
        self._later: list[_Planned] = []
        self._later_s = AHEAD_S

    def at(self, at_s: float, what: What) -> None:
        """Plans `what` for `at_s`; a moment in the past means now."""
        self._planned += 1
        planned = (at_s if at_s > self.now_s else self.now_s, self._planned, what)
        if at_s <= self._later_s:
            heapq.heappush(self._heap, planned)
        else:
            self._later.append(planned)

    def after(self, delay_s: float, what: What) -> None:
        self.at(self.now_s + delay_s, what)

    def happen(self) -> bool:
        """Lets the next planned thing happen. Returns False if nothing is planned."""
        if not self._heap and not self._look_ahead():
            return False
        self.now_s, _, what = heapq.heappop(self._heap)
        self.happened += 1
        what()
        return True

    @property
    def next_s(self) -> float | None:
        return self._heap[0][0] if self._heap or self._look_ahead() else None

    def _look_ahead(self) -> bool:
        """Sorts what comes next. Returns False if nothing is planned."""
        if not self._later:
            return False
        self._later_s = later_s = min(self._later)[0] + AHEAD_S
        self._heap = [each for each in self._later if each[0] <= later_s]
        self._later = [each for each in self._later if each[0] > later_s]
        heapq.heapify(self._heap)
        return True


class Alarm:
    """Goes off at the earliest deadline of some machines, however often that moves.

    A deadline that moves away costs one futile check, so an event costs the same however many machines there are.
    """

    def __init__(self, timeline: Timeline, deadline_s: Callable[[], float | None], ring: What) -> None:
        """`deadline_s` is called, in simulated time, after each `reset`."""
        self._timeline = timeline
        self._deadline_s = deadline_s
        self._ring = ring
        self._armed_s: float | None = None

    @property
    def is_armed(self) -> bool:
        return self._armed_s is not None

    def reset(self) -> None:
        """Sets the alarm again. Call it after each step of the machines."""
        deadline_s = self._deadline_s()
        if deadline_s is None or (self._armed_s is not None and self._armed_s <= deadline_s):
            return
        self._armed_s = at_s = max(deadline_s, self._timeline.now_s)
        self._timeline.at(at_s, partial(self._look, at_s))

    def _look(self, at_s: float) -> None:
        if at_s != self._armed_s:
            return  # An earlier alarm was set meanwhile.
        self._armed_s = None
        deadline_s = self._deadline_s()
        if deadline_s is not None and deadline_s <= self._timeline.now_s:
            self._ring()  # Its owner resets it.
        if self._armed_s is None:
            self.reset()
