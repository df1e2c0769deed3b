"""Who may write in the folder where ranks find their private supervisor, and when may it be removed?

All ranks of a job name the same folder, and several supervisors may be started for it: two ranks start one each, a
rank that was stopped resumes later, or one ends while its successor comes. Only the supervisor that holds the folder's
lock serves; all others end and touch nothing. It holds the lock from before its first write until after its last
removal. Its own files are in a subfolder of its own, so no client of another supervisor connects to it by mistake.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from holdfast_wire import private_files
from holdfast_wire.private_supervisor import ADOPTED_PREFIX, ENDPOINT_FILE, LIFE_FILE, MEETING_FILE, RANKS_FILE

from supervisor.edges.machine import records
from supervisor.edges.machine.folders.socket_claim import SocketDirClaim, held_if_dead
from supervisor.edges.machine.processes import process_table

SERVING_PREFIX = "serving-"
GONE = ".gone-"  # in the name of a folder that is being removed
NAME_BYTES = 4
SWEPT_MAX = 100  # folders looked at in one sweep
RANKS_BYTES_MAX = 1024 * 1024
DIGITS_MAX = 18  # of a pid in that record


class AdoptedDir:
    """The folder of one job's ranks, held from construction to `close`."""

    def __init__(self, path: Path, *, keeps_ranks: bool) -> None:
        """Claims the folder and removes what a dead predecessor left; with `keeps_ranks`, its record of ranks stays.

        Raises InUseError if another supervisor holds the folder, ConfigurationError, or OSError.
        """
        self.path = path
        self._claim = SocketDirClaim(path)
        try:
            kept = (LIFE_FILE, RANKS_FILE, MEETING_FILE) if keeps_ranks else (LIFE_FILE,)
            for left in path.iterdir():
                if left.name not in kept:
                    _remove(left)
            self.serving = path / f"{SERVING_PREFIX}{os.urandom(NAME_BYTES).hex()}"
            private_files.make_folder(self.serving)
        except OSError:
            self._claim.close()
            raise

    def tell(self, variables: Mapping[str, str]) -> None:
        """Publishes the variables with which ranks find us. Raises OSError."""
        unfinished = self.path / f"{ENDPOINT_FILE}.new"
        unfinished.write_text(json.dumps(variables))
        unfinished.replace(self.path / ENDPOINT_FILE)

    def close(self) -> None:
        """Removes the folder, except the record of ranks that still live, which a successor needs. Idempotent.

        Never raises.
        """
        if self._claim.is_held:  # Else it was deleted, and may belong to another supervisor by now.
            with suppress(OSError):
                (self.path / ENDPOINT_FILE).unlink(missing_ok=True)
            _remove(self.serving)
            if not _has_ranks(self.path):
                _remove_whole(self.path)
        self._claim.close()


def sweep(own: Path) -> None:
    """Removes what killed supervisors left in a user's own folder. Never raises.

    The folder of a killed supervisor stays while one of its ranks lives: a successor needs to know them.
    """
    with suppress(OSError):
        for path in list(itertools.islice(own.glob(f"{ADOPTED_PREFIX}*"), SWEPT_MAX)):
            if GONE in path.name:
                _remove(path)
                continue
            _remove_unserved(path)
            with held_if_dead(path) as is_dead:
                if is_dead and not _has_ranks(path):
                    _remove_whole(path)


def _remove_unserved(path: Path) -> None:
    """Removes the empty folder of a rank that died before it could start a supervisor."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the starters' lock
            path.rmdir()
        finally:
            os.close(descriptor)


def _remove_whole(path: Path) -> None:
    """Removes a folder whose lock the caller holds. A folder made again meanwhile belongs to others and stays."""
    gone = path.with_name(f"{path.name}{GONE}{os.urandom(NAME_BYTES).hex()}")
    with suppress(OSError):
        path.rename(gone)
        _remove(gone)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        import shutil  # Late: no start waits for it.

        shutil.rmtree(path, ignore_errors=True)
        return
    with suppress(OSError):
        path.unlink(missing_ok=True)


def _has_ranks(path: Path) -> bool:
    """Returns whether one of the recorded ranks lives."""
    with suppress(OSError):
        for line in records.content(path / RANKS_FILE, bytes_max=RANKS_BYTES_MAX).splitlines():
            _, pid, ticks = line.split() if len(line.split()) == 3 else (b"", b"0", b"0")
            process = process_table.look_up(int(pid)) if pid.isdigit() and len(pid) <= DIGITS_MAX else None
            if process is not None and b"%d" % process.started_ticks == ticks and process.state not in "ZX":
                return True
    return False
