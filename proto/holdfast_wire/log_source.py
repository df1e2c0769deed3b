"""Which lines does a process still have to send to the log server, and which were lost because too many wait?

Sans-I/O: the way of a node's log process and of the supervisor's own lines to the node's sender. Lines are kept until
the server has written them, and are sent again over each new connection, so the sender and the servers may die. Lines
that do not fit are lost as a whole, counted, and noted in the file at that place.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence

from . import log_frames
from .log_frames import Trouble
from .log_pieces import Loss, Piece, Receipt, note

CHUNK_BYTES = 512  # memory that a chunk takes besides its lines
AGAIN_FIRST_S, AGAIN_MOST_S = 0.05, 1.0
AWAY = "the log server could not be reached"
SLOW = "the log server took them too slowly"


class Stream:
    """What still has to reach one file. Only its source changes it."""

    __slots__ = (
        "chunks", "end", "file", "gap", "has_ended", "is_open", "loss", "number", "sent_chunks", "told_end", "written",
    )  # fmt: skip

    def __init__(self, file: int) -> None:
        self.file = file
        self.number = int.from_bytes(os.urandom(8), "big")
        self.chunks: deque[tuple[int, bytes]] = deque()  # position and lines, without a receipt
        self.sent_chunks = 0  # how many of them were sent over the current connection
        self.end = 0
        self.written = 0  # everything before this position is in the file
        self.is_open = True  # more may come
        self.told_end = False  # over the current connection
        self.has_ended = False  # all is in the file
        self.loss = Loss()  # since the beginning
        self.gap = Loss()  # to be noted before the next lines that fit

    def late(self, reason: str) -> Loss:
        """Returns what has no receipt yet."""
        chunks = [lines[max(0, self.written - position) :] for position, lines in self.chunks]
        return Loss(sum(each.count(b"\n") for each in chunks), sum(map(len, chunks)), reason)


class LogSource:
    """The lines of one process. The caller has the connection, one after the other, and tells what comes over it."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._is_full = False
        self._streams: dict[int, Stream] = {}  # by their numbers
        self._decoder = log_frames.decoder()
        self._again_s = AGAIN_FIRST_S
        self._trouble = AWAY

    @property
    def reason(self) -> str:
        """Returns why receipts are missing."""
        return self._trouble or SLOW

    def open(self, file: int) -> Stream:
        stream = Stream(file)
        self._streams[stream.number] = stream
        return stream

    def put(self, stream: Stream, parts: Sequence[bytes | memoryview]) -> bool:
        """Adds whole lines. Returns False if they are lost, because too many wait."""
        size = sum(map(len, parts))
        if self._bytes + size + CHUNK_BYTES > self._bytes_max or (self._is_full and self._bytes > self._bytes_max // 2):
            self._is_full = True
            lines = sum(bytes(part).count(b"\n") for part in parts)
            stream.loss = Loss(stream.loss.lines + lines, stream.loss.dropped_bytes + size, self.reason)
            stream.gap = Loss(stream.gap.lines + lines, stream.gap.dropped_bytes + size, self.reason)
            return False
        self._is_full = False
        self._note_gap(stream)
        self._append(stream, b"".join(parts))
        return True

    def close(self, stream: Stream) -> None:
        """Nothing more comes. The stream ends once all of it is in the file."""
        self._note_gap(stream)
        stream.is_open = False

    def forget(self, stream: Stream) -> None:
        """Forgets a stream that has ended, or that nobody waits for."""
        self._bytes -= sum(len(lines) + CHUNK_BYTES for _, lines in stream.chunks)
        stream.chunks.clear()
        self._streams.pop(stream.number, None)

    def _note_gap(self, stream: Stream) -> None:
        if stream.gap.lines:
            self._append(stream, note(stream.gap))
            stream.gap = Loss()

    def _append(self, stream: Stream, lines: bytes) -> None:
        position = stream.end
        if len(stream.chunks) > stream.sent_chunks:
            last_at, last = stream.chunks[-1]
            if len(last) + len(lines) <= log_frames.PIECE_BYTES:
                stream.chunks.pop()
                self._bytes -= len(last) + CHUNK_BYTES
                position, lines = last_at, last + lines
        stream.chunks.append((position, lines))
        stream.end = position + len(lines)
        self._bytes += len(lines) + CHUNK_BYTES

    # --- one connection after the other ------------------------------------------------------------------------------

    def begin_connection(self) -> None:
        """Sends everything without a receipt again: the connection is new."""
        self._decoder = log_frames.decoder()
        for stream in self._streams.values():
            stream.sent_chunks, stream.told_end = 0, False

    def lose_connection(self) -> float:
        """Returns after how many seconds to connect again."""
        self._trouble = AWAY
        again_s, self._again_s = self._again_s, min(AGAIN_MOST_S, self._again_s * 2)
        return again_s

    def unsent(self, bytes_max: int) -> bytes:
        """Returns frames that were not sent over this connection yet, about so many bytes; b"": there are none."""
        frames: list[bytes] = []
        for stream in self._streams.values():
            for piece in self._unsent_of(stream):
                frames.append(log_frames.framed(piece))
                bytes_max -= len(piece.lines)
                if bytes_max <= 0:
                    return b"".join(frames)
        return b"".join(frames)

    def _unsent_of(self, stream: Stream) -> Iterator[Piece]:
        base = stream.chunks[0][0] if stream.chunks else stream.end
        while stream.sent_chunks < len(stream.chunks):
            position, lines = stream.chunks[stream.sent_chunks]
            stream.sent_chunks += 1
            yield Piece(stream.number, stream.file, base, position, lines)
        if not stream.is_open and not stream.told_end:
            stream.told_end = True
            yield Piece(stream.number, stream.file, base, stream.end, b"", ends=True)

    def receive(self, data: bytes) -> list[Stream]:
        """Takes what came. Returns the streams of which more is in the file now. Raises ValueError for nonsense."""
        moved: list[Stream] = []
        for payload in self._decoder.feed(data):
            self._again_s = AGAIN_FIRST_S  # This connection works.
            match log_frames.decode(payload):
                case Trouble(reason):
                    self._trouble = reason
                case Receipt() as receipt if (stream := self._streams.get(receipt.stream)) is not None:
                    self._trouble = ""
                    self._note_receipt(stream, receipt)
                    moved.append(stream)
                case _:
                    pass
        return moved

    def _note_receipt(self, stream: Stream, receipt: Receipt) -> None:
        stream.written = max(stream.written, min(receipt.position, stream.end))
        while stream.chunks and stream.chunks[0][0] + len(stream.chunks[0][1]) <= stream.written:
            _, lines = stream.chunks.popleft()
            stream.sent_chunks = max(0, stream.sent_chunks - 1)
            self._bytes -= len(lines) + CHUNK_BYTES
        if receipt.ended and not stream.is_open:
            stream.has_ended = True
            self.forget(stream)
