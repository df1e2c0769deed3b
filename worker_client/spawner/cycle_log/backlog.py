"""How do lines reach the files of their cycles while a disk is slow, full or silent, and how much waits?

One thread writes; the caller only puts lines into a limited backlog. Lines that do not fit, or that the disk refuses,
are lost as a whole, counted, and noted in the file at that place.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from holdfast_wire.log_pieces import Loss, note
from holdfast_wire.moved_log_file import GONE, LOOK_S, leave_if_moved
from holdfast_wire.run_mark import mark_if_of_earlier_run

from worker_client.spawner.output_targets import open_log

from .rank_lines import Parts

BACKLOG_BYTES_MAX = 64 * 1024 * 1024
PART_BYTES = 512  # memory that a few lines take besides their own bytes
WRITE_BYTES = 4 * 1024 * 1024  # at once
WRITE_PARTS_MAX = 1000  # IOV_MAX is 1024
OUTPUT_BYTES = 256 * 1024  # taken from a worker at once
GATHER_BYTES = 1024 * 1024  # written at once if they arrive ...
GATHER_S = 0.005  # ... within this time: each turn of the other thread costs as much as a few pages
RETRY_S = 1.0  # between two attempts to open a file that can't be opened
SLOW = "the disk took them too slowly"

_REMEDIES = {errno.ENOSPC: "; free space on that disk", errno.EDQUOT: "; free space on that disk"}


class CycleFile:
    """The file of one cycle. `written_bytes` and `loss` are this process's."""

    def __init__(self, cycle: int, path: str, run_began_ms: int = 0) -> None:
        """`run_began_ms`: when this run of the job began, in Unix time; 0: unknown."""
        self.cycle = cycle
        self.path = path
        self.run_began_ms = run_began_ms
        self.written_bytes = 0
        self.loss = Loss()
        self.gap = Loss()  # what did not fit, to be noted before the next line that does
        self.refused = Loss()  # refused by the disk since the last line that it took
        self.fd = -1
        self.is_torn = False  # its last line is incomplete
        self.trouble = ""  # why it could not be opened or written last
        self.retry_at_s = 0.0
        self.look_at_s = 0.0


class Backlog:
    """The lines that wait for the disk."""

    def __init__(self, on_loss: Callable[[CycleFile], None], on_closed: Callable[[CycleFile], None]) -> None:
        """The caller of `put` or the writing thread calls both callbacks."""
        self._on_loss = on_loss
        self._on_closed = on_closed
        self._waiting: deque[tuple[CycleFile, Parts, int]] = deque()
        self._writing: tuple[CycleFile | None, Sequence[bytes | memoryview]] = None, ()
        self._bytes = 0
        self._is_full = False
        self._changed = threading.Condition()

    def start(self) -> None:
        threading.Thread(target=self._write_all, name="cycle log", daemon=True).start()

    @property
    def read_bytes_max(self) -> int:
        return OUTPUT_BYTES

    def begin(self, file: CycleFile) -> None:
        """Says in a file of an earlier run where this run begins, before anything is printed."""
        with self._changed:
            self._waiting.append((file, (b"",), 0))
            self._changed.notify()

    def put(self, file: CycleFile, parts: Parts) -> None:
        """Adds whole lines. Never waits for a disk."""
        size = sum(map(len, parts)) + PART_BYTES
        with self._changed:
            if self._bytes + size > BACKLOG_BYTES_MAX or (self._is_full and self._bytes > BACKLOG_BYTES_MAX // 2):
                self._is_full = True
                file.gap = self._lose(file, file.gap, parts, SLOW)
                return
            self._is_full = False
            if file.gap.lines:
                parts, file.gap = (note(file.gap), *parts), Loss()
            self._waiting.append((file, parts, size))
            before, self._bytes = self._bytes, self._bytes + size
            if not before or before < GATHER_BYTES <= self._bytes:
                self._changed.notify()

    def close(self, file: CycleFile) -> None:
        """Ends this file; calls `on_closed` once all waiting lines are written."""
        with self._changed:
            if file.gap.lines:
                self._waiting.append((file, (note(file.gap),), 0))
            self._waiting.append((file, (), 0))
            self._changed.notify()

    def late(self, file: CycleFile) -> Loss:
        """Returns what is not written yet, and why."""
        with self._changed:
            parts = [part for of, parts, _ in self._waiting if of is file for part in parts]
            parts += self._writing[1] if self._writing[0] is file else ()
            reason = file.trouble or SLOW
        return Loss(sum(bytes(part).count(b"\n") for part in parts), sum(map(len, parts)), reason)

    def _write_all(self) -> None:
        while True:
            file, parts, size = self._take()
            if parts:
                self._write(file, parts)
                with self._changed:
                    self._bytes -= size
                    self._writing = None, ()
            else:
                self._finish(file)

    def _take(self) -> tuple[CycleFile, list[bytes | memoryview], int]:
        """Returns the next parts of one file; none: it must be closed."""
        with self._changed:
            while not self._waiting:
                self._changed.wait()
            if 0 < self._bytes < GATHER_BYTES and len(self._waiting) < 2:
                self._changed.wait(GATHER_S)
            file = self._waiting[0][0]
            parts: list[bytes | memoryview] = []
            size = 0
            while self._waiting and self._waiting[0][0] is file:
                _, more, more_bytes = self._waiting[0]
                if parts and (not more or size + more_bytes > WRITE_BYTES or len(parts) + len(more) > WRITE_PARTS_MAX):
                    break
                self._waiting.popleft()
                parts += more
                size += more_bytes
                if not more:
                    break
            self._writing = file, parts
            return file, parts, size

    def _write(self, file: CycleFile, parts: list[bytes | memoryview]) -> None:
        is_gone = self._leave_if_gone(file)
        before = (GONE if is_gone else b"\n" * file.is_torn) + note(file.refused)
        everything = [before, *parts] if before else parts
        size, done = sum(map(len, everything)), 0
        if not size:
            self._begin(file)
            return
        try:
            if file.fd < 0:
                self._open(file)
            while done < size:
                done += os.writev(file.fd, _from(everything, done) if done else everything)
        except OSError as error:
            if done:
                file.is_torn = not _ends_line(everything, done)
            file.written_bytes += done
            left = _from(parts, max(0, done - len(before)))
            file.trouble = f"{error.strerror}{_REMEDIES.get(error.errno or 0, '')}"
            with self._changed:
                file.refused = self._lose(file, file.refused, tuple(left), file.trouble)
            return
        file.refused, file.is_torn = Loss(), False
        file.written_bytes += size

    def _begin(self, file: CycleFile) -> None:
        if file.fd < 0 and os.path.lexists(file.path):
            try:
                self._open(file)
            except OSError:
                file.retry_at_s = 0.0  # The first line tries again, and says why it is lost.

    def _leave_if_gone(self, file: CycleFile) -> bool:
        now_s = time.monotonic()
        if file.fd < 0 or now_s < file.look_at_s:
            return False
        file.look_at_s = now_s + LOOK_S
        if not leave_if_moved(file.fd, file.path):
            return False
        file.fd = -1
        return True

    def _open(self, file: CycleFile) -> None:
        now_s = time.monotonic()
        if now_s < file.retry_at_s:
            raise OSError(0, file.trouble)
        try:
            file.fd = open_log(file.path, os.O_APPEND)
            file.look_at_s = now_s + LOOK_S
            mark_if_of_earlier_run(file.fd, file.run_began_ms)
        except OSError:
            self._close(file)
            file.retry_at_s = now_s + RETRY_S
            raise

    def _finish(self, file: CycleFile) -> None:
        if file.refused.lines or file.fd < 0:
            self._write(file, [])
        self._close(file)
        self._on_closed(file)

    def _close(self, file: CycleFile) -> None:
        if file.fd >= 0:
            with contextlib.suppress(OSError):
                os.close(file.fd)
            file.fd = -1

    def _lose(self, file: CycleFile, known: Loss, parts: Parts, reason: str) -> Loss:
        """Returns `known` plus these lines, and adds them to the file's loss, too."""
        lines, size = sum(bytes(part).count(b"\n") for part in parts), sum(map(len, parts))
        file.loss = Loss(file.loss.lines + lines, file.loss.dropped_bytes + size, reason)
        self._on_loss(file)
        return Loss(known.lines + lines, known.dropped_bytes + size, reason)


def _from(parts: list[bytes | memoryview], done: int) -> list[bytes | memoryview]:
    """Returns the rest of the parts after `done` bytes."""
    left: list[bytes | memoryview] = []
    for part in parts:
        if done >= len(part):
            done -= len(part)
        elif done:
            left.append(memoryview(part)[done:])
            done = 0
        else:
            left.append(part)
    return left


def _ends_line(parts: list[bytes | memoryview], done: int) -> bool:
    for part in parts:
        if done <= len(part):
            return part[done - 1 : done] == b"\n"
        done -= len(part)
    return True
