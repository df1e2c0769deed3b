"""What travels from where output is printed to the writer of a job's files, what comes back, and what goes again?

A stream is the output of one process for one file. Positions count its bytes from 0. A source keeps everything without
a receipt and sends it again over each new connection; the writer takes each byte once. So nothing is lost or doubled,
whichever process on the way dies. log_frames.py encodes these records, log_source.py is a source.
"""

from __future__ import annotations

from typing import NamedTuple

SUPERVISORS = 0  # the file of the supervisors' own lines; the file of cycle N is N + 1


class Piece(NamedTuple):
    """Whole lines of one stream."""

    stream: int
    file: int
    base: int  # everything before it has a receipt, and the source no longer has it
    position: int  # of the first byte of `lines`
    lines: bytes
    ends: bool = False  # nothing follows in this stream

    @property
    def end(self) -> int:
        return self.position + len(self.lines)

    def after(self, position: int) -> Piece:
        """Returns the rest of the piece from `position` on."""
        skipped = max(0, position - self.position)
        return Piece(self.stream, self.file, self.base, self.position + skipped, self.lines[skipped:], self.ends)


class Receipt(NamedTuple):
    """All bytes of the stream before `position` are in the file. `ended`: its end is too, so nothing more is due."""

    stream: int
    position: int
    ended: bool = False

    def covers(self, piece: Piece) -> bool:
        return self.ended or (self.position >= piece.end and not piece.ends)


class Loss(NamedTuple):
    """Counts the lines that one file has lost."""

    lines: int = 0
    dropped_bytes: int = 0
    reason: str = ""


def note(loss: Loss) -> bytes:
    """Returns the line about a loss for the file itself."""
    if not loss.lines:
        return b""
    return f"[holdfast: {loss.lines} lines ({loss.dropped_bytes} bytes) were lost here: {loss.reason}]\n".encode()


def file_of_cycle(cycle: int) -> int:
    return cycle + 1


def cycle_of_file(file: int) -> int:
    """Returns the cycle of a file, which must not be the one of the supervisors' own lines."""
    return file - 1
