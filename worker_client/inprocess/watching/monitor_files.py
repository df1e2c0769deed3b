"""Where do a rank's monitor log and its supervisor's pid go, if the script has asked for files?"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, cast

from worker_client.guarded_log import GuardedLog, LineWriter

if TYPE_CHECKING:
    from collections.abc import Callable

FILE_MODE = 0o600
LEVEL = logging.INFO  # for the file, whatever the script shows elsewhere

log = GuardedLog("holdfast.inprocess")


class MonitorFiles:
    """In use from `open()` to `close()`. A file that can't be written is a warning, not a fault of the training.

    Each file has a thread for all that a dead disk may hold up; it is waited for as briefly as a line of the log.
    """

    def __init__(self, logfile: str | None, pidfile: str | None, *, initial_rank: int) -> None:
        """`{rank}` in a path stands for the initial rank. None: no file."""
        self._rank = initial_rank
        self._logfile = _named(logfile, initial_rank)
        self._pidfile = _named(pidfile, initial_rank)
        self._pid_writer = LineWriter()
        self._supervisor_pid = 0
        self._log: _LogFile | None = None

    def open(self) -> None:
        if self._logfile is not None:
            self._log = _LogFile(self._logfile)

    def close(self) -> None:
        """Closes the files. Idempotent."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def supervised_by(self, pid: int) -> None:
        """Records the pid of the process that supervises this rank from now on; 0: unknown."""
        if not pid or pid == self._supervisor_pid:
            return
        self._supervisor_pid = pid
        log.info("rank %d: pid %d is supervised by pid %d", self._rank, os.getpid(), pid)
        if (pidfile := self._pidfile) is not None:
            self._pid_writer.write(lambda: _write_pid(pidfile, pid))


class _Tapped(logging.Logger):
    """Also passes its records from LEVEL up to a file, whatever the script has configured or disabled.

    `dictConfig()` and `fileConfig()` disable each logger that they do not name, usually including ours.
    """

    tap: Callable[[logging.LogRecord], None]

    def isEnabledFor(self, level: int) -> bool:  # logging's name
        return level >= LEVEL or super().isEnabledFor(level)

    def handle(self, record: logging.LogRecord) -> None:
        if record.levelno >= LEVEL:
            self.tap(record)
        if super().isEnabledFor(record.levelno):
            super().handle(record)


class _LogFile:
    """Writes the logger's records from LEVEL up to a file, without showing more of them elsewhere.

    It is not a handler: at the end of the process, logging waits for each of them.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor: int | None = None
        self._is_failing = False
        self._format = logging.Formatter("%(asctime)s %(levelname)s %(message)s").format
        self._writer = LineWriter()
        self._writer.write(lambda: self._open(path))
        self._kind_before = type(log.logger)
        # All modules use the process's one logger, so the object stays and its class changes.
        kind = cast("type[_Tapped]", type(_Tapped.__name__, (_Tapped, self._kind_before), {"tap": self._take}))
        log.logger.__class__ = kind

    def close(self) -> None:
        """Closes the file after the lines that it was given."""
        log.logger.__class__ = self._kind_before
        self._writer.write(self._close)

    def _take(self, record: logging.LogRecord) -> None:
        line = f"{self._format(record)}\n".encode(errors="backslashreplace")
        self._writer.write(lambda: self._append(line))

    # --- in the writer's thread ---

    def _open(self, path: Path) -> None:
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, FILE_MODE)
        except OSError as error:
            self._fail(error)

    def _append(self, line: bytes) -> None:
        if self._descriptor is None:
            return
        try:
            os.write(self._descriptor, line)
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        if not self._is_failing:
            self._is_failing = True
            log.warning("cannot write monitor_process_logfile: %s", error)

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _write_pid(path: Path, pid: int) -> None:
    """Writes the whole file or nothing, because another rank may write it too, and a script may wait for it."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(unfinished, flags, FILE_MODE)
        try:
            os.write(descriptor, f"{pid}\n".encode())
        finally:
            os.close(descriptor)
        unfinished.replace(path)
    except OSError as error:
        log.warning("cannot write monitor_process_pidfile: %s", error)


def _named(path: str | None, initial_rank: int) -> Path | None:
    return None if path is None else Path(os.fspath(path).replace("{rank}", str(initial_rank)))
