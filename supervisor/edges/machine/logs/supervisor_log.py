"""Where do the supervisor's own words go: a line on stderr for people, and a file for each job.

One thread writes both, so a full pipe or a file server that hangs never delays the event loop.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import QueueHandler, RotatingFileHandler
from pathlib import Path
from queue import SimpleQueue
from typing import TextIO

from supervisor.config.redaction import redacted_text
from supervisor.core.event_weights import Weight, weight
from supervisor.core.printable import lines, one_line
from supervisor.core.terminal_sentences import terminal_sentence
from supervisor.edges.machine.logs import journald
from supervisor.edges.machine.logs.journald import JournaldHandler
from supervisor.edges.machine.own_process import standard_streams
from supervisor.edges.machine.own_process.writer_thread import QueueWriter
from supervisor.errors import ExhaustedError

NAME = "holdfast"  # the root of all our loggers
FILE_NAME = "supervisor.log"
FILE_BYTES_MAX = 4 << 20  # then the file becomes supervisor.log.1
FILES_KEPT = 2  # supervisor.log and supervisor.log.1
OPEN_FILES_MAX = 32
WAITING_RECORDS_MAX = 10_000  # beyond it records are dropped and counted
WRITTEN_MAX = 100  # records together
LINGER_S = 0.01  # for more of them: less than a restart takes, so that a fault is told before the next cycle's output
CLOSE_TIMEOUT_S = 2.0
IDS = ("job_id", "cycle", "rank")  # `extra` of a record


class SupervisorLog:
    """Handles all loggers below "holdfast" between `open` and `close`."""

    def __init__(
        self,
        log_dir: Path,
        *,
        level: int = logging.INFO,
        stream: TextIO | None = None,
        names_jobs: bool = True,
        others: Sequence[logging.Handler] = (),
    ) -> None:
        """`names_jobs`: lines for people name their job; False if there is only one job.

        `others` get each record, too, in the log's thread; one that blocks holds up the log.
        """
        self._writer = QueueWriter(
            "log",
            write=self._write_all,
            waiting_max=WAITING_RECORDS_MAX,
            together_max=WRITTEN_MAX,
            linger_s=LINGER_S,
            end=self._end,
        )
        self._entrance = _Entrance(self._writer)
        self._files = _JobFiles(log_dir)
        self._people = _People(stream)
        self._people.setFormatter(_ForPeople(IDS if names_jobs else ()))
        self._people.setLevel(level)
        self._others = tuple(others)
        if stream is None and journald.is_stderr():
            # Instead of lines on stderr, which the journal would get as well, without the job and the rank.
            self._people.setLevel(logging.CRITICAL + 1)
            self._others += (JournaldHandler(),)

    def open(self) -> None:
        """Starts the log. From now on, logging never blocks. Raises ExhaustedError without a thread."""
        try:
            self._writer.start()
        except OSError as error:
            raise ExhaustedError(f"cannot start: {error}") from error
        logger = logging.getLogger(NAME)
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
        logger.addHandler(self._entrance)

    def close(self) -> None:
        """Writes the waiting records; gives up after two seconds if stderr or the disk hangs."""
        logging.getLogger(NAME).removeHandler(self._entrance)
        self._writer.close(CLOSE_TIMEOUT_S)

    def _write_all(self, waiting: list[logging.LogRecord]) -> None:
        for record in waiting:
            for handler in (self._people, self._files, *self._others):
                if record.levelno >= handler.level:
                    with contextlib.suppress(OSError, ValueError):  # a file that can't even be closed, on a full disk
                        handler.handle(record)
        if self._writer.is_empty:
            self._tell_loss()

    def _end(self) -> None:
        self._tell_loss()
        self._files.close()

    def _tell_loss(self) -> None:
        self._people.lost += self._entrance.take_loss()
        self._people.tell_loss()


class _Entrance(QueueHandler):
    """Queues records. Never blocks and never raises."""

    def __init__(self, writer: QueueWriter[logging.LogRecord]) -> None:
        super().__init__(SimpleQueue())  # It is not used.
        self._writer = writer
        self.dropped = 0

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Formats the record, with its traceback, and leaves out secrets: one place for all that read the log."""
        prepared = super().prepare(record)
        prepared.msg = prepared.message = redacted_text(prepared.message)
        return prepared

    def enqueue(self, record: logging.LogRecord) -> None:
        if not self._writer.put(record):
            self.dropped += 1

    def handleError(self, record: logging.LogRecord) -> None:
        """Counts a record that can't be formatted as lost: printing the traceback could block the event loop."""
        del record
        self.dropped += 1

    def take_loss(self) -> int:
        dropped, self.dropped = self.dropped, 0
        return dropped


class _People(logging.Handler):
    """Writes to stderr. While stderr blocks, lines are dropped and counted, and nothing waits for it."""

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__()
        self._stream = stream or sys.stderr
        self._is_stuck = False
        self.lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        self._write(self.format(record))

    def tell_loss(self) -> None:
        """Reports lost lines once stderr takes lines again."""
        if self.lost and not self._is_stuck:
            lost, self.lost = self.lost, 0
            self._write(f"{NAME}: warning: {lost} lines of this log were dropped: stderr or the disk was too slow")

    def _write(self, line: str) -> None:
        # Each line checks whether a stuck stderr takes output again, without waiting for it.
        wait_s = 0.0 if self._is_stuck else CLOSE_TIMEOUT_S / 4
        self._is_stuck = not standard_streams.write(self._stream, f"{line}\n", wait_s=wait_s)
        self.lost += self._is_stuck


class _ForPeople(logging.Formatter):
    """Formats one line each: "holdfast: job train cycle 2 rank 1: rank 1 (pid 812) was killed by SIGKILL"."""

    def __init__(self, ids: tuple[str, ...]) -> None:
        super().__init__()
        self._ids = ids
        self._before: tuple[object, str] = (None, "")  # job, sentence

    def format(self, record: logging.LogRecord) -> str:
        ids = [
            f"{name.removesuffix('_id')} {value}"
            for name in self._ids
            if (value := getattr(record, name, None)) is not None
        ]
        where = f"{' '.join(ids)}: " if ids else ""
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        job, text = getattr(record, "job_id", None), one_line(" ".join(record.getMessage().split()))
        before = self._before[1] if job == self._before[0] else ""
        told = terminal_sentence(text, before, is_loss=weight(getattr(record, "kind", "")) is Weight.LOSS)
        self._before = (job, text)
        return f"{NAME}: {level}{where}{told}"


class _ForFiles(logging.Formatter):
    """Adds the time in UTC, the level and the constant name of the event; indents further lines."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        known = [f"{name}={value}" for name in (*IDS[1:], "kind") if (value := getattr(record, name, None)) is not None]
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return " ".join([at, record.levelname, *known, lines(text).replace("\n", "\n    ")])


class _JobFiles(logging.Handler):
    """Writes records that name a job to <log_dir>/<job_id>/<run>/supervisor.log; without a run, one folder up."""

    def __init__(self, log_dir: Path) -> None:
        super().__init__()
        self._log_dir = log_dir
        self._open: OrderedDict[str, RotatingFileHandler] = OrderedDict()
        self._has_failed = False

    def emit(self, record: logging.LogRecord) -> None:
        job_id, run = getattr(record, "job_id", None), getattr(record, "run", None)
        if not job_id:
            return
        try:
            self._file_of(f"{job_id}/{run}" if run else str(job_id)).emit(record)
        except OSError as error:
            self._tell_once(error)

    def close(self) -> None:
        for handler in self._open.values():
            with contextlib.suppress(OSError):  # data that waits for a full disk
                handler.close()
        self._open.clear()
        super().close()

    def _file_of(self, run: str) -> RotatingFileHandler:
        if run not in self._open:
            while len(self._open) >= OPEN_FILES_MAX:
                with contextlib.suppress(OSError):
                    self._open.popitem(last=False)[1].close()
            folder = self._log_dir / run
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._open[run] = _PrivateFile(folder / FILE_NAME, self._tell_once)
        self._open.move_to_end(run)
        return self._open[run]

    def _tell_once(self, error: BaseException) -> None:
        if not self._has_failed:
            self._has_failed = True
            standard_streams.say(f"{NAME}: warning: cannot write {FILE_NAME} below {self._log_dir}: {error}")


class _PrivateFile(RotatingFileHandler):
    """A file that only its user can read; it never follows a link in its place."""

    def __init__(self, path: Path, tell_once: Callable[[BaseException], None]) -> None:
        self._tell_once = tell_once
        super().__init__(path, maxBytes=FILE_BYTES_MAX, backupCount=FILES_KEPT - 1, encoding="utf-8", delay=True)
        self.setFormatter(_ForFiles())

    def _open(self) -> TextIOWrapper:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.baseFilename, flags, 0o600)
        return os.fdopen(descriptor, "a", encoding="utf-8", errors="backslashreplace")

    def handleError(self, record: logging.LogRecord) -> None:
        """Handles an error of the handler. Called by `emit`."""
        del record
        error = sys.exc_info()[1]
        if error is not None:
            self._tell_once(error)
