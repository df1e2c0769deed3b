"""How is a batch of reports and events written to the journal file, and what is pruned from it?

Only one thread uses it. Damage is mended here: a broken file is set aside and a new one begun.
"""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from supervisor.core.facts import JobState
from supervisor.edges.machine.journal.journal_batch import Batch
from supervisor.edges.machine.journal.journal_file import (
    NewerJournalError,
    is_busy,
    is_damage,
    journal_path,
    open_for_writing,
    set_aside,
)
from supervisor.edges.machine.journal.journal_reader import REPORT_COLUMNS, event_to_row, report_to_json, true_report
from supervisor.edges.machine.journal.lost_supervisors import own_identity
from supervisor.ports.reports import JobReport

RUNS_CACHED_MAX = 100
ATTEMPTS = 3  # against another supervisor in the way, or a damaged file
NOW_S = "CAST(strftime('%s', 'now') AS INTEGER)"
JOBS_MAX = 1_000  # in the file: the newest, and any that have not ended
EVENTS_MAX = 200_000  # in the file, about 60 MB; the oldest jobs lose theirs first
PRUNE_EVERY_EVENTS = 5_000

EVENTS_PER_JOB_MAX = 100_000
JOURNAL_BYTES_MAX = 256 << 20
FORGOTTEN_AFTER_S = 180 * 86_400  # a job without an end whose supervisor is long gone


class JournalWriter:
    """The open file. Only the writer's thread uses it."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._path: Path | None = None
        self._connection: sqlite3.Connection | None = None
        self._inode = 0
        self._runs: dict[tuple[str, int], int] = {}
        self._events_until_pruning = 0
        self._notice = ""
        self.began_anew = False  # the file holds nothing that was written before; the caller resets it

    def close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None
            self._runs.clear()

    def take_notice(self) -> str:
        """Returns, once, what people should know about the last write."""
        notice, self._notice = self._notice, ""
        return notice

    def write(self, batch: Batch) -> str:
        """Commits the batch. Returns "" or why it can't be committed; never raises."""
        why_not = ""
        for _ in range(ATTEMPTS):
            try:
                self._commit(batch)
                return ""
            except NewerJournalError as error:
                return str(error)
            except sqlite3.Error as error:
                self.close()
                why_not = f"cannot write journal {self._path}: {error}"
                if is_damage(error):
                    why_not = self._begin_anew(error)
                elif not is_busy(error):
                    return why_not
            except OSError as error:
                self.close()
                return f"cannot open journal in {self._state_dir}: {error.strerror or error}"
        return why_not

    def _commit(self, batch: Batch) -> None:
        with contextlib.closing(self._open().cursor()) as cursor:
            cursor.execute("BEGIN IMMEDIATE")
            self._insert(cursor, batch)
            cursor.execute("COMMIT")
            self._prune_if_due(cursor, len(batch.events))

    def _begin_anew(self, damage: sqlite3.Error) -> str:
        if self._path is None:
            return str(damage)
        try:
            aside = set_aside(self._path)
        except OSError as error:
            return f"cannot set damaged journal {self._path} aside: {error}"
        self.began_anew = True
        if aside:
            self._notice = f"journal {self._path} was damaged ({damage}): moved to {aside.name}, a new one begun"
        return f"cannot write journal {self._path}: {damage}"

    def _open(self) -> sqlite3.Connection:
        """Opens the file, again if another process set it aside or somebody removed it."""
        if self._path is None:
            self._state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._path = journal_path(self._state_dir)
        if self._connection is not None:
            with contextlib.suppress(FileNotFoundError):
                if self._path.stat().st_ino == self._inode:
                    return self._connection
            self.close()
            self.began_anew = True
            self._state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._connection = open_for_writing(self._path)
        with contextlib.closing(self._connection.cursor()) as cursor:
            settle_lost(cursor)
        self._inode = self._path.stat().st_ino
        return self._connection

    def _insert(self, cursor: sqlite3.Cursor, batch: Batch) -> None:
        for report in batch.reports:
            run = self._run(cursor, report.job_id, report.submitted_at_ns)
            cursor.execute(
                f"UPDATE jobs SET state = ?, ended_at_ns = ?, updated_at_s = {NOW_S}, report = ? WHERE run = ?",
                (report.state.value, report.ended_at_ns, report_to_json(report, recorded_by=own_identity()), run),
            )
        for submitted_at_ns, event in batch.events:
            run = self._run(cursor, event.job_id, submitted_at_ns)
            cursor.execute(
                "INSERT OR IGNORE INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (run, *event_to_row(event))
            )

    def _run(self, cursor: sqlite3.Cursor, job_id: str, submitted_at_ns: int) -> int:
        """Returns the row of the job; inserts it if missing."""
        key = (job_id, submitted_at_ns)
        if key not in self._runs:
            unknown = JobReport(job_id, JobState.PENDING, submitted_at_ns)
            cursor.execute(
                "INSERT OR IGNORE INTO jobs (job_id, submitted_at_ns, updated_at_s, state, report) "
                f"VALUES (?, ?, {NOW_S}, ?, ?)",
                (*key, unknown.state.value, report_to_json(unknown)),
            )
            row = cursor.execute("SELECT run FROM jobs WHERE job_id = ? AND submitted_at_ns = ?", key).fetchone()
            while len(self._runs) >= RUNS_CACHED_MAX:
                self._runs.pop(next(iter(self._runs)))
            self._runs[key] = int(row[0])
        return self._runs[key]

    def _prune_if_due(self, cursor: sqlite3.Cursor, events: int) -> None:
        self._events_until_pruning -= events
        if self._events_until_pruning > 0:
            return
        self._events_until_pruning = PRUNE_EVERY_EVENTS
        cursor.execute("BEGIN IMMEDIATE")
        prune(cursor)
        cursor.execute("COMMIT")
        cursor.execute("PRAGMA incremental_vacuum").fetchall()
        self._runs.clear()  # another supervisor may have pruned, too


def settle_lost(cursor: sqlite3.Cursor) -> None:
    """Ends the jobs that dead supervisors left without a verdict: the caps count ended jobs."""
    rows = cursor.execute(f"SELECT run, {REPORT_COLUMNS} FROM jobs WHERE ended_at_ns IS NULL").fetchall()
    found = [(run, true_report(row)) for run, *row in rows]
    lost = [
        (report.state.value, report.ended_at_ns, report_to_json(report), run)
        for run, report in found
        if report.state.has_ended
    ]
    if lost:
        cursor.execute("BEGIN IMMEDIATE")
        cursor.executemany("UPDATE jobs SET state = ?, ended_at_ns = ?, report = ? WHERE run = ?", lost)
        cursor.execute("COMMIT")


def prune(cursor: sqlite3.Cursor) -> None:
    """Prunes jobs and events to their caps. Keeps jobs that still run."""
    cursor.execute(
        "DELETE FROM jobs WHERE run IN (SELECT run FROM jobs WHERE ended_at_ns IS NOT NULL "
        f"OR updated_at_s < {NOW_S} - {FORGOTTEN_AFTER_S} "
        "ORDER BY submitted_at_ns DESC LIMIT -1 OFFSET ?)",
        (JOBS_MAX,),
    )
    cursor.execute("DELETE FROM events WHERE run NOT IN (SELECT run FROM jobs)")
    counts = dict(cursor.execute("SELECT run, count(*) FROM events GROUP BY run").fetchall())
    for run, count in counts.items():
        if count > EVENTS_PER_JOB_MAX:
            newest = cursor.execute("SELECT max(sequence) FROM events WHERE run = ?", (run,)).fetchone()[0]
            cursor.execute("DELETE FROM events WHERE run = ? AND sequence <= ?", (run, newest - EVENTS_PER_JOB_MAX))
            counts[run] = EVENTS_PER_JOB_MAX
    oldest_first = cursor.execute(
        "SELECT run FROM jobs WHERE ended_at_ns IS NOT NULL ORDER BY submitted_at_ns"
    ).fetchall()
    for (run,) in oldest_first:
        if sum(counts.values()) <= EVENTS_MAX and _used_bytes(cursor) <= JOURNAL_BYTES_MAX:
            break
        if counts.pop(run, 0):
            cursor.execute("DELETE FROM events WHERE run = ?", (run,))


def _used_bytes(cursor: sqlite3.Cursor) -> int:
    pages, free, size = (
        cursor.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * size
