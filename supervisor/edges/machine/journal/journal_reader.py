"""What do the journals of a state directory say? Works without a supervisor."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from holdfast_wire import regular_file

from supervisor.config.truncation import cut
from supervisor.core.facts import JobState
from supervisor.edges.machine import records
from supervisor.edges.machine.journal.journal_file import (
    BUSY_TIMEOUT_S,
    SCHEMA,
    avoid_mapped_memory,
    refuse_newer,
    uri_of,
    version,
)
from supervisor.edges.machine.journal.lost_supervisors import is_lost as is_lost  # also for readers of reports
from supervisor.edges.machine.journal.lost_supervisors import judged
from supervisor.errors import ConfigurationError
from supervisor.ports.reports import JobReport, RecordedEvent

RECORDED_BY = "recorded_by"  # beside the report's own keys: lost_supervisors.own_identity of the supervisor
REPORT_COLUMNS = "job_id, submitted_at_ns, report, updated_at_s"
LISTED_MAX = 1_000  # runs, the newest: on a shared file system, each node has a journal with as many


class _Writer(msgspec.Struct, frozen=True):
    """Who wrote a report: see RECORDED_BY."""

    recorded_by: str = ""


class JournalReader:
    """Reads the journals of a state directory without a supervisor. Every call blocks on the disk."""

    def __init__(self, connections: list[sqlite3.Connection]) -> None:
        self._connections = connections

    def __enter__(self) -> JournalReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for connection in self._connections:
            connection.close()

    def jobs(self, *, limit: int = LISTED_MAX, below: tuple[int, str] | None = None) -> list[JobReport]:
        """Returns runs, ended or not, newest first. Judges jobs that a dead supervisor left as live.

        `below`: only those of the newest LISTED_MAX with a smaller `list_key`. Decodes no report that is not returned.
        """
        query = "SELECT submitted_at_ns, job_id, run FROM jobs ORDER BY submitted_at_ns DESC, job_id DESC LIMIT ?"
        listed = [
            (submitted_at_ns, job_id, number, run)
            for number, connection in enumerate(self._connections)
            for submitted_at_ns, job_id, run in connection.execute(query, (LISTED_MAX,))
        ]
        newest = sorted(listed, reverse=True)[:LISTED_MAX]
        wanted = [(number, run) for *key, number, run in newest if below is None or tuple(key) < below]
        query = f"SELECT {REPORT_COLUMNS} FROM jobs WHERE run = ?"
        return [
            true_report(row)
            for number, run in wanted[: max(0, limit)]
            for row in self._connections[number].execute(query, (run,))
        ]

    def job(self, job_id: str) -> JobReport | None:
        """Returns the newest job with that id."""
        found = self._newest(job_id)
        return None if found is None else true_report(found[2])

    def recorded(self, job_id: str, submitted_at_ns: int | None = None) -> JobReport | None:
        """Does the same without judging: returns what its supervisor recorded last, though it may be dead.

        `submitted_at_ns`: of that run of the id.
        """
        found = self._newest(job_id, submitted_at_ns)
        return None if found is None else _report_of(found[2])

    def events(
        self, job_id: str, submitted_at_ns: int | None = None, *, after_sequence: int = 0, limit: int = 1000
    ) -> list[RecordedEvent]:
        """Returns events of the newest job with that id, or of that run, in order."""
        found = self._newest(job_id, submitted_at_ns)
        if found is None:
            return []
        connection, run, _ = found
        query = (
            "SELECT sequence, at_ns, cycle, iteration, node, rank, kind, reason, details FROM events "
            "WHERE run = ? AND sequence > ? ORDER BY sequence LIMIT ?"
        )
        return [_event_from_row(job_id, row) for row in connection.execute(query, (run, after_sequence, limit))]

    def _newest(
        self, job_id: str, submitted_at_ns: int | None = None
    ) -> tuple[sqlite3.Connection, int, Sequence[Any]] | None:
        """Returns the run with its REPORT_COLUMNS. `submitted_at_ns`: only a run that was submitted then counts.

        In one journal it is the run that was recorded last: the clock may have been stepped back since an earlier one.
        """
        query = (
            f"SELECT run, {REPORT_COLUMNS} FROM jobs WHERE job_id = ? AND submitted_at_ns = ifnull(?, submitted_at_ns) "
            "ORDER BY run DESC LIMIT 1"
        )
        found: list[tuple[sqlite3.Connection, int, Sequence[Any]]] = []
        for connection in self._connections:
            for run, *row in connection.execute(query, (job_id, submitted_at_ns)):
                found.append((connection, run, row))
        return max(found, key=lambda each: each[2][1], default=None)


def open_reader(*state_dirs: Path) -> JournalReader:
    """Returns one reader for the journals of these directories; it is empty if there are none.

    Raises ConfigurationError for a journal that is newer or unreadable.
    """
    connections: list[sqlite3.Connection] = []
    for path in (path for state_dir in state_dirs for path in sorted(state_dir.glob("journal*.db"))):
        try:
            _check_owner(path)
            connections.append(_open_for_reading(path))
        except (sqlite3.Error, OSError) as error:
            raise ConfigurationError(f"cannot read journal {path}: {error}; {_remedy(error)}") from error
    return JournalReader(connections)


def _remedy(error: sqlite3.Error | OSError) -> str:
    if isinstance(error, OSError):
        return "check its mode"
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
        return f"its supervisor has been writing for {BUSY_TIMEOUT_S:g} s, so the disk is slow; try again"
    return "the next supervisor sets it aside"


def _check_owner(path: Path) -> None:
    """Raises ConfigurationError if root would open a file that another user has chosen, or has written."""
    if os.geteuid() != 0:
        return
    folder, found = path.parent.stat(), path.lstat()
    owner = folder.st_uid or found.st_uid
    is_open = bool(folder.st_mode & 0o022) and not folder.st_mode & stat.S_ISVTX
    if owner == 0 and stat.S_ISREG(found.st_mode) and not is_open:
        return
    if owner == 0 and not is_open:
        raise ConfigurationError(f"cannot read journal {path}: it is not a regular file; move it away")
    why = f"it belongs to user id {owner}" if owner else "others may replace it"
    remedy = f"setpriv --reuid {owner} --clear-groups holdfast …" if owner else f"chmod go-w {path.parent}"
    raise ConfigurationError(f"cannot read journal {path} as root: {why}; {remedy} reads it")


def _open_for_reading(path: Path) -> sqlite3.Connection:
    """Opens it for writing if allowed: a killed supervisor's half-written transaction must be undone before reading."""
    mode = "rw" if os.access(path, os.W_OK) else "ro"
    regular_file.opened(path, follows=True).close()
    connection = sqlite3.connect(uri_of(path, mode), uri=True, timeout=BUSY_TIMEOUT_S, check_same_thread=False)
    with contextlib.ExitStack() as undo:
        undo.callback(connection.close)  # An abandoned connection would stay open until it is collected.
        avoid_mapped_memory(connection, path)
        connection.execute("PRAGMA query_only = ON").fetchone()
        refuse_newer(connection, path)
        if version(connection):
            undo.pop_all()
            return connection
    # A supervisor has just created it and not filled it yet.
    empty = sqlite3.connect(":memory:", check_same_thread=False)
    empty.executescript(SCHEMA)
    return empty


def report_to_json(report: JobReport, *, recorded_by: str = "") -> str:
    body = msgspec.to_builtins(report) | {RECORDED_BY: recorded_by}
    return json.dumps(body, separators=(",", ":"))  # ASCII, so that any text can be stored


def report_from_json(text: str) -> JobReport:
    """Parses a report. Ignores keys that a later version of the same schema added. Raises RecordError."""
    return records.decoded(text, JobReport)


def true_report(row: Sequence[Any]) -> JobReport:
    """Returns the report of these columns, judged if a dead supervisor left it as live."""
    report, text, recorded_at_s = _report_of(row), row[2], row[3]
    if report.state.has_ended:
        return report
    try:
        recorded_by = records.decoded(text, _Writer).recorded_by
        return judged(report, recorded_by=recorded_by, recorded_at_s=recorded_at_s)
    except (OSError, ValueError, TypeError, OverflowError):  # who wrote it, or when, is damaged
        return report


def _report_of(row: Sequence[Any]) -> JobReport:
    """Returns what was recorded. A damaged row is a job that is lost."""
    job_id, submitted_at_ns, text, _ = row
    try:
        return msgspec.structs.replace(report_from_json(text), job_id=job_id, submitted_at_ns=submitted_at_ns)
    except (records.RecordError, TypeError) as error:
        why = error.strerror if isinstance(error, records.RecordError) else error
        reason = f"its record in the journal can't be read: {why}"
        return JobReport(job_id, JobState.FAILED, submitted_at_ns, reason=reason, ended_at_ns=submitted_at_ns)


def event_to_row(event: RecordedEvent) -> tuple[object, ...]:
    details = [(key, _clipped(value)) for key, value in event.details]
    return (
        event.sequence, event.at_ns, event.cycle, event.iteration, event.node, event.rank, event.kind,
        _clipped(event.reason), json.dumps(details, separators=(",", ":")),
    )  # fmt: skip


def _event_from_row(job_id: str, row: tuple[Any, ...]) -> RecordedEvent:
    sequence, at_ns, cycle, iteration, node, rank, kind, reason, details = row
    try:
        pairs = records.decoded(details, tuple[tuple[str, str], ...])
    except (records.RecordError, TypeError) as error:
        pairs = (("unreadable", f"the details of this event can't be read: {error}"),)
    return RecordedEvent(
        job_id=job_id, sequence=sequence, at_ns=at_ns, kind=kind, reason=reason, cycle=cycle, iteration=iteration,
        node=node, rank=rank, details=pairs,
    )  # fmt: skip


def _clipped(text: str) -> str:
    return cut(text.encode("utf-8", "backslashreplace").decode())  # a lone surrogate can't be stored
