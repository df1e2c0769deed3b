"""Has a later group of ranks committed to this path, and how is an earlier one kept from it?

A small file beside the path records the token of the newest group, and the epochs before it. A process that commits
writes to a temporary path that has its token in its name, then reads the record, then renames. A new group first writes
the record, then removes the temporary paths of earlier groups. So an earlier group either finds the new record, or has
nothing left to rename. This needs no lock, which a paused process might hold, and no clock.

Epochs are not compared, since the clocks of two runs may differ: an epoch that is not in the record is the newest.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from worker_client.errors import LeaseLostError
from worker_client.fencing_tokens import epoch_of
from worker_client.guarded_log import GuardedLog

EPOCHS_MAX = 1000  # remembered for a path; a job has one for each of its leaders and runs
RECORD_BYTES_MAX = 64 * 1024  # a record of that many epochs has a third of it
PREFIX = ".holdfast-"

_TEMPORARY = re.compile(r"\.holdfast-([0-9a-f]+)-[0-9a-f]+-(?:part|token)-(.*)", re.DOTALL)

log = GuardedLog("holdfast")


@dataclass(frozen=True, slots=True)
class Record:
    """Which groups have committed to the path."""

    token: int = 0  # of the newest one
    former: tuple[int, ...] = ()  # epochs before that one's, oldest first

    def excludes(self, token: int) -> bool:
        """Returns whether the group with this token has been replaced."""
        if epoch_of(token) == epoch_of(self.token):
            return token < self.token
        return epoch_of(token) in self.former

    def with_newest(self, token: int) -> Record:
        if not self.token or epoch_of(token) == epoch_of(self.token):
            return Record(token, self.former)
        return Record(token, (*self.former, epoch_of(self.token))[-EPOCHS_MAX:])


def temporary_path(path: Path, token: int, kind: str = "part") -> Path:
    """Returns a new path beside `path`, with the same ending."""
    return path.with_name(f"{PREFIX}{token:x}-{secrets.token_hex(4)}-{kind}-{path.name}")


def record_path(path: Path) -> Path:
    return path.with_name(f"{PREFIX}token-{path.name}")


def claim(path: Path, token: int) -> None:
    """Records that the group with this token commits to the path, if it is not recorded yet.

    Raises LeaseLostError if a later group has done so.
    """
    record = check(path, token)
    if record.token == token:
        return
    if epoch_of(token) < epoch_of(record.token):
        log.warning(
            "%s was written by a group with a greater fencing token, %d, than this one's, %d: an earlier run had a "
            "clock that was ahead", path, record.token, token,
        )  # fmt: skip
    newest = record.with_newest(token)
    written = temporary_path(path, token, "token")
    try:
        written.write_text(json.dumps({"token": newest.token, "former": newest.former}))
        check(path, token)  # after `written` exists, see above
        _rename_record(written, path, token)
    finally:
        with contextlib.suppress(OSError):
            written.unlink()
    _remove_earlier(path, newest)
    if check(path, token).token != token:  # An earlier group has renamed its record over this one meanwhile.
        claim(path, token)


def check(path: Path, token: int) -> Record:
    """Returns the path's record. Raises LeaseLostError if a later group has committed there, or is about to."""
    record = _read(record_path(path))
    if record.excludes(token):
        raise LeaseLostError(
            f"cannot commit {path}: a later group of ranks writes there, with fencing token {record.token}, and this "
            f"rank's is {token}; end this process, which was replaced"
        )
    return record


def remove(path: Path) -> None:
    """Removes a file or a folder that nobody needs. Does nothing if that fails."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def _rename_record(written: Path, path: Path, token: int) -> None:
    record = record_path(path)
    try:
        written.rename(record)
    except FileNotFoundError:
        check(path, token)  # a later group has removed it
        raise
    except IsADirectoryError as error:
        raise IsADirectoryError(
            error.errno, f"cannot commit {path}: a folder is in the place of its record, {record}; remove that folder"
        ) from error


def _read(path: Path) -> Record:
    try:
        content = _content(path)
    except FileNotFoundError:
        return Record()
    try:
        found = json.loads(content)
        return Record(int(found["token"]), tuple(int(each) for each in found["former"]))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        log.warning("ignoring %s: it is not a record of commits", path)
        return Record()


def _content(path: Path) -> bytes:
    """Returns the bytes of a regular file, none of anything else: a pipe in its place blocks nobody. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        return os.read(descriptor, RECORD_BYTES_MAX) if is_file else b""
    finally:
        os.close(descriptor)


def _remove_earlier(path: Path, record: Record) -> None:
    """Takes the temporary paths of earlier groups from them, also those of processes that have died."""
    for name in os.listdir(path.parent):
        found = _TEMPORARY.fullmatch(name)
        if found is None or found[2] != path.name or not record.excludes(int(found[1], 16)):
            continue
        old = path.with_name(name)
        gone = path.with_name(f"{PREFIX}{secrets.token_hex(4)}-gone")
        with contextlib.suppress(FileNotFoundError):
            old.rename(gone)  # at once, also a folder with files
            remove(gone)
