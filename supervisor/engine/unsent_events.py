"""What has happened to the jobs with other nodes that the leader may not know yet?

The publisher of an event notes it here, and the event forwarder sends it. So the publisher is made first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import anyio
import msgspec

from supervisor.engine.waiting_jobs import WaitingJobs
from supervisor.ports.questions import NodeEvents
from supervisor.ports.reports import RecordedEvent

KEPT_EVENTS_MAX = 4096  # of a job, sent ones included: a new leader may want them


class UnsentOfJob(msgspec.Struct):
    """The kept events of one job."""

    events: deque[RecordedEvent] = msgspec.field(default_factory=lambda: deque[RecordedEvent](maxlen=KEPT_EVENTS_MAX))
    told: int = 0  # the leader has all events up to this one
    has_unsent: bool = False
    is_served: bool = False  # a task sends its events
    pace_s: float = 0.0  # as the leader requests
    last_told: anyio.Event | None = None  # set once nothing is left to say; None: the job has not ended
    # See leaders_events.py: the leader that answered last, by node and submission; the own events of each leader; and
    # those of earlier ones that the present one may not have.
    leader: tuple[str, int] = ("", 0)
    heard: dict[tuple[str, int], deque[RecordedEvent]] = msgspec.field(
        default_factory=dict[tuple[str, int], deque[RecordedEvent]]
    )
    owed: deque[NodeEvents] = msgspec.field(default_factory=deque[NodeEvents])


class UnsentEvents:
    """The unsent events of all jobs. Only for the event loop's thread; nothing blocks but what waits for the leader."""

    def __init__(self) -> None:
        self._jobs: dict[str, UnsentOfJob] = {}
        self._changed = WaitingJobs()

    def note(self, event: RecordedEvent) -> None:
        if event.sequence == 1:
            self.forget(event.job_id)  # the id is used again
        self.of(event.job_id).events.append(event)
        self._changed.add(event.job_id)

    def recall(self, job_id: str, events: Sequence[RecordedEvent]) -> None:
        """Restores the past of a job that another supervisor began: the leader says which events it has."""
        self.of(job_id).events.extendleft(reversed(events))
        self._changed.add(job_id)

    def changed(self, job_id: str) -> None:
        """Notes that this node's part of the report has changed."""
        self._changed.add(job_id)

    async def tell_last(self, job_id: str) -> None:
        """Waits until the leader of a job that has ended has everything. The caller bounds the time."""
        if (unsent := self._jobs.get(job_id)) is not None:
            unsent.last_told = last_told = anyio.Event()
            self._changed.add(job_id)
            await last_told.wait()

    def forget(self, job_id: str) -> None:
        """Forgets a job: nobody is left to be told."""
        if (unsent := self._jobs.pop(job_id, None)) is not None:
            unsent.has_unsent = False

    def of(self, job_id: str) -> UnsentOfJob:
        return self._jobs.setdefault(job_id, UnsentOfJob())

    def get(self, job_id: str) -> UnsentOfJob | None:
        return self._jobs.get(job_id)

    async def next_changed(self) -> str:
        """Waits for a job with something new, and returns its id. For one reader."""
        return await self._changed.take()
