"""Which rank starts the job's supervisor, so that not all of them do it at once?

The rank that holds the lock on the job's directory starts it. This lock only saves processes: the supervisors decide
among themselves which of them serves, by a lock that no rank ever holds. So a rank that is stopped during its turn only
makes the others wait. The supervisor inherits the turn and ends it once ranks can connect, so a rank that is killed
meanwhile does not let another in too early.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Generator
from pathlib import Path

from worker_client.inprocess.exception import InternalError
from worker_client.inprocess.private_supervisor.job_folder import private_folder
from worker_client.inprocess.private_supervisor.lock_wait import is_readable, locked_within

ATTEMPTS_MAX = 10  # each fails only if the directory is removed just after it was created


@contextlib.contextmanager
def starters_turn(folder: Path, *, wait_s: float, cancel: int = -1) -> Generator[int]:
    """Waits for the turn, and yields a descriptor that holds it; after `wait_s`, the turn is taken without the lock.

    The turn ends with the block, or once any process with the descriptor unlocks it. Raises InternalError, and
    CancelledWaitError once the descriptor `cancel` is readable.
    """
    descriptor = _opened(folder)
    try:
        if not locked_within(descriptor, fcntl.LOCK_EX, wait_s=wait_s, cancel=cancel) and is_readable(cancel):
            raise CancelledWaitError
        yield descriptor
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # A process forked meanwhile must not keep it.
        os.close(descriptor)


class CancelledWaitError(Exception):
    """Raised when the wait is no longer needed."""


def _opened(folder: Path) -> int:
    for _ in range(ATTEMPTS_MAX):
        private_folder(folder)
        try:
            return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue
        except OSError as error:
            why = f"cannot open {folder} for a private supervisor: {error.strerror}; check its file system"
            raise InternalError(why) from error
    raise InternalError(
        f"cannot open {folder} for a private supervisor: it is removed each time; find out what removes it"
    )
