"""What is the source line at the end of a stack? Read from the file if it exists and is harmless."""

from __future__ import annotations

import os
import stat

from supervisor.core.process_facts import Frame

FILE_BYTES_MAX = 1024 * 1024
CHARACTERS_MAX = 200


def source_line(frame: Frame) -> str:
    """Returns the line; "" if unavailable. Blocks on the disk, but not on a pipe or device: a worker chose the path."""
    if frame.line < 1 or not frame.file.startswith("/"):
        return ""
    try:
        descriptor = os.open(frame.file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_size > FILE_BYTES_MAX:
                return ""
            # Python counts the ends of lines so; str.splitlines also divides at page breaks (^L) and others.
            lines = os.read(descriptor, FILE_BYTES_MAX).splitlines()
        finally:
            os.close(descriptor)
    except (OSError, ValueError):
        return ""
    if frame.line > len(lines):
        return ""
    return lines[frame.line - 1].decode(errors="replace").strip()[:CHARACTERS_MAX]
