"""How does the process that writes the files of a job's cycles work, the only one that a dead disk may block?

It gets one pipe for each worker, and messages about them, over a socket from the spawner (feeds.py). It outlives the
spawner, for a limited time, until all output is written.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
import sys
import time
from typing import NoReturn

from holdfast_wire.log_pieces import Loss

from worker_client.spawner.event_loop import READ, Events

from .backlog import Backlog, CycleFile
from .rank_lines import RankLines
from .uplink import Uplink

KEPT_BYTES = 8 * 1024 * 1024  # freed memory to keep; else the kernel would map and clear it for each piece
MESSAGE_BYTES_MAX = 32 * 1024
LATE_S = 1.0
LINGER_S = 10.0  # after the spawner's end, to write the rest
SWITCH_S = 0.0005  # switch interval between the reading and the writing thread


class LogProcess:
    """The log process. `link`: the spawner's socket. `run` returns once everything is written, or time is up."""

    def __init__(self, link: int) -> None:
        self._link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, link)
        self._events = Events()
        self._backlog: Backlog | None = None
        self._uplinks: dict[str, Uplink] = {}  # by the socket of the sender
        self._files: dict[int, CycleFile] = {}
        self._ways: dict[int, Backlog | Uplink] = {}
        self._streams: dict[int, int] = {}  # cycle -> number of pipes that have not ended
        self._over: set[int] = set()  # cycles that get no more pipes
        self._late: dict[int, tuple[CycleFile, Backlog | Uplink]] = {}  # all of the cycle is printed, not all written
        self._told_at_s: dict[int, float] = {}
        self._is_alone = False
        self._ended = False
        self._unwritten = 0

    def run(self) -> None:
        reader, self._wake = os.pipe()
        self._events.watch(reader, READ, lambda: self._on_wake(reader))
        self._events.watch(self._link.fileno(), READ, self._on_link)
        while not self._ended:
            self._events.run_once()

    # --- the spawner's words ---------------------------------------------------------------------------------------

    def _on_link(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._link, MESSAGE_BYTES_MAX, 1)
        except OSError:
            data, fds = b"", []
        if not data:
            self._go_on_alone()
            return
        match json.loads(data):
            case ["open", cycle, path, sender_socket, run_began_ms, prefix]:
                self._file(cycle, path, sender_socket, run_began_ms)
                self._open(cycle, prefix, fds[0])
            case ["over", cycle, path, sender_socket, run_began_ms]:
                self._over.add(cycle)
                self._file(cycle, path, sender_socket, run_began_ms)
                self._close_if_over(cycle)
            case _:
                pass

    def _open(self, cycle: int, prefix: str, fd: int) -> None:
        file, way = self._files[cycle], self._ways[cycle]
        self._streams[cycle] += 1
        lines = RankLines(prefix.encode())
        os.set_blocking(fd, False)
        self._events.watch(fd, READ, lambda: self._on_output(fd, file, lines, way))

    def _file(self, cycle: int, path: str, sender_socket: str, run_began_ms: int) -> None:
        if cycle not in self._files:
            file = self._files[cycle] = CycleFile(cycle, path, run_began_ms)
            way = self._ways[cycle] = self._way(sender_socket)
            self._streams[cycle] = 0
            self._unwritten += 1
            if isinstance(way, Backlog):
                way.begin(file)

    def _way(self, sender_socket: str) -> Backlog | Uplink:
        """Returns where output goes: to the node's sender to the log server, at `sender_socket`; "": to files here."""
        if sender_socket:
            if sender_socket not in self._uplinks:
                self._uplinks[sender_socket] = Uplink(self._events, sender_socket, self._tell_loss, self._on_closed)
            return self._uplinks[sender_socket]
        if self._backlog is None:
            self._backlog = Backlog(self._tell_loss, self._on_closed)
            self._backlog.start()
        return self._backlog

    def _go_on_alone(self) -> None:
        self._is_alone = True
        self._events.forget(self._link.fileno())
        self._over.update(self._files)
        for cycle in list(self._files):
            self._close_if_over(cycle)
        self._events.set_timer("linger", LINGER_S, self._end)
        self._end_if_done()

    # --- the workers' output ---------------------------------------------------------------------------------------

    def _on_output(self, fd: int, file: CycleFile, lines: RankLines, way: Backlog | Uplink) -> None:
        try:
            data = os.read(fd, way.read_bytes_max)
        except BlockingIOError:
            return
        parts = lines.feed(data) if data else lines.finish()
        if parts:
            way.put(file, parts)
        if not data:
            self._events.forget(fd)
            os.close(fd)
            self._streams[file.cycle] -= 1
            self._close_if_over(file.cycle)

    def _close_if_over(self, cycle: int) -> None:
        file = self._files.get(cycle)
        if file is not None and cycle in self._over and not self._streams[cycle]:
            del self._files[cycle], self._streams[cycle]
            way = self._ways.pop(cycle)
            self._late[cycle] = file, way
            self._events.set_timer("late", LATE_S, self._tell_late)
            way.close(file)

    def _tell_late(self) -> None:
        """Reports unwritten lines, since the spawner may not wait for the rest."""
        for file, way in list(self._late.values()):
            self._tell_of("late", file, way.late(file))
        if self._late:
            self._events.set_timer("late", LATE_S, self._tell_late)

    # --- told by the thread that writes, or by this one --------------------------------------------------------------

    def _tell_loss(self, file: CycleFile) -> None:
        """Reports a loss at once, then at most once a second, because a full disk refuses every write."""
        now_s = time.monotonic()
        if now_s - self._told_at_s.get(file.cycle, -1.0) >= 1.0:
            self._told_at_s[file.cycle] = now_s
            self._tell("loss", file)

    def _on_closed(self, file: CycleFile) -> None:
        self._late.pop(file.cycle, None)
        self._tell("closed", file)
        os.write(self._wake, b".")

    def _tell(self, word: str, file: CycleFile) -> None:
        self._tell_of(word, file, file.loss)

    def _tell_of(self, word: str, file: CycleFile, loss: Loss) -> None:
        message = [word, file.cycle, file.path, file.written_bytes, loss.lines, loss.dropped_bytes, loss.reason]
        with contextlib.suppress(OSError):  # The spawner no longer listens, or not now.
            self._link.send(json.dumps(message).encode(), socket.MSG_DONTWAIT)

    def _on_wake(self, reader: int) -> None:
        self._unwritten -= len(os.read(reader, 4096))
        self._end_if_done()

    def _end_if_done(self) -> None:
        if self._is_alone and not self._unwritten:
            self._end()

    def _end(self) -> None:
        self._ended = True


def serve(link: int) -> NoReturn:
    """Runs as this process until the end of the job, then exits."""
    sys.setswitchinterval(SWITCH_S)
    _keep_freed_memory()
    for number in (0, 1, 2):  # No reader must wait for these to close.
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, number)
        os.close(null)
    LogProcess(link).run()
    os._exit(0)


def _keep_freed_memory() -> None:
    """Keeps freed memory, if the C library can. Without it, a flood takes twice the time."""
    trim_threshold, mmap_threshold = -1, -3  # malloc.h
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(trim_threshold, KEPT_BYTES)
        libc.mallopt(mmap_threshold, KEPT_BYTES)
