"""Who may write in the folder in which ranks find their private supervisor, and when may it be removed?

All ranks of a job name the same folder, and several supervisors may be started for it: two ranks start one each, a
rank that was stopped goes on later, one ends while its successor comes. The one that holds the folder's lock serves;
all others end and touch nothing. It holds the lock from before its first write until after its last removal, and what
it serves with lies in a folder of its own in it, so that no client of another one ever speaks to it by mistake.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from holdfast_wire.private_folder import ADOPTED_PREFIX, ENDPOINT_FILE, LIFE_FILE, MEETING_FILE, RANKS_FILE

from supervisor.edges.machine.folders import closed_dir
from supervisor.edges.machine.folders.socket_claim import SocketDirClaim, held_if_dead
from supervisor.edges.machine.processes import process_table

SERVING_PREFIX = "serving-"
GONE = ".gone-"  # in the name of one that is being removed
NAME_BYTES = 4
SWEPT_MAX = 100  # folders looked at in one sweep
RANKS_BYTES_MAX = 1024 * 1024


class AdoptedDir:
    """The folder of one job's ranks, held from the start to `close`."""

    def __init__(self, path: Path, *, keeps_ranks: bool) -> None:
        """Claims it, and removes what a dead predecessor has left. `keeps_ranks`: but for its record of its ranks.

        Raises InUseError if another supervisor has it, ConfigurationError, or OSError.
        """
        self.path = path
        self._claim = SocketDirClaim(path)
        try:
            kept = (LIFE_FILE, RANKS_FILE, MEETING_FILE) if keeps_ranks else (LIFE_FILE,)
            for left in path.iterdir():
                if left.name not in kept:
                    _remove(left)
            self.serving = path / f"{SERVING_PREFIX}{os.urandom(NAME_BYTES).hex()}"
            closed_dir.make(self.serving)
        except OSError:
            self._claim.close()
            raise

    def tell(self, variables: Mapping[str, str]) -> None:
        """From now on ranks find us. Raises OSError."""
        unfinished = self.path / f"{ENDPOINT_FILE}.new"
        unfinished.write_text(json.dumps(variables))
        unfinished.replace(self.path / ENDPOINT_FILE)

    def close(self) -> None:
        """Removes it, but for the record of ranks that live: a successor needs it. Nothing of ours stays. Idempotent.

        Never raises.
        """
        if self._claim.is_held:  # Else it was deleted, and is another's by now.
            with suppress(OSError):
                (self.path / ENDPOINT_FILE).unlink(missing_ok=True)
            _remove(self.serving)
            if not _has_ranks(self.path):
                _remove_whole(self.path)
        self._claim.close()


def sweep(own: Path) -> None:
    """Removes what killed supervisors left in a user's own folder. Never raises.

    A successor needs to know the ranks of a supervisor that was killed: its folder stays while one of them lives.
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
    """Of a rank that died in its turn, before it could start one: it is empty."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the starters' turn
            path.rmdir()
        finally:
            os.close(descriptor)


def _remove_whole(path: Path) -> None:
    """The caller holds its lock. A folder that is made again meanwhile is another one and is left alone."""
    gone = path.with_name(f"{path.name}{GONE}{os.urandom(NAME_BYTES).hex()}")
    with suppress(OSError):
        path.rename(gone)
        _remove(gone)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    with suppress(OSError):
        path.unlink(missing_ok=True)


def _has_ranks(path: Path) -> bool:
    """Whether one that was noted lives."""
    with suppress(OSError, ValueError), (path / RANKS_FILE).open() as file:
        for line in file.read(RANKS_BYTES_MAX).splitlines():
            _, pid, ticks = line.split() if len(line.split()) == 3 else ("", "0", "0")
            process = process_table.look_up(int(pid)) if pid.isdecimal() else None
            if process is not None and str(process.started_ticks) == ticks and process.state not in "ZX":
                return True
    return False
