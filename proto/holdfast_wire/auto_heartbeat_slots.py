"""Where in a spawner's memory file is the page of each worker's main thread, and which worker writes to its page?

A job that is watched without a line in its script has one memfd for each spawner, which the supervisor makes, seals and
passes to it. Each local rank has a page in it, with the words of page_layout.py that say whether the main thread
executes bytecode. The spawner clears a page before it starts a worker, and the worker first writes its layout there: it
may be of another version than the supervisor. The worker holds a lock on its page as long as it writes there: a worker
that executes another program loses the lock, and a process that it has forked never has it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct

from .page_layout import PAGE_BYTES

_LOCK = struct.Struct("@hhqqi4x")  # struct flock


def page_offset(local_rank: int) -> int:
    return local_rank * max(PAGE_BYTES, mmap.ALLOCATIONGRANULARITY)


def file_bytes(workers: int) -> int:
    return page_offset(workers)


def workers_in(file_bytes: int) -> int:
    return file_bytes // page_offset(1)


def hold(descriptor: int, local_rank: int) -> None:
    """Shows that this process writes to the page, until it closes the descriptor. Raises OSError."""
    fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, page_offset(local_rank), os.SEEK_SET)


def is_held(descriptor: int, local_rank: int) -> bool:
    """Whether another process holds the page. Raises OSError."""
    asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, page_offset(local_rank), 1, 0)
    kind, *_ = _LOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    return kind != fcntl.F_UNLCK
