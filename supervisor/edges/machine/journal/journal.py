"""How do events and states of jobs reach the disk without ever delaying a recovery?

`record` and `save` append to a bounded queue in memory; one thread commits batches. A disk that is full, read-only or
broken costs one alarm and the history, never the job: memory keeps the newest events, and the thread tries again.
"""

from __future__ import annotations

import contextlib
import heapq
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from supervisor.edges.machine.clock import Clock
from supervisor.edges.machine.journal.journal_batch import Batch
from supervisor.edges.machine.journal.timed_reads import SilentDiskError, TimedReads
from supervisor.edges.machine.own_process.writer_thread import WriterThread
from supervisor.errors import ConfigurationError
from supervisor.ports.reports import JobReport, RecordedEvent

if TYPE_CHECKING:
    from supervisor.edges.machine.journal.journal_reader import JournalReader
    from supervisor.edges.machine.journal.journal_writer import JournalWriter

PENDING_EVENTS_MAX = 10_000  # not committed yet; beyond it the oldest are dropped and counted
MEMORY_JOBS_MAX = 100  # of this supervisor's jobs, for answers without a disk
UNSAVED_JOBS_MAX = 10 * MEMORY_JOBS_MAX  # the same with those whose events wait for a report; some never get one
MEMORY_EVENTS_PER_JOB_MAX = 2_000
BATCH_EVENTS_MAX = 1_000
LINGER_S = 0.05  # for more to commit: a restart is over by then, and the thread has taken no time from it
LIST_S = 4.0  # for the jobs on a disk; a list without them is better than none
READ_AT_ONCE = 25  # jobs of a list: a page has 100 small ones, or 55 with 256 ranks each
RETRY_S = 30.0  # between attempts on a journal that cannot be written

Answer = TypeVar("Answer")


class _Remembered(msgspec.Struct):
    """The newest report and events of one job, for watchers ahead of the disk and for times without a disk."""

    report: JobReport | None = None  # None: not saved yet; until then its events wait here
    events: deque[RecordedEvent] = msgspec.field(
        default_factory=lambda: deque[RecordedEvent](maxlen=MEMORY_EVENTS_PER_JOB_MAX)
    )


class Journal:
    """Records jobs. `record`, `save` and `start` never block and never raise. The other calls block on the disk.

    Events of a job wait in memory until its first `save`. `on_alarm` is called from the writer's thread, once when the
    disk fails and once when it works again.

    """

    def __init__(self, state_dir: Path, *, on_alarm: Callable[[str], None], starts_thread: bool = False) -> None:
        """`starts_thread`: now, to wait for `start`: once workers run, they may have used up the limit on processes."""
        self._state_dir = state_dir
        self._reads = TimedReads()
        self._clock = Clock()
        self._on_alarm = on_alarm
        self._wake = threading.Condition()
        self._hurry = threading.Event()  # somebody waits for what is not committed
        self._events: deque[tuple[int, RecordedEvent]] = deque()
        self._reports: dict[tuple[str, int], JobReport] = {}
        self._memory: OrderedDict[str, _Remembered] = OrderedDict()
        self._being_written: list[tuple[int, RecordedEvent]] = []
        self._dropped_events = 0
        self._closing = False
        self._may_write = False
        self._committing = False
        self._failed = False
        self._has_given_up = False
        self._file: JournalWriter | None = None  # used by the thread alone
        self._thread = WriterThread("journal", take=self._next_batch, write=self._write, end=self._close_file)
        if starts_thread:
            self._start_thread()

    def _start_thread(self) -> None:
        try:
            self._thread.start()
        except OSError as error:
            with self._wake:
                self._failed = True
            self._on_alarm(f"cannot write the journal: {error}; jobs run on, and their newest events are in memory")

    def start(self) -> None:
        """Lets it write; until then all waits in memory. Call it once the workers run: their start comes first."""
        with self._wake:
            self._may_write = True
            self._wake.notify_all()
        self._start_thread()

    def record(self, event: RecordedEvent) -> None:
        with self._wake:
            remembered = self._remember(event.job_id)
            ended_at_ns = remembered.report.ended_at_ns if remembered.report is not None else None
            is_later = ended_at_ns is not None and event.at_ns > ended_at_ns
            if event.sequence == 1 and (remembered.events or is_later):
                remembered = self._memory[event.job_id] = _Remembered()  # the id is used again
            remembered.events.append(event)
            if remembered.report:
                self._enqueue(remembered.report.submitted_at_ns, event)
            self._wake.notify_all()

    def save(self, report: JobReport) -> None:
        """Queues the report; only the newest report of a job is written."""
        with self._wake:
            remembered = self._remember(report.job_id)
            if remembered.report and remembered.report.submitted_at_ns != report.submitted_at_ns:
                remembered = self._memory[report.job_id] = _Remembered()  # the id is used again
            if not remembered.report:
                for event in remembered.events:
                    self._enqueue(report.submitted_at_ns, event)
            remembered.report = report
            self._reports[report.job_id, report.submitted_at_ns] = report
            self._wake.notify_all()

    def uncommitted(self, job_id: str) -> list[RecordedEvent]:
        """Returns the job's recorded events that are not on the disk yet, in order."""
        with self._wake:
            remembered = self._memory.get(job_id)
            if remembered is not None and remembered.report is None:
                return list(remembered.events)
            return [event for _, event in (*self._being_written, *self._events) if event.job_id == job_id]

    def flush(self, timeout_s: float) -> bool:
        """Waits until everything is committed. Returns False if the time runs out or the disk fails."""
        self._hurry.set()
        with self._wake:
            return self._wake.wait_for(lambda: self._is_idle() or self._failed, timeout_s) and self._is_idle()

    def close(self, timeout_s: float = 2.0) -> bool:
        """Commits what waits and ends the thread. Returns False if something was not committed in time."""
        self._hurry.set()
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        self.start()  # for a job that ended before anything was committed
        return self._thread.join(timeout_s) and self._is_idle()

    def jobs(self, *, below: tuple[int, str] | None = None) -> Iterator[JobReport]:
        """Yields jobs, newest first: those on disk, as long as it answers, and those that only memory knows.

        `below`: only jobs with a smaller `list_key` than this one.
        """
        with self._wake:
            saved = [remembered.report for remembered in self._memory.values() if remembered.report]
        known = {report.list_key: report for report in saved}
        recent = (known[key] for key in sorted(known, reverse=True) if below is None or key < below)
        on_disk = (report for report in self._jobs_on_disk(below) if report.list_key not in known)
        yield from heapq.merge(recent, on_disk, key=lambda report: report.list_key, reverse=True)

    def _jobs_on_disk(self, below: tuple[int, str] | None) -> Iterator[JobReport]:
        until_s = self._clock.now_s() + LIST_S
        with contextlib.suppress(SilentDiskError):
            while found := self._next_on_disk(below, within_s=max(until_s - self._clock.now_s(), 0.0)):
                yield from found
                below = found[-1].list_key

    def _next_on_disk(self, below: tuple[int, str] | None, *, within_s: float) -> list[JobReport]:
        return self._read(
            lambda reader: reader.jobs(limit=READ_AT_ONCE, below=below), otherwise=list[JobReport](), within_s=within_s
        )

    def job(self, job_id: str) -> JobReport | None:
        """Returns the newest job with that id. Raises SilentDiskError if only the disk knows, and does not answer."""
        with self._wake:
            remembered = self._memory.get(job_id)
            if remembered and remembered.report:
                return remembered.report
        return self._read(lambda reader: reader.job(job_id), otherwise=None)

    def recorded(self, job_id: str, submitted_at_ns: int | None = None) -> JobReport | None:
        """Returns what a supervisor recorded last of that run, though it may be dead. None: of the newest one."""
        return self._read(lambda reader: reader.recorded(job_id, submitted_at_ns), otherwise=None)

    def recorded_events(
        self, job_id: str, submitted_at_ns: int, *, after_sequence: int, limit: int
    ) -> list[RecordedEvent]:
        """Returns events that previous supervisors have recorded of that run. Raises SilentDiskError."""
        return self._read(
            lambda reader: reader.events(job_id, submitted_at_ns, after_sequence=after_sequence, limit=limit),
            otherwise=[],
        )

    def events(self, job_id: str, *, after_sequence: int = 0, limit: int) -> list[RecordedEvent]:
        """Returns events in order, including uncommitted ones; without a disk, those that memory still has.

        Raises SilentDiskError.
        """
        # Memory first: events committed meanwhile are then in both, never in neither.
        recent, is_all = self._recent_events(job_id, after_sequence)
        if is_all:
            return recent[:limit]
        found = self._read(
            lambda reader: reader.events(job_id, after_sequence=after_sequence, limit=limit), otherwise=[]
        )
        last = found[-1].sequence if found else after_sequence
        return (found + [each for each in recent if each.sequence > last])[:limit]

    def events_in_memory(self, job_id: str, *, after_sequence: int, limit: int) -> list[RecordedEvent] | None:
        recent, is_all = self._recent_events(job_id, after_sequence)
        return recent[:limit] if is_all else None

    def _recent_events(self, job_id: str, after_sequence: int) -> tuple[list[RecordedEvent], bool]:
        """Returns the events that memory has, and whether these are all: memory always has a job's newest events."""
        with self._wake:
            remembered = self._memory.get(job_id)
            kept = list(remembered.events) if remembered else []
        recent = [each for each in kept if each.sequence > after_sequence]
        return recent, recent[0].sequence == after_sequence + 1 if recent else bool(kept)

    def _read(
        self, ask: Callable[[JournalReader], Answer], *, otherwise: Answer, within_s: float | None = None
    ) -> Answer:
        """Reads the journal; returns `otherwise` if it can't: the alarm was given when it could not be written.

        Raises SilentDiskError.
        """
        import sqlite3  # here and below: `holdfast run` starts its workers before it loads SQLite

        from supervisor.edges.machine.journal.journal_reader import open_reader

        def read() -> Answer:
            with open_reader(self._state_dir) as reader:
                return ask(reader)

        try:
            return self._reads.read(read, place=self._state_dir, within_s=within_s)
        except (ConfigurationError, sqlite3.Error, OSError):
            return otherwise

    def _remember(self, job_id: str) -> _Remembered:
        if job_id not in self._memory:
            self._memory[job_id] = _Remembered()
        self._memory.move_to_end(job_id)
        while len(self._memory) > MEMORY_JOBS_MAX:
            # Events that wait for their job's report are nowhere else.
            written = (name for name, each in self._memory.items() if each.report or not each.events)
            if (oldest := next(written, job_id)) == job_id:
                if len(self._memory) <= UNSAVED_JOBS_MAX:
                    break
                oldest = next(iter(self._memory))
            del self._memory[oldest]
        return self._memory[job_id]

    def _enqueue(self, submitted_at_ns: int, event: RecordedEvent) -> None:
        if len(self._events) >= PENDING_EVENTS_MAX:
            self._events.popleft()
            self._dropped_events += 1
        self._events.append((submitted_at_ns, event))

    def _is_idle(self) -> bool:
        return not self._events and not self._reports and not self._committing

    def _write(self, batch: Batch) -> None:
        file = self._file
        if file is None:
            from supervisor.edges.machine.journal.journal_writer import JournalWriter

            file = self._file = JournalWriter(self._state_dir)
        error = file.write(batch)
        with self._wake:
            self._committing = False
            self._being_written = []
            if file.began_anew:
                self._put_back(self._all_of_memory())
                file.began_anew = False
            if error:
                self._put_back(batch)
            self._wake.notify_all()
        self._tell(error, file.take_notice())
        self._has_given_up = bool(error) and not self._wait_for_retry()

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()

    def _next_batch(self) -> Batch | None:
        with self._wake:
            self._wake.wait_for(lambda: self._may_write and (self._events or self._reports or self._closing))
            lingers = len(self._events) < BATCH_EVENTS_MAX
        if lingers:
            self._hurry.wait(LINGER_S)
        with self._wake:
            if not self._closing:
                self._hurry.clear()
            if self._has_given_up or (not self._events and not self._reports):
                return None
            reports = list(self._reports.values())
            self._reports.clear()
            events = [self._events.popleft() for _ in range(min(BATCH_EVENTS_MAX, len(self._events)))]
            self._committing = True
            self._being_written = events
            return Batch(reports, events)

    def _put_back(self, batch: Batch) -> None:
        returned = {(report.job_id, report.submitted_at_ns): report for report in batch.reports}
        # The order of saving, since of an id the run that is written last is the newest.
        self._reports = {key: each for key, each in returned.items() if key not in self._reports} | self._reports
        while len(self._reports) > MEMORY_JOBS_MAX:
            self._reports.pop(next(iter(self._reports)))
        room = PENDING_EVENTS_MAX - len(self._events)
        kept = batch.events[max(0, len(batch.events) - room) :]
        self._dropped_events += len(batch.events) - len(kept)
        self._events.extendleft(reversed(kept))

    def _all_of_memory(self) -> Batch:
        batch = Batch([], [])
        for each in self._memory.values():
            if each.report:
                batch.reports.append(each.report)
                batch.events += [(each.report.submitted_at_ns, event) for event in each.events]
        return batch

    def _wait_for_retry(self) -> bool:
        """Waits; closing ends the wait for one last attempt. Returns False if that failed: the rest is lost."""
        with self._wake:
            if self._closing:
                return False
            self._wake.wait_for(lambda: self._closing, RETRY_S)
            return True

    def _tell(self, error: str, notice: str) -> None:
        if notice:
            self._on_alarm(notice)
        if error and not self._failed:
            self._on_alarm(f"{error}; jobs run on, and their newest events are kept in memory")
        elif self._failed and not error:
            lost, self._dropped_events = self._dropped_events, 0
            self._on_alarm(f"the journal is written again; {lost} events were lost")
        with self._wake:
            self._failed = bool(error)
            self._wake.notify_all()
