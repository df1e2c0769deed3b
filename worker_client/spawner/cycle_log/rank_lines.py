"""How do the bytes of one worker become whole lines of text, each with its rank before it?

Pure. The output is valid UTF-8 without NUL, so that any tool can read the file: a NUL becomes <NUL>, invalid UTF-8
becomes U+FFFD, and a character that the end of a read has cut is joined again.
"""

from __future__ import annotations

LINE_BYTES_MAX = 64 * 1024  # a longer line is passed on in pieces
NUL = b"<NUL>"

Parts = tuple[bytes | memoryview, ...]

_CONTINUES = 0xC0, 0x80  # a byte inside a UTF-8 character: byte & 0xC0 == 0x80


class RankLines:
    """The lines of one stream. Large pieces are handled as a whole, not line by line."""

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._between = b"\n" + prefix
        self._partial = b""  # the unfinished last line, without its prefix
        self._after_return = False  # the last byte was a CR, already taken as a line's end

    def feed(self, data: bytes) -> Parts:
        """Returns what can be written now, in order: whole lines or nothing."""
        data = self._with_newlines(data)
        if b"\0" not in data and data.isascii() and self._partial.isascii() and b"\0" not in self._partial:
            return self._feed_plain(data)
        end = data.rfind(b"\n")
        if end < 0:
            self._partial += data
            return self._cut() if len(self._partial) > LINE_BYTES_MAX else ()
        lines = b"".join((self._partial, memoryview(data)[:end])) if self._partial else data[:end]
        self._partial = data[end + 1 :]
        written = self._text(lines)
        return (*written, *self._cut()) if len(self._partial) > LINE_BYTES_MAX else written

    def _feed_plain(self, data: bytes) -> Parts:
        """Does the same for data without anything to correct: each byte is copied once."""
        marked = data.replace(b"\n", self._between)
        end = marked.rfind(b"\n") + 1
        if not end:
            self._partial += data
            return self._cut() if len(self._partial) > LINE_BYTES_MAX else ()
        partial, self._partial = self._partial, marked[end + len(self._prefix) :]
        parts = self._prefix, partial, memoryview(marked)[:end]
        return (*parts, *self._cut()) if len(self._partial) > LINE_BYTES_MAX else parts

    def finish(self) -> tuple[bytes, ...]:
        """Returns the last line of an ended stream if it has no line end."""
        rest, self._partial = self._partial, b""
        return self._text(rest) if rest else ()

    def _cut(self) -> tuple[bytes, ...]:
        """Returns the whole pieces of an unfinished line that is too long, none cut inside a character."""
        pieces: list[bytes] = []
        line, at = self._partial, 0
        while len(line) - at > LINE_BYTES_MAX:
            end = at + LINE_BYTES_MAX
            while end > at + LINE_BYTES_MAX - 3 and line[end] & _CONTINUES[0] == _CONTINUES[1]:
                end -= 1
            pieces += self._text(line[at:end])
            at = end
        self._partial = line[at:]
        return tuple(pieces)

    def _text(self, lines: bytes) -> tuple[bytes, ...]:
        if b"\0" in lines:
            lines = lines.replace(b"\0", NUL)
        if not lines.isascii():
            lines = _valid(lines)
        return self._prefix, lines.replace(b"\n", self._between), b"\n"

    def _with_newlines(self, data: bytes) -> bytes:
        """Returns `data` with each CR and CR LF as LF, though the LF may come in the next piece.

        So a progress bar is visible while it moves, as under torchrun.
        """
        if self._after_return and data.startswith(b"\n"):
            data = data[1:]
            self._after_return = False  # The next LF ends a separate line.
        self._after_return = data.endswith(b"\r") or (self._after_return and not data)
        if b"\r" not in data:
            return data
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _valid(text: bytes) -> bytes:
    try:
        text.decode()
    except UnicodeDecodeError:
        return text.decode("utf-8", "replace").encode()
    return text
