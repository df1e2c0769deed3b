"""Which bytes of a rank's output are new, if the output comes again from its beginning?"""

from __future__ import annotations

import msgspec

from supervisor.edges.operators.log_follower import LogPiece

FILES_OF_STREAM = 2  # the current one and an older part


class ShownStream:
    """How much of one rank's stream was shown: of each of its files, whose older ones a rotation removes.

    A file is known by its inode. A new file may get the inode of one that has gone; it comes after all known ones,
    unless a rank prints more than two whole files while nobody reads.
    """

    def __init__(self, *, is_tail: bool = False) -> None:
        """`is_tail`: it begins with its last lines. What came before them is not new, either."""
        self._is_tail = is_tail
        self._first_again = 0  # the file with which the stream came again
        self._ends: dict[int, int] = {}  # how far the newest files were shown, in the order of their age
        self._known: dict[int, int] = {}  # those of them that may come again
        self._bytes = 0
        self._bytes_again = 0  # of those shown, how many still come again if none of them is gone
        self._counts = False  # a supervisor of an earlier version does not say where its bytes are

    def comes_again(self) -> None:
        """Expects the stream from its beginning, as far as that is still there."""
        self._known, self._bytes_again, self._first_again = dict(self._ends), self._bytes, 0

    def new(self, piece: LogPiece) -> bytes:
        """Returns those bytes of the piece that were not shown yet; from now on they are."""
        self._counts = self._counts or not piece.file
        counted = min(self._bytes_again, len(piece.data))
        self._bytes_again -= counted
        new = piece.data[counted if self._counts else self._shown_bytes(piece) :]
        self._bytes += len(new)
        return new

    def _shown_bytes(self, piece: LogPiece) -> int:
        end = piece.offset + len(piece.data)
        self._first_again = self._first_again or piece.file
        if piece.file not in self._known:
            if self._is_tail and len(self._known) == len(self._ends) == 1 and piece.file == self._first_again:
                return len(piece.data)  # of the file before the one in which the last lines began
            self._known.clear()
            self._ends.pop(piece.file, None)
            self._ends[piece.file] = end
            while len(self._ends) > FILES_OF_STREAM:
                del self._ends[next(iter(self._ends))]
            return 0
        while (older := next(iter(self._known))) != piece.file:
            del self._known[older]
        known_end = self._known[piece.file]
        if end > known_end:
            del self._known[piece.file]
            self._ends[piece.file] = end
        return max(0, min(known_end - piece.offset, len(piece.data)))


class ShownOutput:
    """How much of the output of all ranks was shown, by cycle, rank and stream."""

    def __init__(self, *, are_tails: bool = False) -> None:
        """`are_tails`: the streams begin with their last lines."""
        self._are_tails = are_tails
        self._streams: dict[tuple[int, int, bool], ShownStream] = {}

    @property
    def cycles(self) -> set[int]:
        """Returns the cycles of which something was shown."""
        return {cycle for cycle, _, _ in self._streams}

    def comes_again(self) -> None:
        """Expects all from its beginning, as far as that is still there."""
        for stream in self._streams.values():
            stream.comes_again()

    def new(self, piece: LogPiece) -> LogPiece | None:
        """Returns the part of the piece that was not shown yet, and from now on is; None: there is none."""
        place = piece.cycle, piece.rank, piece.is_stderr
        if place not in self._streams:
            self._streams[place] = ShownStream(is_tail=self._are_tails)
        data = self._streams[place].new(piece)
        if not data:
            return None
        return msgspec.structs.replace(piece, data=data, offset=piece.offset + len(piece.data) - len(data))
