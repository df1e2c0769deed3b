"""Where does a private supervisor live, which folders did killed ones leave behind, and may they be removed?

A supervisor holds a lock in its folder from its start. The kernel releases it when the supervisor dies.
"""

from __future__ import annotations

import os
import re
import socket
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from holdfast_wire import private_files

from supervisor.edges.machine.clock import Clock
from supervisor.edges.machine.folders import adopted_dir, default_dirs, write_probe
from supervisor.edges.machine.folders.socket_claim import held_if_dead
from supervisor.edges.machine.folders.socket_dir import longest_socket_path_fits
from supervisor.edges.machine.own_process import kernel_error_remedies
from supervisor.edges.machine.processes import home_folder
from supervisor.errors import ConfigurationError, ExhaustedError

NAME = re.compile(r"holdfast-r[0-9a-f]{10}")  # neither a user's own folder nor a daemon's --socket-dir
NAME_BYTES = 5
UNUSED_S = 60.0  # a supervisor takes the lock of its folder within a second
SWEPT_MAX = 100  # folders looked at in one sweep


def make(environment: Mapping[str, str] | None = None) -> Path:
    """Makes a new 0700 directory in which sockets and small files can be made; its owner removes it at the end.

    Raises ConfigurationError if no place allows one; ExhaustedError if one may allow it later.
    """
    faults: list[str] = []
    kind: type[ConfigurationError | ExhaustedError] = ConfigurationError
    for place in default_dirs.temp_dirs(environment):
        path = place / f"holdfast-r{os.urandom(NAME_BYTES).hex()}"
        if not longest_socket_path_fits(path):
            continue
        try:
            if place == home_folder.home_dir(environment):
                _make_home(place)
            path.mkdir(mode=0o700)
            path.chmod(0o700)  # whatever the umask
            _probe(path)
        except OSError as error:
            faults.append(f"{place}: {error.strerror or error}")
            if kernel_error_remedies.remedy(error):
                kind = ExhaustedError
            with suppress(OSError):
                path.rmdir()
            continue
        return path
    raise kind(
        f"cannot make a private socket directory: {'; '.join(faults)}; set TMPDIR to a short path that can be written"
    )


def _make_home(place: Path) -> None:
    """Makes the folder at home. Raises OSError if it is not ours alone."""
    private_files.make_folder(place)
    if fault := private_files.folder_fault(place):
        raise PermissionError(fault)


def _probe(path: Path) -> None:
    """Raises OSError if sockets can't be made here: some network file systems do not support them."""
    write_probe.write(path)
    probe = path / "probe.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            listener.bind(str(probe))
        finally:
            probe.unlink(missing_ok=True)


def sweep(environment: Mapping[str, str] | None = None) -> None:
    """Removes the folders of this user's private supervisors that are surely dead. Blocks on a disk; never raises."""
    left = SWEPT_MAX
    for place in default_dirs.temp_dirs(environment):
        for path in _private_dirs(place):
            if left == 0:
                return
            left -= 1
            remove_if_dead(path)

    for own in default_dirs.own_dirs(environment):
        if not private_files.folder_fault(own):
            adopted_dir.sweep(own)
    for earlier in home_folder.earlier_home_dirs(environment):
        if all(map(remove_if_dead, _private_dirs(earlier))):  # None is locked: it is of no use any more.
            import shutil  # Late: most sweeps find nothing.

            shutil.rmtree(earlier, ignore_errors=True)


def remove_if_dead(path: Path) -> bool:
    """Removes the folder if its supervisor is dead, and returns whether it was. Keeps one that was not served yet."""
    with held_if_dead(path) as is_dead:
        if is_dead:
            import shutil  # Late: most sweeps find nothing.

            shutil.rmtree(path, ignore_errors=True)
        return is_dead or _removed_unused(path)


def _removed_unused(path: Path) -> bool:
    """Removes an empty folder whose supervisor was killed before it took the lock. Returns whether it was removed.

    One that is only slow makes its folder again.
    """
    try:
        made_ns = path.stat().st_mtime_ns  # before the clock is read: one that is made just now has no negative age
        age_s = (Clock().unix_ns() - made_ns) / 1e9
        if not 0 <= age_s < UNUSED_S:
            write_probe.remove_left(path)
            path.rmdir()  # only if it is empty
            return True
    except OSError:
        return False
    return False


def _private_dirs(place: Path) -> Iterator[Path]:
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if NAME.fullmatch(entry.name) is None:
                continue
            with suppress(OSError):
                found = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
                    yield Path(entry.path)
