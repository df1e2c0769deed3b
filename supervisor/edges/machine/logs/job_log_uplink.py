"""How do the supervisor's words about a job reach the job's log server through this node's sender?

A thread sends them, with --ft-enable-log-server. This is the connection; holdfast_wire/log_source.py knows what to send
over it, and what is lost.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading

from holdfast_wire.log_pieces import SUPERVISORS
from holdfast_wire.log_source import LogSource

from supervisor.edges.machine.clock import Clock
from supervisor.edges.machine.own_process import threads

KEPT_BYTES_MAX = 1024 * 1024
LINE_BYTES_MAX = 64 * 1024  # longer lines are cut
SEND_BYTES = 256 * 1024  # made into frames at once
READ_BYTES = 4096
ENDS_IN_S = 10.0  # before its sender ends

_clock = Clock()


class JobLogUplink:
    """Sends the words about one run of a job. `run` tells it from later runs with the same id."""

    def __init__(self, path: str, run: int = 0) -> None:
        """`path`: the socket of the sender."""
        self.run = run
        self._path = path
        self._lock = threading.Lock()  # guards the source and the attributes below
        self._source = LogSource(KEPT_BYTES_MAX)
        self._stream = self._source.open(SUPERVISORS)
        self._ends_at_s = 0.0  # 0.0: more may come
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
            if not self._ends_at_s and self._source.put(self._stream, (line,)):
                self._ring()  # At the end, the sender is ending. The line is in the job's own supervisor.log.

    def finish(self) -> None:
        """Ends the input. The thread ends once everything is written, or ten seconds later."""
        with self._lock:
            if not self._ends_at_s:
                self._source.close(self._stream)
                self._ends_at_s = _clock.now_s() + ENDS_IN_S
                self._ring()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    # --- the thread --------------------------------------------------------------------------------------------------

    def _carry(self) -> None:
        try:
            while self._goes_on():
                with contextlib.suppress(OSError, ValueError), socket.socket(socket.AF_UNIX) as link:
                    link.setblocking(False)
                    link.connect(self._path)  # It connects or fails at once, even if the sender does not accept yet.
                    with self._lock:
                        self._source.begin_connection()
                    self._converse(link)
                if self._goes_on():
                    with self._lock:
                        again_s = self._source.lose_connection()
                    self._pause(again_s)
        finally:
            self._tell_missing()

    def _converse(self, link: socket.socket) -> None:
        """Sends until all is written, the time is up or the connection is lost. Raises OSError and ValueError."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        outgoing = b""
        while self._goes_on():
            if not outgoing:
                with self._lock:
                    outgoing = self._source.unsent(SEND_BYTES)
            if outgoing:
                with contextlib.suppress(BlockingIOError):
                    outgoing = outgoing[link.send(outgoing, socket.MSG_NOSIGNAL) :]
                    if not outgoing:
                        continue
            poll.register(link, select.POLLIN | (select.POLLOUT if outgoing else 0))
            left_s = self._left_s()
            ready = dict(poll.poll(None if left_s is None else left_s * 1000))
            self._hush(ready)
            if ready.get(link.fileno(), 0) & ~select.POLLOUT:
                data = link.recv(READ_BYTES)
                if not data:
                    return
                with self._lock:
                    self._source.receive(data)

    def _pause(self, again_s: float) -> None:
        """Waits before the next connection, at most for the time that is left."""
        left_s = self._left_s()
        poll = select.poll()
        if left_s is None:
            poll.register(self._wake, select.POLLIN)
        until_s = _clock.now_s() + (again_s if left_s is None else min(left_s, again_s))
        while (rest_s := until_s - _clock.now_s()) > 0.0 and not (left_s is None and self._ends_at_s):
            self._hush(dict(poll.poll(rest_s * 1000 + 1)))

    def _hush(self, ready: dict[int, int]) -> None:
        if self._wake in ready:
            os.eventfd_read(self._wake)

    def _goes_on(self) -> bool:
        return not self._stream.has_ended and self._left_s() != 0.0

    def _left_s(self) -> float | None:
        """Returns the time that is left; None while more may come."""
        return max(0.0, self._ends_at_s - _clock.now_s()) if self._ends_at_s else None

    def _ring(self) -> None:
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)

    def _tell_missing(self) -> None:
        with self._lock:
            missing = self._stream.late(self._source.reason)
            self._source.forget(self._stream)
            os.close(self._wake)
            self._wake = -1
        if missing.lines:
            logging.getLogger("holdfast").warning(
                "%d lines of the supervisor's words may be missing in the file of --ft-nvrx-logfile: %s; "
                "this node's supervisor.log has them",
                missing.lines,
                missing.reason,
            )
