"""How do lines reach the job's log server, which writes the files, through the sender of this node?

It replaces backlog.py with --ft-enable-log-server. Lines are kept until the server has written them, and are sent again
over each new connection, so the sender and the servers may die. Lines beyond the limit are lost as a whole, counted,
and noted in the file at that place.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable

from holdfast_wire import framing, log_door
from holdfast_wire.log_door import DoorPiece, DoorReceipt, DoorTrouble

from worker_client.spawner.events import READ, WRITE, Events

from .backlog import BACKLOG_BYTES_MAX, PART_BYTES, CycleFile, Loss, note
from .rank_lines import Parts

SEND_BYTES = 256 * 1024  # made into frames at once
READ_BYTES = 64 * 1024
OUTPUT_BYTES = 64 * 1024  # taken from a worker at once; fits into a frame with a prefix before each line
AGAIN_FIRST_S, AGAIN_MOST_S = 0.05, 1.0
AWAY = "the log server could not be reached"
SLOW = "the log server took them too slowly"


class _Stream:
    """What still has to reach one file."""

    __slots__ = ("chunks", "end", "file", "has_ended", "is_open", "number", "sent_chunks", "told_end", "written")

    def __init__(self, file: CycleFile) -> None:
        self.file = file
        self.number = int.from_bytes(os.urandom(8), "big")
        self.chunks: deque[tuple[int, bytes]] = deque()  # position and lines, without a receipt
        self.sent_chunks = 0  # how many of them were sent over the current connection
        self.end = 0
        self.written = 0  # everything before this position is in the file
        self.is_open = True  # more may come
        self.told_end = False
        self.has_ended = False


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
        self._streams: dict[int, _Stream] = {}  # by their numbers
        self._of_cycles: dict[int, _Stream] = {}
        self._bytes = 0
        self._is_full = False
        self._socket: socket.socket | None = None
        self._decoder = framing.Decoder(frame_bytes_max=log_door.FRAME_BYTES_MAX)
        self._outgoing = b""
        self._writes = False
        self._again_s = AGAIN_FIRST_S
        self._trouble = AWAY

    @property
    def read_bytes_max(self) -> int:
        return OUTPUT_BYTES

    def put(self, file: CycleFile, parts: Parts) -> None:
        """Adds whole lines. Never waits."""
        size = sum(map(len, parts))
        if self._bytes + size + PART_BYTES > BACKLOG_BYTES_MAX or (
            self._is_full and self._bytes > BACKLOG_BYTES_MAX // 2
        ):
            self._is_full = True
            self._lose(file, parts, size)
            return
        self._is_full = False
        if file.gap.lines:
            parts, file.gap = (note(file.gap), *parts), Loss()
        self._append(self._stream(file), b"".join(parts))
        self._send()

    def close(self, file: CycleFile) -> None:
        """Ends this file; calls `on_closed` once all waiting lines are written."""
        stream = self._stream(file)
        if file.gap.lines:
            self._append(stream, note(file.gap))
        stream.is_open = False
        if self._socket is None and not stream.end:
            self._finish(stream)
        else:
            self._send()

    def late(self, file: CycleFile) -> Loss:
        """Returns what has no receipt yet, and why."""
        chunks = [
            lines[max(0, stream.written - position) :]
            for stream in self._streams.values()
            if stream.file is file
            for position, lines in stream.chunks
        ]
        lines, size = sum(each.count(b"\n") for each in chunks), sum(map(len, chunks))
        return Loss(lines, size, self._trouble or SLOW)

    # --- what waits ---------------------------------------------------------------------------------------------------

    def _stream(self, file: CycleFile) -> _Stream:
        stream = self._of_cycles.get(file.cycle)
        if stream is None or stream.file is not file:
            stream = self._of_cycles[file.cycle] = _Stream(file)
            self._streams[stream.number] = stream
            if self._socket is None:
                self._connect()
        return stream

    def _append(self, stream: _Stream, lines: bytes) -> None:
        if stream.chunks and len(stream.chunks) > stream.sent_chunks:
            position, last = stream.chunks[-1]
            if len(last) + len(lines) <= log_door.PIECE_BYTES:
                stream.chunks[-1] = position, last + lines
                stream.end += len(lines)
                self._bytes += len(lines)
                return
        stream.chunks.append((stream.end, lines))
        stream.end += len(lines)
        self._bytes += len(lines) + PART_BYTES

    def _lose(self, file: CycleFile, parts: Parts, size: int) -> None:
        lines = sum(bytes(part).count(b"\n") for part in parts)
        file.loss = Loss(file.loss.lines + lines, file.loss.dropped_bytes + size, self._trouble or SLOW)
        file.gap = Loss(file.gap.lines + lines, file.gap.dropped_bytes + size, self._trouble or SLOW)
        self._on_loss(file)

    def _finish(self, stream: _Stream) -> None:
        del self._streams[stream.number]
        if self._of_cycles.get(stream.file.cycle) is stream:
            del self._of_cycles[stream.file.cycle]
        self._on_closed(stream.file)

    # --- the sender ---------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        ours = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setblocking(False)
        try:
            ours.connect(self._path)  # Succeeds or fails at once, even before it is accepted.
        except OSError:
            ours.close()
            self._try_again()
            return
        self._socket = ours
        self._decoder = framing.Decoder(frame_bytes_max=log_door.FRAME_BYTES_MAX)
        self._outgoing, self._writes = b"", False
        for stream in self._streams.values():
            stream.sent_chunks, stream.told_end = 0, False
        self._events.watch(ours.fileno(), READ, self._on_ready)
        self._send()

    def _try_again(self) -> None:
        self._trouble = AWAY
        self._events.set_timer(f"uplink {self._path}", self._again_s, self._connect)
        self._again_s = min(AGAIN_MOST_S, self._again_s * 2)

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
        if not data:
            self._on_lost()
            return
        try:
            for payload in self._decoder.feed(data):
                self._take(log_door.decode(payload))
        except ValueError:
            self._on_lost()
            return
        self._send()

    def _take(self, message: DoorPiece | DoorReceipt | DoorTrouble) -> None:
        self._again_s = AGAIN_FIRST_S  # This connection works.
        if isinstance(message, DoorTrouble):
            self._trouble = message.reason
        elif isinstance(message, DoorReceipt) and (stream := self._streams.get(message.stream)) is not None:
            self._trouble = ""
            self._note_receipt(stream, message)

    def _note_receipt(self, stream: _Stream, receipt: DoorReceipt) -> None:
        written = min(receipt.position, stream.end)
        while stream.chunks and stream.chunks[0][0] + len(stream.chunks[0][1]) <= written:
            _, lines = stream.chunks.popleft()
            stream.sent_chunks = max(0, stream.sent_chunks - 1)
            self._bytes -= len(lines) + PART_BYTES
        stream.file.written_bytes += max(0, written - stream.written)
        stream.written = max(stream.written, written)
        if receipt.ended and not stream.is_open:
            self._finish(stream)

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
        frames: list[bytes] = []
        size = 0
        for stream in self._streams.values():
            base = stream.chunks[0][0] if stream.chunks else stream.end
            while stream.sent_chunks < len(stream.chunks) and size < SEND_BYTES:
                position, lines = stream.chunks[stream.sent_chunks]
                piece = DoorPiece(stream.number, stream.file.cycle + 1, base, position, False, lines)
                frames.append(framing.encode(log_door.encode(piece), frame_bytes_max=log_door.FRAME_BYTES_MAX))
                size += len(lines)
                stream.sent_chunks += 1
            is_all = stream.sent_chunks == len(stream.chunks)
            if is_all and not stream.is_open and not stream.told_end:
                stream.told_end = True
                end = DoorPiece(stream.number, stream.file.cycle + 1, base, stream.end, True, b"")
                frames.append(framing.encode(log_door.encode(end), frame_bytes_max=log_door.FRAME_BYTES_MAX))
        self._outgoing = b"".join(frames)
        return bool(frames)
