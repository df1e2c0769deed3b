"""Which bytes of which stream are already in a file, and what does the successor of a dead writer accept?

The writer first notes what it is about to append (`Entry`), then appends it. So the last entry of a file and the file's
size show how much was done, whenever the writer died.
"""

from __future__ import annotations

import msgspec
from holdfast_wire.log_pieces import Piece, Receipt

FILES_KEPT_MAX = 16  # the newest; of older ones, streams that have ended are forgotten


KNOWN = -1  # as `at` of an entry: its parts are in the file, anywhere
THINNED = -2  # some of the file's streams were forgotten


class Part(msgspec.Struct, array_like=True, gc=False):
    """One stream's part of what is appended at once."""

    stream: int
    start: int
    length: int
    ends: bool = False


class Entry(msgspec.Struct, array_like=True):
    """`at`: the size of the file before the parts, or one of the marks above."""

    file: int
    at: int
    parts: list[Part]


class Torn(msgspec.Struct, frozen=True):
    """A part of which the file has the first bytes only."""

    file: int
    stream: int
    start: int
    at: int  # in the file
    length: int


class _Position(msgspec.Struct, gc=False):
    taken: int = 0
    written: int = 0
    takes_no_more: bool = False
    ended: bool = False


class Positions:
    """The positions of all streams of all files."""

    def __init__(self) -> None:
        self._files: dict[int, dict[int, _Position]] = {}
        self._thinned: set[int] = set()  # files with forgotten streams
        self.skipped_bytes = 0  # no longer at any source, and not known to be written

    def admit(self, piece: Piece) -> Piece | Receipt | None:
        """Returns what to append of the piece; a receipt if all is in the file; None if it is being written.

        A position beyond what was taken means that the note of the earlier bytes is lost: they had their receipt.
        """
        streams = self._files.get(piece.file)
        if streams is None:
            streams = self._files[piece.file] = {}
        known = streams.get(piece.stream)
        if known is None:
            if piece.base and piece.file in self._thinned:  # It had ended, but its receipt was lost.
                return Receipt(piece.stream, piece.end, piece.ends)
            known = streams[piece.stream] = _Position(piece.position, piece.position)
        if piece.position > known.taken:
            self.skipped_bytes += piece.position - known.taken
            known.taken = piece.position
        if piece.end > known.taken or (piece.ends and not known.takes_no_more):
            rest = piece.after(known.taken) if piece.position < known.taken else piece
            known.taken = rest.end
            known.takes_no_more = known.takes_no_more or piece.ends
            return rest
        if known.written >= piece.end:
            return Receipt(piece.stream, known.written, known.ended)
        return None

    def note_written(self, entry: Entry) -> list[Receipt]:
        """Notes that the entry is in the file. Returns one receipt for each stream."""
        streams = self._files.setdefault(entry.file, {})
        touched: dict[int, _Position] = {}
        for part in entry.parts:
            known = streams.get(part.stream)
            if known is None:
                known = streams[part.stream] = _Position()
            known.written = part.start + part.length
            known.taken = max(known.taken, known.written)
            known.ended = known.ended or part.ends
            known.takes_no_more = known.takes_no_more or part.ends
            touched[part.stream] = known
        return [Receipt(stream, known.written, known.ended) for stream, known in touched.items()]

    def take_back(self, entry: Entry, appended: int) -> Torn | None:
        """Notes that only `appended` bytes of the entry are in the file. Returns the incomplete part."""
        streams, torn = self._files[entry.file], None
        undone: set[int] = set()
        offset = 0
        for part in entry.parts:
            if undone or offset + part.length > appended:
                if not undone and appended > offset:
                    torn = Torn(entry.file, part.stream, part.start, entry.at + offset, appended - offset)
                if part.stream not in undone:
                    streams[part.stream] = _Position(part.start, part.start)
                    undone.add(part.stream)
            offset += part.length
        return torn

    def keep_torn(self, torn: Torn, length: int) -> None:
        """Notes that `length` bytes of the torn part, which are whole lines, stay in the file."""
        position = torn.start + length
        self._files[torn.file][torn.stream] = _Position(position, position)

    def thin_out(self) -> None:
        """Forgets ended streams, except those of the newest files."""
        for file in sorted(self._files)[:-FILES_KEPT_MAX]:
            streams = self._files[file]
            live = {stream: known for stream, known in streams.items() if not known.ended}
            if len(live) < len(streams):
                self._thinned.add(file)
            if live:
                self._files[file] = live
            else:
                del self._files[file]

    def entries(self) -> list[Entry]:
        """Returns everything known, for a shorter note."""
        return [
            Entry(file, KNOWN, [Part(stream, known.written, 0, known.ended) for stream, known in streams.items()])
            for file, streams in self._files.items()
        ] + [Entry(file, THINNED, []) for file in sorted(self._thinned)]

    def restore(self, entry: Entry) -> None:
        """Restores an entry that an earlier writer noted."""
        if entry.at == THINNED:
            self._thinned.add(entry.file)
        else:
            self.note_written(entry)
