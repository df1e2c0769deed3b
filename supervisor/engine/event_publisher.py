"""Who learns what happened? The journal, the log and everyone who watches a job.

If a later supervisor may take over the job, nobody gets an event before the job's spawner keeps it: no reader, and no
leader. Otherwise a supervisor killed in between would leave an event, or its number, that the next one gives again.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import anyio
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from supervisor.config.run_folder import run_name
from supervisor.core.event_weights import Weight, weight
from supervisor.core.facts import JobEvent
from supervisor.core.stop_verdict import was_said
from supervisor.engine.job_record import JobRecord
from supervisor.engine.unsent_events import UnsentEvents
from supervisor.engine.waiting_jobs import WaitingJobs
from supervisor.ports.edges import Clock, Journal
from supervisor.ports.reports import RecordedEvent

KEPT_EVENTS_MAX = 200  # kept for the next supervisor while the disk fails
UNTOLD_EVENTS_MAX = 4096  # of a job whose spawner takes nothing: beyond this, they are told without being kept
UNTOLD_MAX_S = 5.0  # likewise: the leader's history, and people, wait no longer for a spawner that takes nothing
WATCHER_EVENTS_MAX = 4096  # a watcher further behind loses events and sees the gap by `sequence`

_LEVELS = {  # log levels: below INFO, events go only to the files
    Weight.ROUTINE: logging.DEBUG,
    Weight.NEWS: logging.INFO,
    Weight.FAULT: logging.WARNING,
    Weight.LOSS: logging.ERROR,
}

_log = logging.getLogger("holdfast.jobs")
_engine_log = logging.getLogger("holdfast")


class _Untold(NamedTuple):
    """An event that is numbered, and not yet kept."""

    event: RecordedEvent
    is_for_leader: bool
    since_s: float


class EventPublisher:
    """Numbers every event of every job and passes it on. Never blocks and never raises."""

    def __init__(
        self, *, journal: Journal, clock: Clock, node_name: str, unsent: UnsentEvents, unkept: WaitingJobs | None
    ) -> None:
        """`unsent`: for the leaders of jobs with other nodes. `unkept` gets jobs whose events wait to be kept, because
        an event between two turns would wait for the next turn; None: no supervisor returns, and none waits.
        """
        self._journal = journal
        self._clock = clock
        self._node_name = node_name
        self._watchers: dict[str, list[MemoryObjectSendStream[RecordedEvent]]] = {}
        self._changed: dict[str, JobRecord] = {}
        self._unsent = unsent
        self._unkept = unkept
        self._untold: dict[str, list[_Untold]] = {}  # by job id

    def publish(self, job: JobRecord, event: JobEvent) -> None:
        node = job.node_name(self._node_name)
        if job.recorded_before and job.was_recorded(event, node=node):
            return
        recorded = job.record(event, node=node, at_ns=self._clock.unix_ns())
        self._tell_or_wait(job, recorded, is_for_leader=job.spec.nodes is not None)
        self.changed(job)
        _log.log(
            logging.DEBUG if _is_told_already(job, recorded) else _LEVELS[weight(recorded.kind)],
            "%s",
            recorded.reason,
            extra={
                "job_id": recorded.job_id,
                "run": run_name(job.submitted_at_ns),
                "cycle": recorded.cycle,
                "rank": recorded.rank,
                "kind": recorded.kind,
                "event": recorded,
            },
        )

    def take_in(self, job: JobRecord, event: RecordedEvent, *, told_at_ns: int = 0) -> None:
        """Adds an event of another node, which has logged it there, to the history of the whole job.

        `told_at_ns`: when it was sent, by the node's clock; 0: not known.
        """
        if job.recorded_before and job.was_taken_in(event):
            return
        job.sequence += 1
        times = (
            ("arrived_at_ns", str(self._clock.unix_ns())),
            *((("told_at_ns", str(told_at_ns)),) if told_at_ns else ()),
        )
        details = (*((key, job.redacted(value)) for key, value in event.details), *times)
        taken = msgspec.structs.replace(
            event, sequence=job.sequence, reason=job.redacted(event.reason), details=details
        )
        self._tell_or_wait(job, taken, is_for_leader=False)

    def _tell_or_wait(self, job: JobRecord, event: RecordedEvent, *, is_for_leader: bool) -> None:
        job_id = event.job_id
        untold = self._untold.setdefault(job_id, [])
        untold.append(_Untold(event, is_for_leader, self._clock.now_s()))
        if self._unkept is None or not job.is_kept:
            self.tell(job_id)
            return
        if len(untold) > UNTOLD_EVENTS_MAX:
            self.tell(job_id)
        elif len(untold) == 1:
            self._unkept.add(job_id)

    def has_untold(self, job_id: str) -> bool:
        return job_id in self._untold

    def tell(self, job_id: str, through_sequence: int | None = None) -> None:
        """Hands on what was held back. None: all of it."""
        untold = self._untold.pop(job_id, [])
        later = [each for each in untold if through_sequence is not None and each.event.sequence > through_sequence]
        if later:
            self._untold[job_id] = later
        for event, is_for_leader, _ in untold[: len(untold) - len(later)]:
            self._write(event)
            self._show(event)
            if is_for_leader:
                self._unsent.note(event)

    def tell_late(self, job_id: str) -> None:
        """Hands on what no spawner has kept within UNTOLD_MAX_S."""
        since_s = self._clock.now_s() - UNTOLD_MAX_S
        late = [each.event.sequence for each in self._untold.get(job_id, ()) if each.since_s < since_s]
        if late:
            self.tell(job_id, late[-1])

    def record_again(self, events: Sequence[RecordedEvent]) -> None:
        """Records events again that the previous supervisor may not have saved; saved ones stay as they are."""
        for event in events:
            self._write(event)

    def uncommitted(self, job_id: str) -> Sequence[RecordedEvent]:
        """Returns the newest events that would be lost with this process, among them all that nobody was told of."""
        untold = (each.event for each in self._untold.get(job_id, ()))
        return [*self._journal.uncommitted(job_id)[-KEPT_EVENTS_MAX:], *untold]

    def _write(self, recorded: RecordedEvent) -> None:
        try:
            self._journal.record(recorded)
        except Exception as error:  # noqa: BLE001 - the bulkhead: a failure to record an event must not undo it
            _engine_log.error("cannot record %s of job %s", recorded.kind, recorded.job_id, exc_info=error)

    def _show(self, recorded: RecordedEvent) -> None:
        for stream in self._watchers.get(recorded.job_id, []):
            try:
                stream.send_nowait(recorded)
            except (anyio.WouldBlock, anyio.BrokenResourceError):
                continue  # it sees the gap in `sequence`, or is about to leave

    def changed(self, job: JobRecord) -> None:
        """Notes that its report changed, perhaps without an event."""
        self._changed[job.spec.job_id] = job

    def take_changed(self) -> dict[str, JobRecord]:
        """Returns the jobs whose report has changed since the last call."""
        changed, self._changed = self._changed, {}
        return changed

    def close(self, job_id: str) -> None:
        """Ends the streams of watchers: the job's last event was published."""
        self.tell(job_id)
        for stream in self._watchers.pop(job_id, []):
            stream.close()

    @asynccontextmanager
    async def watch(self, job_id: str, *, ended: bool) -> AsyncGenerator[AsyncIterator[RecordedEvent]]:
        """Yields events from now on until the job's last one. `ended`: the job is over, and none will come."""
        send: MemoryObjectSendStream[RecordedEvent]
        receive: MemoryObjectReceiveStream[RecordedEvent]
        send, receive = anyio.create_memory_object_stream[RecordedEvent](WATCHER_EVENTS_MAX)
        if ended:
            send.close()
        else:
            self._watchers.setdefault(job_id, []).append(send)
        try:
            async with receive:
                yield receive
        finally:
            send.close()
            watchers = self._watchers.get(job_id, [])
            if send in watchers:
                watchers.remove(send)


def _is_told_already(job: JobRecord, event: RecordedEvent) -> bool:
    """Returns whether the event repeats known news: who asked for the stop is how the job ended."""
    if event.kind == "stop_requested":
        job.stop_reason = job.stop_reason or event.reason
    return event.kind == "job_stopped" and was_said(job.stop_reason, event.reason)
