"""Who learns what the machines of a job announce?

Records of cycles, log servers and the attribution service. A failure of one of them is nobody else's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from supervisor.core.announcements import Announcement
from supervisor.engine.job_record import JobRecord

Follow = Callable[[JobRecord, Announcement], None]  # never blocks

_log = logging.getLogger("holdfast")


def announce(followers: Sequence[Follow], job: JobRecord, announcement: Announcement) -> None:
    """Passes it on to all of them, in order. Never raises."""
    for follow in followers:
        try:
            follow(job, announcement)
        except Exception as error:  # noqa: BLE001 - the bulkhead: a job does not end because it can't be recorded
            what = type(announcement).__name__
            _log.error("job %s: a follower has failed at %s", job.spec.job_id, what, exc_info=error)
