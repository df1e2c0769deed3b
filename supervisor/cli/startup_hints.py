"""What does a user of `holdfast run` read only once its first workers start?

A hint about how workers run is of no use to somebody whose command cannot run at all.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from supervisor.config.environment import ONE_THREAD
from supervisor.edges.machine.own_process import standard_streams
from supervisor.ports.reports import RecordedEvent


class StartupHints(logging.Handler):
    """Waits for a job's first cycle. It is a log handler, too, because a supervisor logs its events."""

    def __init__(self, warnings: Sequence[str]) -> None:
        super().__init__()
        self._waiting = [each for each in warnings if each == ONE_THREAD]

    def hear(self, kind: str) -> None:
        if kind == "cycle_started":
            for each in self._waiting:
                standard_streams.say(f"holdfast: {each}")
            self._waiting = []

    def emit(self, record: logging.LogRecord) -> None:
        event = getattr(record, "event", None)
        if isinstance(event, RecordedEvent):
            self.hear(event.kind)
