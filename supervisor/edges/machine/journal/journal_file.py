"""Which tables does a journal file have, and how is one opened and set aside?

All supervisors of a user on this node share one SQLite file per state directory; on a network file system each node has
a file of its own. It is never in WAL mode: a WAL's index is a file mapped into memory, and the kernel sends SIGBUS to a
process that touches such a page when the disk has no room for it. A rollback journal is only ever read and written.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Generator
from pathlib import Path
from urllib.parse import quote

from holdfast_wire import regular_file

from supervisor.edges.machine.network_folders import file_of_node
from supervisor.errors import ConfigurationError

SCHEMA_VERSION = 1
BUSY_TIMEOUT_S = 5.0  # another supervisor of the same user may be committing
CACHE_KIB = 256  # in KiB, small because pages written at the end are not read again; SQLite's default is 2 MiB
CHECKED_BYTES_MAX = 8 << 20  # smaller files are checked completely when opened; larger ones as they are read
WAL_FORMAT = b"\x02\x02"  # bytes 18 and 19 of a file in WAL mode
DAMAGED = frozenset((sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB))

SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    run INTEGER PRIMARY KEY,
    job_id TEXT NOT NULL,
    submitted_at_ns INTEGER NOT NULL,
    ended_at_ns INTEGER,
    updated_at_s INTEGER NOT NULL,
    state TEXT NOT NULL,
    report TEXT NOT NULL,
    UNIQUE (job_id, submitted_at_ns)
);
CREATE INDEX IF NOT EXISTS jobs_by_age ON jobs (submitted_at_ns);
CREATE TABLE IF NOT EXISTS events (
    run INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    at_ns INTEGER NOT NULL,
    cycle INTEGER NOT NULL,
    iteration INTEGER NOT NULL,
    node TEXT NOT NULL,
    rank INTEGER,
    kind TEXT NOT NULL,
    reason TEXT NOT NULL,
    details TEXT NOT NULL,
    PRIMARY KEY (run, sequence)
) WITHOUT ROWID;
"""


def is_busy(error: sqlite3.Error) -> bool:
    """Returns whether another process was in the way for a moment; SQLite does not wait in every case."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


class NewerJournalError(ConfigurationError):
    """Raised if a newer Holdfast wrote the file; this one must not touch it."""


def journal_path(state_dir: Path) -> Path:
    """Returns the file that supervisors of this node write."""
    return file_of_node(state_dir, "journal", ".db")


def open_for_writing(path: Path) -> sqlite3.Connection:
    """Opens or creates the file. Blocks. Raises sqlite3.Error or OSError unchanged, or NewerJournalError."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    regular_file.opened(path).close()  # not a pipe: SQLite would wait for what somebody else writes into it
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    with contextlib.ExitStack() as undo:
        undo.callback(connection.close)  # An abandoned connection would hold the file until it is collected.
        with _locked(path):
            avoid_mapped_memory(connection, path)
            refuse_newer(connection, path)
            if path.stat().st_size <= CHECKED_BYTES_MAX:
                found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
                if found != "ok":
                    raise _damaged(str(found))
            is_new = not version(connection)
            if is_new:
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("PRAGMA journal_mode = TRUNCATE").fetchone()
            connection.execute("PRAGMA locking_mode = NORMAL").fetchone()
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            if is_new:
                script = f"BEGIN IMMEDIATE;{SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
                connection.executescript(script)
        undo.pop_all()
    return connection


def uri_of(path: Path, mode: str) -> str:
    """Returns the URI of any path, for SQLite. `mode`: ro, rw."""
    return f"file:{quote(os.fsencode(path))}?mode={mode}"


def set_aside(path: Path) -> Path | None:
    """Moves a damaged journal away and returns its new path; None if another process did so before."""
    with _locked(path):
        if _is_whole(path):
            return None
        number = 1
        while (aside := path.with_name(f"{path.name}.corrupt-{number}")).exists():
            number += 1
        path.rename(aside)
        for suffix in ("-wal", "-shm", "-journal"):
            with contextlib.suppress(FileNotFoundError):
                path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
        return aside


def _is_whole(path: Path) -> bool:
    with contextlib.suppress(OSError, sqlite3.Error), contextlib.ExitStack() as closing:
        connection = sqlite3.connect(uri_of(path, "rw"), uri=True, timeout=BUSY_TIMEOUT_S)
        closing.callback(connection.close)
        avoid_mapped_memory(connection, path)
        return bool(connection.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok")
    return False


def is_damage(error: sqlite3.Error) -> bool:
    """Returns whether the file's content is broken, and not just the disk or a lock in the way."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in DAMAGED


def avoid_mapped_memory(connection: sqlite3.Connection, path: Path) -> None:
    """Keeps an old file in WAL mode from sharing its index in memory. Call it first."""
    connection.execute("PRAGMA mmap_size = 0").fetchone()
    with regular_file.opened(path, follows=True) as file:
        head = file.read(20)
    if head[18:20] == WAL_FORMAT:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE").fetchone()


def version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def refuse_newer(connection: sqlite3.Connection, path: Path) -> None:
    found = version(connection)
    if found > SCHEMA_VERSION:
        raise NewerJournalError(
            f"cannot use journal {path}: a newer Holdfast wrote it (schema {found}, this one knows "
            f"{SCHEMA_VERSION}); upgrade, or choose another --state-dir"
        )


def _damaged(found: str) -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError(found)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


@contextlib.contextmanager
def _locked(path: Path) -> Generator[None]:
    """Holds a lock: only one process at a time creates the file or sets it aside."""
    descriptor = os.open(path.with_name("journal.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
