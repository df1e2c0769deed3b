"""Which pieces does a process on the way keep, which go on next, and who gets the receipts?

Leaves and nodes' senders use this. A relay keeps everything without a receipt, in case the next process dies. Its
memory is limited; a full relay takes nothing more until there is room.
"""

from __future__ import annotations

from collections import deque

from holdfast_wire.log_pieces import Piece, Receipt

PIECE_BYTES = 256  # memory that a piece takes besides its lines
WINDOW_LEAST_BYTES = 32 * 1024
WINDOW_MOST_BYTES = 8 * 1024 * 1024
PAUSE_PER_LINK_S = 0.0001  # about a leaf's cost of one link's message
PAUSE_MOST_S = 0.25


def window_bytes(bytes_max: int, links: int) -> int:
    """Returns how much each of so many links may send ahead of its receipts, so that all of them fit."""
    return min(WINDOW_MOST_BYTES, max(WINDOW_LEAST_BYTES, bytes_max // max(1, links)))


def pause_s(links: int) -> float:
    """Returns how long each of so many links gathers lines before it sends them."""
    return min(PAUSE_MOST_S, PAUSE_PER_LINK_S * links) if links > 8 else 0.0


class _Stream:
    __slots__ = ("end", "last", "link", "number", "sent", "unsent")

    def __init__(self, number: int, link: int) -> None:
        self.number = number
        self.link = link  # the link of its last piece; below 0: one that has ended
        self.sent: deque[Piece] = deque()  # without a receipt
        self.unsent: deque[Piece] = deque()
        self.end = -1  # the end of the last piece kept
        self.last = False  # that piece ends the stream


class Relay:
    """The queue of one process. Links are numbers from 0 that the caller chooses."""

    def __init__(self, *, bytes_max: int, pieces_max: int) -> None:
        self._bytes_max = bytes_max
        self._pieces_max = pieces_max
        self._streams: dict[int, _Stream] = {}
        self._turns: deque[_Stream] = deque()  # each at least as often as it has unsent pieces
        self._on_the_way_bytes = 0
        self.window_bytes = WINDOW_LEAST_BYTES  # accepted by the next process ahead of its receipts
        self.kept_bytes = 0
        self.kept_pieces = 0

    @property
    def is_full(self) -> bool:
        return self.kept_bytes >= self._bytes_max or self.kept_pieces >= self._pieces_max

    @property
    def is_empty(self) -> bool:
        return not self.kept_pieces

    @property
    def unsent_bytes(self) -> int:
        return self.kept_bytes - self._on_the_way_bytes

    def take(self, link: int, piece: Piece) -> None:
        """Keeps a piece that came over a link; parts already kept are not kept twice."""
        stream = self._streams.get(piece.stream)
        if stream is None:
            stream = self._streams[piece.stream] = _Stream(piece.stream, link)
        stream.link = link
        if stream.sent or stream.unsent:
            if piece.end < stream.end or (piece.end == stream.end and stream.last >= piece.ends):
                return
            if piece.position < stream.end:
                piece = piece.after(stream.end)
        stream.unsent.append(piece)
        stream.end, stream.last = piece.end, piece.ends
        self._turns.append(stream)
        self.kept_bytes += _size(piece)
        self.kept_pieces += 1

    def next(self, bytes_max: int) -> list[Piece]:
        """Returns the pieces to send now, at least one if the next process has room; marks them as sent."""
        taken: list[Piece] = []
        while self._turns:
            stream = self._turns[0]
            if not stream.unsent:  # An earlier connection brought its receipt.
                self._turns.popleft()
                continue
            size = _size(stream.unsent[0])
            is_too_much = self._on_the_way_bytes + size > self.window_bytes
            if (is_too_much and self._on_the_way_bytes) or (taken and size > bytes_max):
                break
            self._turns.popleft()
            piece = stream.unsent.popleft()
            stream.sent.append(piece)
            taken.append(piece)
            bytes_max -= size
            self._on_the_way_bytes += size
        return taken

    def receive(self, receipt: Receipt) -> int | None:
        """Applies a receipt. Returns the link that it is for; None: that link is gone."""
        stream = self._streams.get(receipt.stream)
        if stream is None:
            return None
        while stream.sent and receipt.covers(stream.sent[0]):
            self._on_the_way_bytes -= self._drop(stream.sent)
        while not stream.sent and stream.unsent and receipt.covers(stream.unsent[0]):
            self._drop(stream.unsent)
        if not stream.sent and not stream.unsent and (receipt.ended or stream.link < 0):
            del self._streams[receipt.stream]
        return stream.link if stream.link >= 0 else None

    def begin_again(self) -> None:
        """Sends everything without a receipt again, because the connection to the next process is new."""
        self._turns.clear()
        self._on_the_way_bytes = 0
        for stream in self._streams.values():
            stream.sent.extend(stream.unsent)
            stream.sent, stream.unsent = deque(), stream.sent
            self._turns.extend(stream for _ in stream.unsent)

    def lose(self, link: int) -> None:
        """Notes that a link has ended. What is kept of its streams is still sent."""
        for stream in [each for each in self._streams.values() if each.link == link]:
            stream.link = -1
            if not stream.sent and not stream.unsent:
                del self._streams[stream.number]

    def _drop(self, pieces: deque[Piece]) -> int:
        size = _size(pieces.popleft())
        self.kept_bytes -= size
        self.kept_pieces -= 1
        return size


def _size(piece: Piece) -> int:
    return len(piece.lines) + PIECE_BYTES
