"""How do lines reach the job's log server, which writes the files, through the sender of this node?

It replaces backlog.py with --ft-enable-log-server. This is the connection; holdfast_wire/log_source.py knows what to
send over it, and what is lost.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from holdfast_wire.log_pieces import Loss, file_of_cycle
from holdfast_wire.log_source import LogSource, Stream

from worker_client.spawner.event_loop import READ, WRITE, Events

from .backlog import BACKLOG_BYTES_MAX, CycleFile
from .rank_lines import Parts

SEND_BYTES = 256 * 1024  # made into frames at once
READ_BYTES = 64 * 1024
OUTPUT_BYTES = 64 * 1024  # taken from a worker at once; fits into a frame with a prefix before each line


class Uplink:
    """The way to the log server. Everything happens in the thread of `events`. `path`: the sender's socket."""

    def __init__(
        self,
        events: Events,
        path: str,
        on_loss: Callable[[CycleFile], None],
        on_closed: Callable[[CycleFile], None],
    ) -> None:
        self._events = events
        self._path = path
        self._on_loss = on_loss
        self._on_closed = on_closed
        self._source = LogSource(BACKLOG_BYTES_MAX)
        self._streams: dict[CycleFile, Stream] = {}
        self._socket: socket.socket | None = None
        self._outgoing = b""
        self._writes = False
        self._is_waiting = False  # for the time of the next connection

    @property
    def read_bytes_max(self) -> int:
        return OUTPUT_BYTES

    def put(self, file: CycleFile, parts: Parts) -> None:
        """Adds whole lines. Never waits."""
        stream = self._stream(file)
        if self._source.put(stream, parts):
            self._send()
        else:
            file.loss = stream.loss
            self._on_loss(file)

    def close(self, file: CycleFile) -> None:
        """Ends this file; calls `on_closed` once all waiting lines are written."""
        stream = self._stream(file)
        self._source.close(stream)
        if self._socket is None and not stream.end:
            self._source.forget(stream)
            self._finish(file)
        else:
            self._send()

    def late(self, file: CycleFile) -> Loss:
        """Returns what has no receipt yet, and why."""
        stream = self._streams.get(file)
        return stream.late(self._source.reason) if stream is not None else Loss()

    def _stream(self, file: CycleFile) -> Stream:
        stream = self._streams.get(file)
        if stream is None:
            stream = self._streams[file] = self._source.open(file_of_cycle(file.cycle))
            if self._socket is None and not self._is_waiting:
                self._connect()
        return stream

    def _finish(self, file: CycleFile) -> None:
        del self._streams[file]
        self._on_closed(file)

    # --- the sender ---------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        self._is_waiting = False
        ours = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setblocking(False)
        try:
            ours.connect(self._path)  # Succeeds or fails at once, even before it is accepted.
        except OSError:
            ours.close()
            self._try_again()
            return
        self._socket = ours
        self._outgoing, self._writes = b"", False
        self._source.begin_connection()
        self._events.watch(ours.fileno(), READ, self._on_ready)
        self._send()

    def _try_again(self) -> None:
        self._is_waiting = True
        self._events.set_timer(f"uplink {self._path}", self._source.lose_connection(), self._connect)

    def _on_lost(self) -> None:
        if self._socket is not None:
            self._events.forget(self._socket.fileno())
            self._socket.close()
            self._socket = None
            self._try_again()

    def _on_ready(self) -> None:
        if self._writes:
            self._send()
        if self._socket is None:
            return
        try:
            data = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        try:
            moved = self._source.receive(data) if data else []
        except ValueError:
            data, moved = b"", []
        if not data:
            self._on_lost()
            return
        for file, stream in [each for each in self._streams.items() if each[1] in moved]:
            file.written_bytes = stream.written
            if stream.has_ended:
                self._finish(file)
        self._send()

    def _send(self) -> None:
        """Sends what the socket takes now, and the rest as soon as it can."""
        if self._socket is None:
            return
        try:
            while self._outgoing or self._fill():
                sent = self._socket.send(self._outgoing, socket.MSG_NOSIGNAL)
                self._outgoing = self._outgoing[sent:]
            writes = False
        except BlockingIOError:
            writes = True
        except OSError:
            self._on_lost()
            return
        if writes != self._writes:
            self._writes = writes
            self._events.watch(self._socket.fileno(), READ | WRITE if writes else READ, self._on_ready)

    def _fill(self) -> bool:
        """Makes frames of what was not sent; returns whether there are any."""
        self._outgoing = self._source.unsent(SEND_BYTES)
        return bool(self._outgoing)
