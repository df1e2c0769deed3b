"""How does a supervisor that comes back take over its predecessor's jobs?

The predecessor was killed, crashed, or made room for another version. Its spawners live on with the workers, and each
keeps the data needed here. A job that can't be taken over is ended, never left beside a second one.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn, TypeVar

import anyio
import msgspec
from anyio.abc import TaskGroup
from holdfast_wire import spawner_link as wire
from holdfast_wire.framing import SPAWNER_FRAME_BYTES_MAX, encode

from supervisor.core import job_phases
from supervisor.core.announcements import Announcement, JobEnded
from supervisor.core.facts import JobEvent, JobState
from supervisor.core.node import node_messages, rank_monitor
from supervisor.core.rank_silence import counted_from
from supervisor.edges.machine.folders.worker_tokens import WorkerTokens
from supervisor.edges.machine.journal.journal import Journal
from supervisor.edges.machine.journal.timed_reads import SilentDiskError
from supervisor.edges.machine.own_process.kernel_error_remedies import NoThreadError
from supervisor.edges.machine.own_process.threads import in_thread, in_thread_if_any, in_thread_or_here
from supervisor.edges.machine.processes.job_claims import JobClaims
from supervisor.edges.workers.channel.worker_server import WorkerServer
from supervisor.edges.workers.spawner import dead_spawner_state, kept_succession, spawner_discovery
from supervisor.edges.workers.spawner.dead_spawner_state import DeadSpawnerState
from supervisor.edges.workers.spawner.spawner_discovery import FoundSpawner, SpawnerFiles, SpawnerIdentity
from supervisor.edges.workers.spawner.spawner_lifecycle import SpawnerLifecycle
from supervisor.edges.workers.spawner.spawner_reconnect import SpawnerReconnect
from supervisor.engine.action_performer import EnginePerformer
from supervisor.engine.engine_inbox import EngineInbox
from supervisor.engine.engine_loop import Engine
from supervisor.engine.event_publisher import EventPublisher
from supervisor.engine.job_record import JobRecord
from supervisor.engine.recovery import snapshot_texts
from supervisor.engine.recovery.record_text import UnreadableError
from supervisor.engine.recovery.snapshot_texts import Restored
from supervisor.engine.recovery.state_snapshot import StateSnapshot
from supervisor.engine.spawner_reports import SpawnerReports, why_unattended
from supervisor.ports.edges import Clock
from supervisor.ports.reports import JobNodeReport, JobReport, RecordedEvent
from supervisor.queries.job_service import JobService
from supervisor.report.timeline.event_ordering import ARRIVED
from supervisor.wiring.shared_jobs import Recall

RETURN_S = 1.5  # people may ask after that, even if a spawner still loads
ENDED_S = 5.0  # for the spawner of a job that is not taken over: its workers get SIGKILL
JOURNAL_FLUSH_S = 1.0  # for data that the next supervisor reads from the journal instead of the spawners
RECORDED_S = 1.0  # for what the journal says of a job whose spawner does not answer
EVENTS_MAX = 1_000  # of one job, recorded after the kept data

_Record = tuple[SpawnerFiles, SpawnerIdentity]
_Recorded = Sequence[_Record]  # of one job
_Left = tuple[SpawnerFiles, SpawnerIdentity, DeadSpawnerState | None]
_T = TypeVar("_T")

_log = logging.getLogger("holdfast")


def make_room(journal: Journal) -> NoReturn:
    """Ends this process for the next supervisor: nothing of the jobs may be closed or removed here."""
    _log.info("supervisor %s leaves its jobs to the next one", os.getpid())
    journal.flush(JOURNAL_FLUSH_S)
    os._exit(0)


async def _of_the_journal(ask: Callable[[], _T], *, otherwise: _T) -> _T:
    """Returns what the journal says. A disk that does not answer costs some of the history, never the job."""
    try:
        return await in_thread_or_here(ask)
    except SilentDiskError as error:
        _log.warning("%s", error)
        return otherwise


class EndedJobs:
    """Removes a job's kept data once its end is on the disk: else the next supervisor would not know it."""

    def __init__(self, journal: Journal, spawners: SpawnerLifecycle, tasks: TaskGroup) -> None:
        self._journal = journal
        self._spawners = spawners
        self._tasks = tasks

    def announced(self, job: JobRecord, announcement: Announcement) -> None:
        """Forgets a job that has ended: see announcement_followers.py."""
        if isinstance(announcement, JobEnded):
            self._tasks.start_soon(self._forget, self._spawners.end_run(job.spec.job_id))

    async def _forget(self, remove_files: Callable[[], None]) -> None:
        with anyio.CancelScope(shield=True):
            await in_thread_if_any(partial(self._journal.flush, JOURNAL_FLUSH_S))  # It writes by itself, too.
            remove_files()


class Returning(msgspec.Struct, frozen=True):
    """The services that a job needs to continue."""

    folder: Path
    clock: Clock
    inbox: EngineInbox
    engine: Engine
    job_service: JobService
    performer: EnginePerformer
    publisher: EventPublisher
    journal: Journal
    workers: WorkerServer
    tokens: WorkerTokens
    claims: JobClaims
    spawners: SpawnerLifecycle
    recall: Recall | None  # see shared_jobs.Counter
    faults: dict[str, str] = msgspec.field(default_factory=dict[str, str])  # job id -> why its record is unreadable

    async def run(self, tasks: TaskGroup) -> None:
        """Takes back the existing jobs. Returns when done, or after RETURN_S; the rest continues in `tasks`."""
        identities = await in_thread_or_here(self._identities)
        self.job_service.expected.expect(identities)
        waiting = len(identities)
        done = anyio.Event()

        async def take_back(job_id: str, recorded: _Recorded) -> None:
            nonlocal waiting
            found: list[FoundSpawner] = []
            try:
                await self._take_back(job_id, recorded, found)
            except Exception as error:  # noqa: BLE001 - the bulkhead: a job that can't be taken over must not end the others
                _log.error("cannot take over job %s: %s", job_id, error, exc_info=error)
                try:
                    await self._give_up(job_id, recorded, found, f"a fault of Holdfast: {error}")
                except Exception as further:  # noqa: BLE001 - nor may its end end the others
                    _log.error("cannot end job %s either: %s", job_id, further, exc_info=further)
            self.job_service.came_back(job_id)
            waiting -= 1
            if not waiting:
                done.set()

        for job_id, recorded in identities.items():
            tasks.start_soon(take_back, job_id, recorded)
        if identities:
            with anyio.move_on_after(RETURN_S):
                await done.wait()

    def _identities(self) -> dict[str, list[_Record]]:
        """Returns the spawners that a predecessor has left, by job, including dead ones."""
        found: dict[str, list[_Record]] = {}
        for files in spawner_discovery.find_files(self.folder):
            try:
                identity = files.identity()
            except OSError as error:
                identity = self._without_record(files, error)
            if identity is not None:
                found.setdefault(identity.job_id, []).append((files, identity))
            else:
                files.remove()
        return found

    def _without_record(self, files: SpawnerFiles, error: OSError) -> SpawnerIdentity | None:
        """Returns for whom a record stood that can't be read: who listens there, or the job whose state is kept there.

        Returns None if nobody knows.
        """
        why = f"the record {files.record_path} of its spawner can't be read: {error.strerror or error}"
        identity = files.listener()
        leftover = dead_spawner_state.read(files) if identity is None else None
        if leftover is not None:
            with contextlib.suppress(UnreadableError):
                identity = spawner_discovery.nobody(snapshot_texts.restored(leftover.texts).record.spec.job_id)
        if identity is None:
            _log.error("%s; which job it stood for is not known, and nothing of it is left", why)
        else:
            _log.warning("job %s: %s", identity.job_id, why)
            self.faults[identity.job_id] = why
        return identity

    async def _take_back(self, job_id: str, recorded: _Recorded, found: list[FoundSpawner]) -> None:
        """Takes over the job. `found` gets its spawners, as long as nobody else has them."""
        reaching = SpawnerReconnect(recorded, found)
        await reaching.run(partial(self._show, job_id, reaching))
        found.sort(key=lambda each: kept_succession.turns(each.texts), reverse=True)
        try:
            kept_succession.check_whole(found)
            await _check_newest(recorded, found)
            restored = snapshot_texts.restored(found[0].texts)
        except kept_succession.IncompleteError as error:
            await self._end_lost(job_id, recorded, found, reaching.why_lost or str(error))
            return
        except UnreadableError as error:
            if found[0].texts:
                _log.error("cannot take over job %s, which ends: %s", job_id, error)
                await self._give_up(job_id, recorded, found, str(error))
            elif any(left is not None and left.texts for _, _, left in await _left_by(recorded)):
                why = f"its spawner was lost, and the next one (pid {found[0].pid}) had nothing of the job yet"
                await self._end_lost(job_id, recorded, found, why)
            else:
                _log.warning("job %s had not begun when its supervisor was lost: submit it again", job_id)
                await _end_all(found)
            return
        for files, _ in recorded:
            if all(each.files is not files for each in found):
                files.remove()  # of a spawner that the job does not need
        past = await self._recorded_after(restored)
        history = await self._history(restored, past)
        await self.job_service.meet_again(restored.record.spec, restored.sessions)
        self._go_on(restored, found, past)
        self._begin(restored, history)
        self._stop_if_asked(job_id)

    async def _show(self, job_id: str, reaching: SpawnerReconnect) -> None:
        """Lets people see and stop a job whose spawner does not answer."""
        recorded = JobReport(job_id, JobState.STARTING, self.clock.unix_ns())
        with contextlib.suppress(NoThreadError, SilentDiskError), anyio.move_on_after(RECORDED_S):
            known = await in_thread(partial(self.journal.recorded, job_id), abandon_on_cancel=True)
            recorded = recorded if known is None or known.state.has_ended else known
        self.job_service.expected.show(recorded, reaching.silent, reaching.end)

    def _stop_if_asked(self, job_id: str) -> bool:
        asked = self.job_service.expected.stop_asked(job_id)
        if asked is not None:
            stop = node_messages.StopRequested(job_id, asked.reason, asked.signal, asked.grace_s, of_node=asked.of_node)
            self.inbox.post(stop)
        return asked is not None

    async def _recorded_after(self, restored: Restored) -> list[RecordedEvent]:
        past = await self._recorded(restored.record, after_sequence=restored.snapshot.sequence)
        if past is None:
            snapshot_texts.skip_events(restored.record, EVENTS_MAX)
        return past or []

    async def _history(self, restored: Restored, past: Sequence[RecordedEvent]) -> list[RecordedEvent]:
        """Returns what was recorded on a node that follows, or may have to: its leader may not have all of it."""
        sessions = restored.sessions
        if sessions is None or (sessions.leads and sessions.candidate is None):
            return []
        first = max(0, restored.snapshot.sequence - EVENTS_MAX)
        known = await self._recorded(restored.record, after_sequence=first) or ()
        all_of_it = {event.sequence: event for event in (*known, *restored.events, *past)}
        return [each for _, each in sorted(all_of_it.items()) if all(name != ARRIVED for name, _ in each.details)]

    async def _recorded(self, job: JobRecord, *, after_sequence: int) -> list[RecordedEvent] | None:
        """Returns events of this run, since earlier ones of its id have the same numbers. None: the disk is silent."""
        run = job.spec.job_id, job.submitted_at_ns
        ask = partial(self.journal.recorded_events, *run, after_sequence=after_sequence, limit=EVENTS_MAX)
        return await _of_the_journal(ask, otherwise=None)

    def _begin(self, restored: Restored, history: Sequence[RecordedEvent]) -> None:
        """Lets waiting messages of the other nodes in, after the restored ones."""
        job_id = restored.record.spec.job_id
        self.job_service.begin(job_id)
        if history and self.recall is not None:
            self.recall(job_id, history)

    def _put_back(
        self, restored: Restored, past: Sequence[RecordedEvent], claim: Sequence[int], *, has_spawner: bool
    ) -> None:
        """Restores the job as it was known there."""
        record, kept = restored.record, restored.snapshot
        job_id = record.spec.job_id
        snapshot_texts.resume(record, past, has_spawner=has_spawner)
        self.claims.take_back(job_id, record.submitted_at_ns, claim)
        self.job_service.take_back(record)
        self.publisher.record_again(restored.events)
        self.engine.take_back(job_id, kept.machines, kept.coordinator)

    def _go_on(self, restored: Restored, found: list[FoundSpawner], past: Sequence[RecordedEvent]) -> None:
        record, kept = restored.record, restored.snapshot
        job_id = record.spec.job_id
        self._put_back(restored, past, found[0].claims, has_spawner=True)
        found[0].claims = ()
        self._open_cycle(record, kept, found)
        for each in found:
            each.drop_pages()
        self.spawners.found[job_id] = [*found]
        found.clear()
        self.performer.take_back(record, kept.unfinished, kept.reports)
        for event in kept.waiting:
            self.inbox.post(event)
        self.inbox.post(node_messages.SupervisorReturned(job_id))
        self._read_pages(record)
        workers = f"{len(record.pids)} worker{'' if len(record.pids) == 1 else 's'}"
        text = f"this supervisor (pid {os.getpid()}) goes on with {workers} of the one before it"
        self.publisher.publish(record, JobEvent("supervisor_returned", text, record.cycle))

    def _open_cycle(self, record: JobRecord, kept: StateSnapshot, found: Sequence[FoundSpawner]) -> None:
        running, job_id = record.running, record.spec.job_id
        if running is None:
            return
        cycle = running.assignment.cycle
        self.tokens.take_back(job_id, cycle, running.token)
        self.workers.open_cycle(
            job_id,
            cycle,
            token=running.token,
            spec=record.spec,
            limits=kept.machines.job.limits or record.spec.hang_limits,
            first_rank=running.assignment.first_rank,
            is_fenced=kept.machines.job.has_met_leader,
        )
        for local_rank, pid in record.pids.items():
            self.workers.expect(job_id, cycle, local_rank, pid)
        for local_rank, monitor in enumerate(kept.machines.monitors):
            if isinstance(monitor, rank_monitor.Watching | rank_monitor.Reading | rank_monitor.Hung):
                progress = counted_from(monitor.progress, self.clock.now_s())
                pages = [each.pages.pop((cycle, local_rank), None) for each in found]
                self.workers.recall(job_id, cycle, local_rank, progress, next(filter(None, pages), None))

    def _read_pages(self, record: JobRecord) -> None:
        """Reads the pages at once: what was kept of a rank may be as old as its limit, and its verdict as late."""
        job_id, cycle = record.spec.job_id, record.cycle
        for local_rank in record.pids:
            progress = self.workers.read_progress(job_id, cycle, local_rank)
            if progress is not None and progress.read_at_s is not None:
                self.inbox.post(node_messages.ProgressRead(job_id, cycle, local_rank, progress))

    # --- a spawner that ended meanwhile ----------------------------------------------------------------------------

    async def _give_up(self, job_id: str, recorded: _Recorded, found: list[FoundSpawner], why: str) -> None:
        """Ends a job that can't be taken over, as far as it was."""
        begun_at_ns = spawner_discovery.last_noted_ns(files for files, _ in recorded)
        await _end_all(found)
        if self.job_service.job(job_id) is not None:
            self.inbox.post(node_messages.JobAbandoned(job_id, f"it could not be taken over: {why}"))
        else:
            await self._record_lost(job_id, f"supervisor {os.getpid()} could not take it over: {why}", begun_at_ns)

    async def _record_lost(self, job_id: str, reason: str, begun_at_ns: int | None) -> None:
        """Records the end of a job of which too little is kept to go on, as its supervisor recorded it last.

        An end that was recorded after `begun_at_ns` is that of this run, or of a later one, and stays as it is. So
        does a verdict, which is recorded before the end.
        """
        known = await _of_the_journal(partial(self.journal.recorded, job_id), otherwise=None)
        now_ns = self.clock.unix_ns()
        is_decided = known is not None and known.state.has_ended and known.ended_at_ns is None
        if known is not None and is_decided and not self.claims.is_of_another_run(job_id, known.submitted_at_ns):
            self.journal.save(msgspec.structs.replace(known, ended_at_ns=now_ns))
            return
        if known is None or known.state.has_ended:
            if known is not None and begun_at_ns is not None and (known.ended_at_ns or 0) > begun_at_ns:
                return
            node = JobNodeReport(self.job_service.node().name, "ready")
            known = JobReport(job_id, JobState.FAILED, now_ns, nodes=(node,))
        reason = f"{reason}; last: {known.reason}" if known.reason else reason
        ended = msgspec.structs.replace(known, state=JobState.FAILED, reason=reason, ended_at_ns=now_ns, ranks=())
        self.journal.save(ended)

    async def _end_lost(self, job_id: str, recorded: _Recorded, found: list[FoundSpawner], reason: str) -> None:
        """Ends a job whose spawner is lost, since nothing may run without it; reports how, as far as known."""
        reason = "; ".join(filter(None, (self.faults.get(job_id), reason)))
        while found:
            found.pop().kill()
        left = await _left_by(recorded)
        known = [(files, leftover) for files, _, leftover in left if leftover is not None]
        late = next(filter(None, (why_unattended(one) for _, leftover in known for one in leftover.reports)), "")
        if late:
            reason = f"{reason}: {late}; raise that limit if a supervisor may be away for longer"
        newest_files, newest = max(known, key=lambda each: _newness(each[1].texts), default=(None, None))
        restored = None
        try:
            restored = snapshot_texts.restored(newest.texts if newest is not None else {})
        except UnreadableError as error:
            _log.error("job %s has ended, and nobody knows how: %s; %s", job_id, reason, error)
            why = f"{reason}; how it ended is not known: {error}"
            await self._record_lost(job_id, why, spawner_discovery.last_noted_ns(files for files, _ in recorded))
        since_ns = restored.record.submitted_at_ns if restored is not None else None
        stuck: set[int] = set()
        for files, identity, leftover in left:  # first, since they hold the claim; another run's have other marks
            stuck |= {*await dead_spawner_state.end(files, identity, leftover)}
        if stuck:
            _log.error("processes %s of job %s can't be killed and were given up", tuple(sorted(stuck)), job_id)
        concludes = (
            restored is not None
            and not self.claims.is_of_another_run(job_id, since_ns, left=stuck)
            and not await self._has_recorded_end(restored)
        )
        for files, _ in recorded:
            if not concludes or files is not newest_files:
                files.remove()
        if restored is not None and newest_files is not None and newest is not None and concludes:
            self.spawners.leave(job_id, newest_files)  # until the end is on the disk: see EndedJobs
            past = await self._recorded_after(restored)
            await self.job_service.meet_again(restored.record.spec, restored.sessions)
            self._conclude(restored, newest, reason, past)
            self._begin(restored, ())

    async def _has_recorded_end(self, restored: Restored) -> bool:
        """Returns whether the end of this run is recorded: its supervisor ended before it removed the kept data."""
        from supervisor.edges.machine.journal.journal_reader import is_lost  # late: it loads SQLite

        run = restored.record.spec.job_id, restored.record.submitted_at_ns
        known = await _of_the_journal(partial(self.journal.recorded, *run), otherwise=None)
        # A verdict is recorded before the end. A judged report says only that this run's supervisor is gone.
        return known is not None and known.ended_at_ns is not None and not is_lost(known)

    def _conclude(self, restored: Restored, left: DeadSpawnerState, reason: str, past: Sequence[RecordedEvent]) -> None:
        record, job_id = restored.record, restored.record.spec.job_id
        self._put_back(restored, past, (), has_spawner=False)
        for event in restored.snapshot.waiting:
            self.inbox.post(event)
        reports = SpawnerReports(
            record, record.spawner_number, workers=self.workers, publisher=self.publisher, clock=self.clock
        )
        for message in left.reports:
            for event in reports.read(message):
                self.inbox.post(event)
        if self._stop_if_asked(job_id) or isinstance(restored.snapshot.machines.job.phase, job_phases.Closing):
            self.inbox.post(node_messages.SpawnerLost(job_id, record.spawner_number, reason))
        else:
            why = f"{reason}; its workers were ended, and its environment is kept nowhere: start the job again"
            self.inbox.post(node_messages.JobAbandoned(job_id, why))


async def _left_by(recorded: _Recorded) -> list[_Left]:
    """Returns what each spawner has left in its file."""
    return [(*each, await in_thread_or_here(partial(dead_spawner_state.read, each[0]))) for each in recorded]


async def _check_newest(recorded: _Recorded, found: Sequence[FoundSpawner]) -> None:
    """Raises IncompleteError if the newest one that was found was replaced, and a missing one kept newer texts."""
    texts = found[0].texts
    missing = [each for each in recorded if all(one.files is not each[0] for one in found)]
    for _, identity, kept in await _left_by(missing):
        if kept is not None and kept_succession.SUCCESSOR in texts and _newness(kept.texts) > _newness(texts):
            raise kept_succession.IncompleteError(kept_succession.has_ended(identity.pid))


def _newness(texts: Mapping[str, str]) -> tuple[int, int]:
    """Returns how new the texts are. Each spawner that follows a lost one counts turns from 0."""
    return snapshot_texts.spawner_number(texts), kept_succession.turns(texts)


async def _end_all(found: Sequence[FoundSpawner]) -> None:
    """Lets the spawners end their processes and themselves. Returns once the job's id is free, or after ENDED_S."""
    for each in found:
        with contextlib.suppress(OSError):
            each.socket.send(encode(wire.encode(wire.End()), frame_bytes_max=SPAWNER_FRAME_BYTES_MAX))
        each.drop_claims()
    with anyio.move_on_after(ENDED_S):
        for each in found:
            await anyio.wait_readable(each.pidfd)
            each.files.remove()
    for each in found:
        each.close()
