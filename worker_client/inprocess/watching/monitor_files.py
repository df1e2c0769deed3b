"""Where do a rank's monitor log and its supervisor's pid go, if the script has asked for files?"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import cast

from worker_client.guarded_log import GuardedLog

FILE_MODE = 0o600
LEVEL = logging.INFO  # for the file, whatever the script shows elsewhere

log = GuardedLog("holdfast.inprocess")


class MonitorFiles:
    """In use from `open()` to `close()`. A file that can't be written is a warning, not a fault of the training."""

    def __init__(self, logfile: str | None, pidfile: str | None, *, initial_rank: int) -> None:
        """`{rank}` in a path stands for the initial rank. None: no file."""
        self._rank = initial_rank
        self._logfile = _named(logfile, initial_rank)
        self._pidfile = _named(pidfile, initial_rank)
        self._supervisor_pid = 0
        self._log: _LogFile | None = None

    def open(self) -> None:
        if self._logfile is not None:
            try:
                self._log = _LogFile(self._logfile)
            except OSError as error:
                log.warning("cannot write monitor_process_logfile: %s", error)

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
        if self._pidfile is not None:
            try:
                _write(self._pidfile, f"{pid}\n")
            except OSError as error:
                log.warning("cannot write monitor_process_pidfile: %s", error)


class _Tapped(logging.Logger):
    """Also passes its records from LEVEL up to a file, whatever the script has configured or disabled.

    `dictConfig()` and `fileConfig()` disable each logger that they do not name, usually including ours.
    """

    tap: logging.Handler

    def isEnabledFor(self, level: int) -> bool:  # logging's name
        return level >= LEVEL or super().isEnabledFor(level)

    def handle(self, record: logging.LogRecord) -> None:
        if record.levelno >= LEVEL:
            self.tap.handle(record)
        if super().isEnabledFor(record.levelno):
            super().handle(record)


class _LogFile:
    """Writes the logger's records from LEVEL up to a file, without showing more of them elsewhere."""

    def __init__(self, path: Path) -> None:
        path.touch(FILE_MODE)
        self._handler = logging.FileHandler(path)
        self._handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        self._kind_before = type(log.logger)
        # All modules use the process's one logger, so the object stays and its class changes.
        kind = cast("type[_Tapped]", type(_Tapped.__name__, (_Tapped, self._kind_before), {"tap": self._handler}))
        log.logger.__class__ = kind

    def close(self) -> None:
        log.logger.__class__ = self._kind_before
        self._handler.close()


def _write(path: Path, text: str) -> None:
    """Writes the whole file or nothing, because another rank may write it too, and a script may wait for it."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
    unfinished.replace(path)


def _named(path: str | None, initial_rank: int) -> Path | None:
    return None if path is None else Path(os.fspath(path).replace("{rank}", str(initial_rank)))
