"""Where is the data that outlives a supervisor: the journal and the default logs?"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
from holdfast_wire import private_files

from supervisor.edges.machine.folders import default_dirs, write_probe

STATE_DIR_VARIABLE = "HOLDFAST_STATE_DIR"
SYSTEM_DIR = Path("/var/lib/holdfast")
NODES = "nodes"  # of jobs with several nodes on this machine: a folder for each but the first
STAND_IN = "state"  # in a folder of the user's own, if the state directory can't be used


class ChosenDir(msgspec.Struct, frozen=True):
    """A state directory that can be used. `warning`: why it is not the one that was wanted, "" if it is."""

    path: Path
    warning: str = ""


def find(explicit: str | None = None, environment: Mapping[str, str] | None = None) -> Path:
    """Returns the first of flag, HOLDFAST_STATE_DIR, /var/lib/holdfast (root), $XDG_STATE_HOME/holdfast. Makes none."""
    variables = os.environ if environment is None else environment
    chosen = explicit or variables.get(STATE_DIR_VARIABLE)
    if chosen:
        return Path(chosen).absolute()
    if os.geteuid() == 0:
        return SYSTEM_DIR
    home = variables.get("XDG_STATE_HOME", "")
    # The XDG specification says that a relative path must be ignored.
    base = Path(home) if os.path.isabs(home) else _home(variables) / ".local" / "state"
    return base / "holdfast"


def places(explicit: str | None = None, environment: Mapping[str, str] | None = None) -> tuple[Path, ...]:
    """Returns where this user's journals are: the directory of `find` with those of further nodes, and the stand-in."""
    first = find(explicit, environment)
    further: list[Path] = []
    with suppress(OSError):
        further = sorted(Path(each.path) for each in os.scandir(first / NODES) if each.is_dir(follow_symlinks=False))
    return (first, *further, *_stand_ins(environment))


def own_places(explicit: str | None = None, environment: Mapping[str, str] | None = None) -> tuple[Path, ...]:
    """Returns the directory of `find` and the stand-ins, as far as they exist and only this user may write to them.

    The disk of some may be full, or read-only.
    """
    first = find(explicit, environment)
    is_own = False
    with suppress(OSError):
        is_own = not owner_fault(first)
    return (*((first,) if is_own else ()), *_stand_ins(environment))


def _stand_ins(environment: Mapping[str, str] | None) -> tuple[Path, ...]:
    own = [each / STAND_IN for each in default_dirs.own_dirs(environment) if not private_files.folder_fault(each)]
    return tuple(place for place in own if not private_files.folder_fault(place))


def of_node(first: Path, name: str) -> Path:
    """Returns the directory of a further node on the machine whose first node uses `first`."""
    return first / NODES / name.replace("/", "_")


def choose(explicit: str | None, last_resort: Path, environment: Mapping[str, str] | None = None) -> ChosenDir:
    """Makes and checks the directory of `find`, or a stand-in: a job must run even if its history can't be kept.

    `last_resort`: a directory of our own that exists. Blocks on a disk. Never raises.
    """
    wanted = find(explicit, environment)
    fault = _fault_after_making(wanted)
    if not fault:
        return ChosenDir(wanted)
    path = made_stand_in() or last_resort / STAND_IN
    with suppress(OSError):
        private_files.make_folder(path)
    return ChosenDir(
        path,
        f"cannot use state directory {wanted}: {fault}; history and logs are kept in {path} and may not outlive this "
        f"node's next reboot; name a directory that can be written with --state-dir or {STATE_DIR_VARIABLE}",
    )


def made_stand_in() -> Path | None:
    """Returns a stand-in that can be written, and makes it if need be; None if there is none. Blocks on a disk."""
    return next((place for own in default_dirs.own_dirs() if (place := _stand_in(own)) is not None), None)


def _stand_in(own: Path) -> Path | None:
    try:
        private_files.make_folder(own)
        if private_files.folder_fault(own):
            return None
        private_files.make_folder(own / STAND_IN)
        if private_files.folder_fault(own / STAND_IN):
            return None
        write_probe.write(own / STAND_IN)
    except OSError:
        return None
    return own / STAND_IN


def _fault_after_making(path: Path) -> str:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        private_files.make_folder(path)
        if not (fault := owner_fault(path)):
            write_probe.write(path)
        return fault
    except OSError as error:
        return error.strerror or str(error)


def owner_fault(path: Path) -> str:
    """Returns why a directory that exists can't be the state directory; "" if it can. Raises OSError."""
    found = path.stat()
    if found.st_uid != os.geteuid():
        return f"it belongs to user id {found.st_uid}, not {os.geteuid()}"
    return "others may write to it" if stat.S_IMODE(found.st_mode) & 0o022 else ""


def _home(variables: Mapping[str, str]) -> Path:
    """Returns HOME, else the home in the user database; the root for a user without an entry, who can't write there."""
    if variables.get("HOME"):
        return Path(variables["HOME"])
    try:
        return Path.home()
    except RuntimeError:
        return Path("/")


def default_log_dir(state_dir: Path) -> Path:
    """Returns the folder for <job_id>/<run>/cycle_<c>/rank_<r>/{stdout,stderr}.log, <job_id>/<run>/supervisor.log."""
    return state_dir / "logs"
