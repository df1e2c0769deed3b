"""What does one transaction of the journal write? In a module of its own, so that the queue needs no SQLite."""

from __future__ import annotations

import msgspec

from supervisor.ports.reports import JobReport, RecordedEvent


class Batch(msgspec.Struct):
    """The content of one transaction."""

    reports: list[JobReport]
    events: list[tuple[int, RecordedEvent]]  # with the submission time of its job
