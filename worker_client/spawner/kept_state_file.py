"""How do the kept texts get into a file with each turn, at a cost that does not grow with what stays the same?

Short texts are written as a whole. Long ones, of a job of many nodes, are followed by lines with what has changed
since, until these are as long as the rest. A line that a full disk or a kill has cut off is followed by none.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress

SECRET = "environment"  # the text that is never written to a file
WHOLE_BYTES_MAX = 64 * 1024  # a shorter file is always written as a whole


class KeptFile:
    """The file of one spawner. Does nothing without a path."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._changed: dict[str, str] = {}  # since it was saved last
        self._whole_bytes = 0  # of its first line; 0: it is not as it should be
        self._added_bytes = 0  # of the lines after that

    def note(self, changed: dict[str, str]) -> None:
        """Notes texts that are saved next; "": the text was removed."""
        if self._path:
            self._changed |= changed

    def save(self, texts: dict[str, str], rest: dict[str, object]) -> None:
        """Saves all texts and the rest. Ignores failures."""
        if not self._path:
            return
        changed, self._changed = self._changed, {}
        is_long = self._whole_bytes > WHOLE_BYTES_MAX
        if not (is_long and self._added_bytes < self._whole_bytes and self._add(b"\n" + _line(changed, rest))):
            self._write(_line(texts, rest))

    def _add(self, line: bytes) -> bool:
        """Returns whether the line is there."""
        with suppress(OSError):
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                self._added_bytes += len(line)
                return os.write(fd, line) == len(line)
            finally:
                os.close(fd)
        return False

    def _write(self, line: bytes) -> None:
        self._whole_bytes = self._added_bytes = 0
        fresh = f"{self._path}.new"
        with suppress(OSError):
            fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                with open(fd, "wb", closefd=False) as file:
                    file.write(line)
            finally:
                os.close(fd)
            os.rename(fresh, self._path)
            self._whole_bytes = len(line)


def _line(texts: dict[str, str], rest: dict[str, object]) -> bytes:
    shown = {name: text for name, text in texts.items() if name != SECRET}
    return json.dumps({"texts": shown, **rest}, separators=(",", ":")).encode()
