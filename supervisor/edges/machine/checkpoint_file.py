"""How far has training come? Reads the one integer of a checkpoint tracker file."""

from __future__ import annotations

from supervisor.edges.machine.error_file import read_bounded

FILE_BYTES_MAX = 4096
DIGITS_MAX = 18


def read_iteration(path: str) -> int | None:
    """None where it can't be known: missing, empty, garbled or too big: unknown is not zero. Blocks on a disk."""
    content = read_bounded(path, FILE_BYTES_MAX)
    if content is None:
        return None
    text = content[0].strip()
    if not text.isdigit() or len(text) > DIGITS_MAX:
        return None
    return int(text)
