"""What does one transaction of the journal write? Apart, so that the queue before it needs no SQLite."""

from __future__ import annotations

import msgspec

from supervisor.ports import JobReport, RecordedEvent


class Batch(msgspec.Struct):
    """What one transaction writes."""

    reports: list[JobReport]
    events: list[tuple[int, RecordedEvent]]  # with the submission time of its job
