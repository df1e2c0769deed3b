"""Where does a private supervisor live, whose folders did killed ones leave behind, and may they be removed?

A supervisor holds a lock in its folder from its start on. The kernel releases it at its death, however it dies.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import re
import socket
import stat
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast_wire.private_folder import ADOPTED_PREFIX, RANKS_FILE, STARTERS_LOCK

from supervisor.edges.machine.folders import closed_dir, user_dirs
from supervisor.edges.machine.folders.socket_claim import LOCK_FILE
from supervisor.edges.machine.folders.socket_dir import longest_socket_path_fits
from supervisor.edges.machine.processes import process_table
from supervisor.errors import ConfigurationError

# Ours, and as it was before; a user's own folder, holdfast-<uid>, is neither.
NAME = re.compile(r"holdfast-(r[0-9a-f]{10}|(?![0-9]{8}$)[a-z0-9_]{8})")
NAME_BYTES = 5
SWEPT_MAX = 100  # folders looked at in one sweep
RANKS_BYTES_MAX = 1024 * 1024


def make(environment: Mapping[str, str] | None = None) -> Path:
    """A new 0700 directory in which sockets and small files can be made; its owner removes it at the end.

    Raises ConfigurationError where there is none to be had.
    """
    faults: list[str] = []
    for place in user_dirs.temp_dirs(environment):
        path = place / f"holdfast-r{os.urandom(NAME_BYTES).hex()}"
        if not longest_socket_path_fits(path):
            continue
        try:
            path.mkdir(mode=0o700)
            path.chmod(0o700)  # whatever the umask
            _probe(path)
        except OSError as error:
            faults.append(f"{place}: {error.strerror or error}")
            with suppress(OSError):
                path.rmdir()
            continue
        return path
    raise ConfigurationError(
        f"cannot make a private socket directory: {'; '.join(faults)}; set TMPDIR to a short path that can be written"
    )


def _probe(path: Path) -> None:
    """Raises OSError. Some network file systems know no sockets."""
    closed_dir.write_probe(path)
    probe = path / "probe.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            listener.bind(str(probe))
        finally:
            probe.unlink(missing_ok=True)


def sweep(environment: Mapping[str, str] | None = None) -> None:
    """Removes the folders of this user's private supervisors that are provably gone. Blocks on a disk, never raises."""
    left = SWEPT_MAX
    for place in user_dirs.temp_dirs(environment):
        for path in _private_dirs(place):
            if left == 0:
                return
            left -= 1
            remove_if_dead(path)

    for own in user_dirs.own_dirs():
        if not closed_dir.fault_of(own):
            _sweep_adopted(own)


def remove_adopted(path: Path, *, waits: bool) -> None:
    """The same for the folder of adopted ranks' supervisor, which a successor uses under the same name. Never raises.

    Where somebody starts one at this moment, it `waits` for that, or leaves the folder to a later sweep.
    """
    try:
        with _starters_lock(path.parent, waits=waits):
            remove_if_dead(path)
    except OSError:
        return


def _sweep_adopted(own: Path) -> None:
    """A successor needs to know the ranks of a supervisor that was killed: its folder stays while one of them lives."""
    with suppress(OSError):
        paths = list(itertools.islice(own.glob(f"{ADOPTED_PREFIX}*"), SWEPT_MAX))
        dead = [path for path in paths if not _has_ranks(path)]
        if dead:
            with _starters_lock(own, waits=False):
                for path in dead:
                    remove_if_dead(path)


def _has_ranks(path: Path) -> bool:
    with suppress(OSError), (path / RANKS_FILE).open() as file:
        for line in file.read(RANKS_BYTES_MAX).splitlines():
            _, pid, ticks = line.split() if len(line.split()) == 3 else ("", "0", "0")
            process = process_table.look_up(int(pid)) if pid.isdecimal() else None
            if process is not None and str(process.started_ticks) == ticks and process.state not in "ZX":
                return True
    return False


@contextmanager
def _starters_lock(own: Path, *, waits: bool) -> Generator[None]:
    """Nobody starts a supervisor of adopted ranks meanwhile. Raises OSError; BlockingIOError where it `waits` not."""
    descriptor = os.open(own / STARTERS_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def remove_if_dead(path: Path) -> bool:
    """Whether its supervisor is gone; its folder then is, too. Never removes one that was not served yet."""
    try:
        descriptor = os.open(path / LOCK_FILE, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # A supervisor writes its pid once it holds the lock: an empty file is one that is just about to.
        if os.fstat(descriptor).st_size == 0:
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        import shutil  # Late: most sweeps find nothing.

        shutil.rmtree(path, ignore_errors=True)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _private_dirs(place: Path) -> Iterator[Path]:
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if NAME.fullmatch(entry.name) is None:
                continue
            with suppress(OSError):
                found = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
                    yield Path(entry.path)
