"""How far has training come? Reads the one integer of a checkpoint tracker file."""

from __future__ import annotations

import os
import stat

FILE_BYTES_MAX = 4096
DIGITS_MAX = 18


def read_iteration(path: str) -> int | None:
    """Returns the iteration; None (not 0) if the file is missing, empty, garbled or too big. Blocks on a disk."""
    content = _read_bounded(path, FILE_BYTES_MAX)
    if content is None:
        return None
    text = content.strip()
    if not text.isdigit() or len(text) > DIGITS_MAX:
        return None
    return int(text)


def _read_bounded(path: str, bytes_max: int) -> bytes | None:
    """Returns the content of a small regular file; None for anything else. Does not block on a pipe or a device."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > bytes_max:
            return None
        return os.read(descriptor, bytes_max)
    except OSError:
        return None
    finally:
        os.close(descriptor)
