"""How do the supervisor's words about a job reach the job's log server through this node's sender?

A thread sends them, with --ft-enable-log-server. It keeps words until the server has written them, and sends them again
over each new connection, so the sender and the servers may die. Words that do not fit are counted, and the file says so
at that place.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
from collections import deque

from holdfast_wire import framing, log_door
from holdfast_wire.log_door import DoorPiece, DoorReceipt, DoorTrouble

from supervisor.edges.machine.clock import Clock
from supervisor.edges.machine.own_process import threads

WORDS_FILE = 0  # the number of the file; see supervisor/core/log_funnel/pieces.py
KEPT_BYTES_MAX = 1024 * 1024
LINE_BYTES = 100  # overhead of a line in memory
LINE_BYTES_MAX = 64 * 1024  # longer lines are cut
READ_BYTES = 4096
AGAIN_FIRST_S, AGAIN_MOST_S = 0.05, 1.0
ENDS_IN_S = 10.0  # before its sender ends
AWAY = "the log server could not be reached"
SLOW = "the log server took them too slowly"

_clock = Clock()


class WordsUplink:
    """Sends the words about one run of a job. `run` tells it from later runs with the same id."""

    def __init__(self, door: str, run: int = 0) -> None:
        """`door`: the socket of the sender."""
        self.run = run
        self._door = door
        self._stream = int.from_bytes(os.urandom(8), "big")
        self._lock = threading.Lock()  # guards the attributes below
        self._said: list[bytes] = []  # not yet in a chunk
        self._chunks: deque[tuple[int, bytes]] = deque()  # position and lines, not acknowledged yet
        self._bytes = 0
        self._end = 0
        self._lost = 0  # lines lost since the last one that was kept
        self._ends_at_s = 0.0  # 0.0: more may come
        self._is_told = False  # everything is acknowledged
        self._sent_chunks = 0  # how many were sent over the current connection
        self._told_end = False
        self._trouble = AWAY
        self._again_s = AGAIN_FIRST_S
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._carry, name="job words uplink", daemon=True)
        try:
            threads.start(self._thread)
        except OSError:
            os.close(self._wake)
            raise

    def say(self, line: bytes) -> None:
        """Queues one line with its end. Never waits."""
        if len(line) > LINE_BYTES_MAX:
            line = line[:LINE_BYTES_MAX].decode("utf-8", "ignore").encode() + b"\n"
        with self._lock:
            if self._ends_at_s:
                return  # The sender is ending. The line is in the job's own supervisor.log.
            if self._bytes + len(line) + LINE_BYTES > KEPT_BYTES_MAX:
                self._lost += 1
                return
            self._note_lost()
            self._keep(line)
            self._ring()

    def finish(self) -> None:
        """Ends the input. The thread ends once everything is written, or ten seconds later."""
        with self._lock:
            if self._ends_at_s:
                return
            self._note_lost()
            self._ends_at_s = _clock.now_s() + ENDS_IN_S
            self._ring()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    # --- what waits --------------------------------------------------------------------------------------------------

    def _note_lost(self) -> None:
        if self._lost:
            self._keep(f"{self._lost} lines were dropped: {self._trouble or SLOW}\n".encode())
            self._lost = 0

    def _keep(self, line: bytes) -> None:
        self._said.append(line)
        self._bytes += len(line) + LINE_BYTES

    def _gather(self) -> None:
        """Moves queued lines into chunks that can be sent."""
        lines: list[bytes] = []
        size = 0
        for line in [*self._said, b""]:
            if lines and (size + len(line) > log_door.PIECE_BYTES or not line):
                self._chunks.append((self._end, b"".join(lines)))
                self._end += size
                self._bytes -= LINE_BYTES * (len(lines) - 1)
                lines, size = [], 0
            lines.append(line)
            size += len(line)
        self._said.clear()

    def _frames(self) -> bytes:
        """Returns everything not yet sent over this connection."""
        with self._lock:
            self._gather()
            base = self._chunks[0][0] if self._chunks else self._end
            pieces = [
                DoorPiece(self._stream, WORDS_FILE, base, position, False, lines)
                for position, lines in list(self._chunks)[self._sent_chunks :]
            ]
            self._sent_chunks = len(self._chunks)
            if self._ends_at_s and not self._told_end:
                self._told_end = True
                pieces.append(DoorPiece(self._stream, WORDS_FILE, base, self._end, True, b""))
        return b"".join(_frame(each) for each in pieces)

    # --- the thread --------------------------------------------------------------------------------------------------

    def _carry(self) -> None:
        try:
            while not self._is_told and self._left_s() != 0.0:
                with contextlib.suppress(OSError, ValueError), socket.socket(socket.AF_UNIX) as link:
                    link.setblocking(False)
                    link.connect(self._door)  # It connects or fails at once, even if the sender does not accept yet.
                    self._sent_chunks, self._told_end = 0, False
                    self._converse(link)
                if not self._is_told and self._left_s() != 0.0:
                    self._trouble = AWAY
                    self._pause()
        finally:
            self._tell_missing()

    def _converse(self, link: socket.socket) -> None:
        """Sends until all is written, the time is up or the connection is lost. Raises OSError and ValueError."""
        decoder = framing.Decoder(frame_bytes_max=log_door.FRAME_BYTES_MAX)
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        outgoing = b""
        while not self._is_told and (left_s := self._left_s()) != 0.0:
            outgoing = outgoing or self._frames()
            if outgoing:
                with contextlib.suppress(BlockingIOError):
                    outgoing = outgoing[link.send(outgoing, socket.MSG_NOSIGNAL) :]
                    if not outgoing:
                        continue
            poll.register(link, select.POLLIN | (select.POLLOUT if outgoing else 0))
            ready = dict(poll.poll(None if left_s is None else left_s * 1000))
            self._hush(ready)
            if ready.get(link.fileno(), 0) & ~select.POLLOUT:
                data = link.recv(READ_BYTES)
                if not data:
                    return
                for payload in decoder.feed(data):
                    self._take(log_door.decode(payload))

    def _take(self, message: DoorPiece | DoorReceipt | DoorTrouble) -> None:
        self._again_s = AGAIN_FIRST_S
        if isinstance(message, DoorTrouble):
            self._trouble = message.reason
        elif isinstance(message, DoorReceipt) and message.stream == self._stream:
            self._trouble = ""
            with self._lock:
                while self._chunks and self._chunks[0][0] + len(self._chunks[0][1]) <= message.position:
                    self._bytes -= len(self._chunks.popleft()[1]) + LINE_BYTES
                    self._sent_chunks = max(0, self._sent_chunks - 1)
                self._is_told = message.ended and bool(self._ends_at_s)

    def _pause(self) -> None:
        """Waits before the next connection, at most for the time that is left."""
        left_s = self._left_s()
        poll = select.poll()
        if left_s is None:
            poll.register(self._wake, select.POLLIN)
        until_s = _clock.now_s() + (self._again_s if left_s is None else min(left_s, self._again_s))
        self._again_s = min(AGAIN_MOST_S, self._again_s * 2)
        while (rest_s := until_s - _clock.now_s()) > 0.0 and not (left_s is None and self._ends_at_s):
            self._hush(dict(poll.poll(rest_s * 1000 + 1)))

    def _hush(self, ready: dict[int, int]) -> None:
        if self._wake in ready:
            os.eventfd_read(self._wake)

    def _left_s(self) -> float | None:
        """Returns the time that is left; None while more may come."""
        return max(0.0, self._ends_at_s - _clock.now_s()) if self._ends_at_s else None

    def _ring(self) -> None:
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)

    def _tell_missing(self) -> None:
        with self._lock:
            self._gather()
            missing = sum(lines.count(b"\n") for _, lines in self._chunks)
            self._chunks.clear()
            os.close(self._wake)
            self._wake = -1
        if missing:
            logging.getLogger("holdfast").warning(
                "%d lines of the supervisor's words may be missing in the file of --ft-nvrx-logfile: %s; "
                "this node's supervisor.log has them",
                missing,
                self._trouble or SLOW,
            )


def _frame(piece: DoorPiece) -> bytes:
    return framing.encode(log_door.encode(piece), frame_bytes_max=log_door.FRAME_BYTES_MAX)
