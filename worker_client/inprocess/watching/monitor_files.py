"""Where do a rank's monitor log and its supervisor's pid go, if the script has asked for files?"""

from __future__ import annotations

import logging
import os
from pathlib import Path

FILE_MODE = 0o600
LEVEL = logging.INFO  # of the file, whatever the script shows elsewhere

log = logging.getLogger("holdfast.inprocess")


class MonitorFiles:
    """In use from `open()` to `close()`. A file that can't be written is a warning, not a fault of the training."""

    def __init__(self, logfile: str | None, pidfile: str | None, *, initial_rank: int) -> None:
        """`{rank}` in a path stands for the initial rank. None: no such file."""
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
        """Idempotent."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def supervised_by(self, pid: int) -> None:
        """Notes the process that supervises this rank from now on; 0 if it is not known."""
        if not pid or pid == self._supervisor_pid:
            return
        self._supervisor_pid = pid
        log.info("rank %d: pid %d is supervised by pid %d", self._rank, os.getpid(), pid)
        if self._pidfile is not None:
            try:
                _write(self._pidfile, f"{pid}\n")
            except OSError as error:
                log.warning("cannot write monitor_process_pidfile: %s", error)


class _LogFile(logging.Filter):
    """The logger's records from LEVEL on, without showing any of them elsewhere that would not be shown anyway."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        path.touch(FILE_MODE)
        self._handler = logging.FileHandler(path)
        self._handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        self._level_before = log.level
        self._is_lowered = log.getEffectiveLevel() > LEVEL
        if self._is_lowered:
            log.setLevel(LEVEL)
        log.addFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns whether the record is shown elsewhere."""
        if record.levelno >= LEVEL:
            self._handler.handle(record)
        if not self._is_lowered or log.level != LEVEL:
            return True
        shown_from = self._level_before or (log.parent.getEffectiveLevel() if log.parent else 0)
        return record.levelno >= shown_from

    def close(self) -> None:
        log.removeFilter(self)
        if self._is_lowered and log.level == LEVEL:
            log.setLevel(self._level_before)
        self._handler.close()


def _write(path: Path, text: str) -> None:
    """Writes the whole file or nothing: another rank may write the same one, and a script may wait for it."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
    unfinished.replace(path)


def _named(path: str | None, initial_rank: int) -> Path | None:
    return None if path is None else Path(os.fspath(path).replace("{rank}", str(initial_rank)))
