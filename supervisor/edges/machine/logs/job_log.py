"""How do the supervisor's words about a job reach a file that the user named (--ft-nvrx-logfile)?

A thread writes them: the file may be on a file server that does not answer, and neither the supervisor nor its other
log waits for it. Several nodes may append to one file; each line names its node. A job with a log server has one writer
for all nodes, which gets the words through job_log_uplink.py.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from holdfast_wire.moved_log_file import GONE, OPEN_AGAIN, MovedFiles

from supervisor.config.redaction import redacted_text
from supervisor.edges.machine.clock import Clock
from supervisor.edges.machine.own_process.writer_thread import QueueWriter

if TYPE_CHECKING:
    from supervisor.edges.machine.logs.job_log_uplink import JobLogUplink

NAME = "holdfast"  # the root of all our loggers
WAITING_MAX = 10_000  # beyond it lines are dropped and counted
TOGETHER_MAX = 1000  # written at once
CLOSE_TIMEOUT_S = 2.0
OPEN_FILES_MAX = 32


class JobLogPlace(NamedTuple):
    """Where the words about a job go. `path` "": to no file."""

    path: str = ""
    sender_socket: str = ""  # this node's sender to the job's log server; "": this process writes the file
    run: int = 0  # tells a job from later ones with the same id


class JobLog(logging.Handler):
    """Handles all loggers below "holdfast" from `open` to `close`. The first line starts the thread."""

    def __init__(self, place_of: Callable[[str], JobLogPlace], node_name: str) -> None:
        """`place_of` returns the place for a job's id."""
        super().__init__()
        self._place_of = place_of
        self._node_name = node_name
        self._writer = QueueWriter(
            "job words",
            write=self._write_all,
            waiting_max=WAITING_MAX,
            together_max=TOGETHER_MAX,
            end=self._close_files,
        )
        self._files: dict[str, int] = {}
        self._moved_files = MovedFiles()
        self._dropped = 0
        self._failed: set[str] = set()
        self._uplinks: dict[str, JobLogUplink] = {}  # by job id, ended jobs included

    def open(self) -> None:
        logging.getLogger(NAME).addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Queues the line. Neither blocks nor raises."""
        job_id = getattr(record, "job_id", None)
        place = self._place_of(str(job_id)) if job_id else JobLogPlace()
        if not place.path:
            return
        try:
            if place.sender_socket:
                self._uplink(str(job_id), place).say(_encoded(self._line(record)))
            elif not self._writer.put((place.path, self._line(record))):
                self._dropped += 1
        except OSError:
            self._dropped += 1  # No thread or descriptor is left; the next line tries again.

    def finish(self, job_id: str) -> None:
        """Stops sending words about a job whose sender is about to end to its log server."""
        if (uplink := self._uplinks.get(job_id)) is not None:
            uplink.finish()

    def close(self) -> None:
        """Writes the waiting lines; gives up after two seconds."""
        logging.getLogger(NAME).removeHandler(self)
        for uplink in self._uplinks.values():
            uplink.finish()
        for uplink in self._uplinks.values():
            uplink.join(CLOSE_TIMEOUT_S)
        self._writer.close(CLOSE_TIMEOUT_S)
        super().close()

    def _uplink(self, job_id: str, place: JobLogPlace) -> JobLogUplink:
        uplink = self._uplinks.get(job_id)
        if uplink is None or uplink.run != place.run:
            from supervisor.edges.machine.logs.job_log_uplink import JobLogUplink  # Late: few jobs have a log server.

            uplink = self._uplinks[job_id] = JobLogUplink(place.sender_socket, place.run)
        return uplink

    def _line(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        ids = [f"{name}={value}" for name in ("cycle", "rank") if (value := getattr(record, name, None)) is not None]
        words = [
            at,
            self._node_name,
            record.levelname,
            *ids,
            redacted_text(record.getMessage()).replace("\n", "\n    "),
        ]
        return f"{' '.join(words)}\n"

    def _write_all(self, waiting: list[tuple[str, str]]) -> None:
        lines: dict[str, list[str]] = {}
        for path, line in waiting:
            lines.setdefault(path, []).append(line)
        for path, texts in lines.items():
            self._append(path, texts)

    def _close_files(self) -> None:
        for fd in self._files.values():
            os.close(fd)

    def _append(self, path: str, texts: list[str]) -> None:
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            texts.insert(0, f"{dropped} lines were dropped: the disk was too slow\n")
        data = _encoded("".join(texts))
        try:
            fd = self._files.get(path)
            if fd is not None and self._moved_files.leave(fd, path, now_s=Clock().now_s()):
                del self._files[path]
                data = GONE + data
            fd = self._fd_of(path)
            while data:
                data = data[os.write(fd, data) :]
        except OSError as error:
            if error.errno in OPEN_AGAIN and (stale := self._files.pop(path, None)) is not None:
                with suppress(OSError):
                    os.close(stale)
            if path not in self._failed:
                self._failed.add(path)
                logging.getLogger(NAME).warning("cannot write %s: %s; check --ft-nvrx-logfile", path, error.strerror)

    def _fd_of(self, path: str) -> int:
        if path not in self._files:
            while len(self._files) >= OPEN_FILES_MAX:
                os.close(self._files.pop(next(iter(self._files))))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            self._files[path] = os.open(path, flags, 0o666)
        return self._files[path]


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")
