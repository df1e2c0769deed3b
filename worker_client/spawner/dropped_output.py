"""When is output that was not kept reported? At once, then once a second for each rank, and when a cycle ends.

A full disk drops every write, and a rank that prints without a pause must not put off the report.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast_wire.spawner_link import OutputDropped

from .event_loop import Events

REPORT_INTERVAL_S = 1.0


class DroppedOutput:
    """What was dropped of one kind of output. `kind` names its timers."""

    def __init__(self, events: Events, kind: str, send: Callable[[OutputDropped], None]) -> None:
        self._events = events
        self._kind = kind
        self._send = send
        self._total_bytes: dict[int, int] = {}  # by local rank
        self._unreported: dict[int, str] = {}  # local rank -> why the last bytes were dropped
        self._paused: set[int] = set()  # local ranks that have a timer

    def add(self, local_rank: int, dropped_bytes: int, reason: str) -> None:
        self.set_total(local_rank, self._total_bytes.get(local_rank, 0) + dropped_bytes, reason)

    def set_total(self, local_rank: int, total_bytes: int, reason: str) -> None:
        if self._total_bytes.get(local_rank) == total_bytes and local_rank not in self._unreported:
            return
        self._total_bytes[local_rank] = total_bytes
        self._unreported[local_rank] = reason
        if local_rank not in self._paused:
            self._report_after(local_rank, 0.0)

    def report(self) -> None:
        """Reports now what has not been reported yet."""
        for local_rank, reason in self._unreported.items():
            self._send(OutputDropped(local_rank, self._total_bytes[local_rank], reason))
        self._unreported.clear()

    def start_again(self, local_rank: int) -> None:
        """Counts from nothing."""
        self._total_bytes.pop(local_rank, None)

    def _report_after(self, local_rank: int, delay_s: float) -> None:
        self._paused.add(local_rank)
        self._events.set_timer(f"{self._kind} of {local_rank} dropped", delay_s, lambda: self._on_time(local_rank))

    def _on_time(self, local_rank: int) -> None:
        self._paused.discard(local_rank)
        if (reason := self._unreported.pop(local_rank, None)) is not None:
            self._send(OutputDropped(local_rank, self._total_bytes[local_rank], reason))
            self._report_after(local_rank, REPORT_INTERVAL_S)
