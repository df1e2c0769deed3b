"""When is output that was not kept reported? At once, then once a second for each rank, and when a cycle ends.

A full disk drops every write, and a rank that prints without a pause must not put off the report.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast_wire.spawner_link import OutputDropped

from .event_loop import Events

REPORT_INTERVAL_S = 1.0

Owner = tuple[int, int]  # cycle, local rank


class DroppedOutput:
    """What was dropped of one kind of output. `kind` names its timers."""

    def __init__(self, events: Events, kind: str, send: Callable[[OutputDropped], None]) -> None:
        self._events = events
        self._kind = kind
        self._send = send
        self._total_bytes: dict[Owner, int] = {}
        self._unreported: dict[Owner, str] = {}  # why the last bytes were dropped
        self._paused: set[Owner] = set()  # those that have a timer

    def add(self, cycle: int, local_rank: int, dropped_bytes: int, reason: str) -> None:
        self.set_total(cycle, local_rank, self._total_bytes.get((cycle, local_rank), 0) + dropped_bytes, reason)

    def set_total(self, cycle: int, local_rank: int, total_bytes: int, reason: str) -> None:
        owner = cycle, local_rank
        if self._total_bytes.get(owner) == total_bytes and owner not in self._unreported:
            return
        self._total_bytes[owner] = total_bytes
        self._unreported[owner] = reason
        if owner not in self._paused:
            self._report_after(owner, 0.0)

    def report(self) -> None:
        """Reports now what has not been reported yet."""
        for owner in list(self._unreported):
            self._report(owner)

    def end(self, cycle: int) -> None:
        """Reports the rest, and forgets the totals of a cycle that is over."""
        self.report()
        self._total_bytes = {owner: total for owner, total in self._total_bytes.items() if owner[0] != cycle}

    def _report(self, owner: Owner) -> None:
        cycle, local_rank = owner
        reason = self._unreported.pop(owner)
        self._send(OutputDropped(local_rank, self._total_bytes[owner], reason, cycle))

    def _report_after(self, owner: Owner, delay_s: float) -> None:
        self._paused.add(owner)
        name = f"{self._kind} of {owner[1]} in {owner[0]} dropped"
        self._events.set_timer(name, delay_s, lambda: self._on_time(owner))

    def _on_time(self, owner: Owner) -> None:
        self._paused.discard(owner)
        if owner in self._unreported:
            self._report(owner)
            self._report_after(owner, REPORT_INTERVAL_S)
