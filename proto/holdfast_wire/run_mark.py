"""Where do the lines of this run of a job begin, in a log that an earlier run (before a requeue, say) has begun?

At a line that names the time at which this run began: that of the epoch of the cycle's leader, so all nodes write the
same. The process that opens the file writes it, if the file was last written before that time. A line of a worker
begins with its rank, so no worker can print the mark.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

_BEGINNING = b"[holdfast: the run of "
_MARK = re.compile(rb"\n\[holdfast: the run of (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z) begins here\]\n")
MARK_BYTES = 2 + len("[holdfast: the run of 2026-11-29T12:30:05.123Z begins here]")


def run_time(began_ms: int) -> str:
    """Returns the time by which marks name a run; "": unknown. `began_ms`: Unix time; 0: unknown.

    Later times are greater texts.
    """
    if not began_ms:
        return ""
    from datetime import UTC, datetime  # Late: a log process rarely needs it, and nothing else that has workers.

    return f"{datetime.fromtimestamp(began_ms // 1000, UTC):%Y-%m-%dT%H:%M:%S}.{began_ms % 1000:03}Z"


def run_begun_by(line: bytes) -> str:
    """Returns the time of the run that begins after this line; "": it is no mark."""
    return next((run for _, run in marks_in(b"\n%s\n" % line)), "") if line.startswith(_BEGINNING) else ""


def marks_in(data: bytes) -> Iterator[tuple[int, str]]:
    """Yields each mark in a piece of a log: where it begins in `data`, and the time of the run."""
    for found in _MARK.finditer(data):
        yield found.start(), found[1].decode()


def mark_if_of_earlier_run(fd: int, began_ms: int) -> bool:
    """Appends a mark to a file that only earlier runs have written; returns whether. Raises OSError."""
    found = os.fstat(fd)
    if not began_ms or not found.st_size or found.st_mtime * 1000 >= began_ms:
        return False
    # The earlier run may have died within a line.
    os.write(fd, f"\n[holdfast: the run of {run_time(began_ms)} begins here]\n".encode())
    return True
