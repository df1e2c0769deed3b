"""Which directory holds a supervisor's sockets, is it safe to use, and which private supervisors are there?

A socket directory is a 0700 directory of our own: whoever may connect is decided by it before any byte is read.
"""

from __future__ import annotations

import json
import os
import socket
import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec

from supervisor.edges.machine import process_table
from supervisor.errors import ConfigurationError, NoSupervisorError

SOCKET_DIR_VARIABLE = "HOLDFAST_SOCKET_DIR"
WORKER_SOCKET = "worker.sock"
CONTROL_SOCKET = "control.sock"
SYSTEM_DIR = Path("/run/holdfast")
SHARED_TEMP = Path("/tmp")
SOCKET_PATH_BYTES_MAX = 107  # sun_path, less its final zero
PROBE_TIMEOUT_S = 1.0
REGISTRATION_BYTES_MAX = 16 * 1024


class Candidate(msgspec.Struct, frozen=True):
    """A directory in which a supervisor may serve. `explicit`: the user named it, so nobody else will do."""

    path: Path
    explicit: bool


# --- where ---------------------------------------------------------------------------------------------------------


def candidates(explicit: str | None = None, environment: Mapping[str, str] | None = None) -> tuple[Candidate, ...]:
    """Where a command looks for a node's supervisor, in order. Explicit: the one and only place."""
    variables = os.environ if environment is None else environment
    chosen = explicit or variables.get(SOCKET_DIR_VARIABLE)
    if chosen:
        return (Candidate(Path(chosen).absolute(), explicit=True),)
    user_dir = _user_runtime_dir(variables)
    places = [user_dir / "holdfast"] if user_dir is not None else []
    return tuple(Candidate(path, explicit=False) for path in (*places, SYSTEM_DIR))


def service_dir_for_daemon(explicit: str | None = None, environment: Mapping[str, str] | None = None) -> Path:
    """Where `holdfast daemon` serves. Creates nothing. Raises ConfigurationError."""
    variables = os.environ if environment is None else environment
    chosen = explicit or variables.get(SOCKET_DIR_VARIABLE)
    if chosen:
        return Path(chosen).absolute()
    if os.geteuid() == 0:
        return SYSTEM_DIR
    user_dir = _user_runtime_dir(variables)
    if user_dir is None:
        raise ConfigurationError("cannot choose a socket directory: XDG_RUNTIME_DIR is not set; give --socket-dir")
    return user_dir / "holdfast"


def private_dir() -> Path:
    """A new 0700 directory for a private supervisor; its owner removes it at the end.

    Not in XDG_RUNTIME_DIR: that one is wiped when the user logs out, and a job may stay.
    """
    import tempfile  # Late: it takes 5 ms, for which the start of the spawner would wait.

    prefix = "holdfast-"
    longest = len(os.fsencode(os.path.join(tempfile.gettempdir(), f"{prefix}01234567", CONTROL_SOCKET)))
    place = SHARED_TEMP if longest > SOCKET_PATH_BYTES_MAX else None
    try:
        return Path(tempfile.mkdtemp(prefix=prefix, dir=place))
    except OSError as error:
        raise ConfigurationError(
            f"cannot make a private socket directory: {error}; set TMPDIR to a directory that can be written"
        ) from error


def answers(path: Path) -> bool:
    """Whether somebody accepts connections at this socket. Blocks for PROBE_TIMEOUT_S at most."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_TIMEOUT_S)
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


def nobody_answers(path: Path) -> NoSupervisorError:
    """What to raise where the user named a directory and `answers` is false."""
    return NoSupervisorError(
        f"cannot reach a supervisor in {path}: nobody answers there; "
        f"start one with holdfast daemon --socket-dir {path}, or leave --socket-dir and HOLDFAST_SOCKET_DIR out"
    )


def _user_runtime_dir(variables: Mapping[str, str]) -> Path | None:
    value = variables.get("XDG_RUNTIME_DIR", "")
    return Path(value) if os.path.isabs(value) else None


# --- is it safe ----------------------------------------------------------------------------------------------------


def make(path: Path) -> None:
    """Create it with mode 0700, or check the one that is there. Raises ConfigurationError."""
    make_closed(path)
    check(path)


def check(path: Path) -> None:
    """Raises ConfigurationError unless it is our own, closed to others, and its path leaves room for a socket's."""
    _check_closed(path)
    longest = len(os.fsencode(path / CONTROL_SOCKET))
    if longest > SOCKET_PATH_BYTES_MAX:
        raise ConfigurationError(
            f"cannot use socket directory {path}: the path of a socket in it has {longest} bytes, "
            f"{SOCKET_PATH_BYTES_MAX} are possible; choose a shorter one with --socket-dir"
        )


def make_closed(path: Path) -> None:
    """The same for a directory without sockets."""
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise ConfigurationError(
            f"cannot make socket directory {path}: {error.strerror or error}; choose another with --socket-dir"
        ) from error
    _check_closed(path)


def _check_closed(path: Path) -> None:
    fault = _fault_of(path)
    if fault:
        raise ConfigurationError(f"cannot use socket directory {path}: {fault}")


def _fault_of(path: Path) -> str:
    elsewhere = "choose another with --socket-dir"
    try:
        found = path.lstat()
    except OSError as error:
        return f"{error.strerror or error}; {elsewhere}"
    if stat.S_ISLNK(found.st_mode):
        return f"it is a symbolic link; {elsewhere}"
    if not stat.S_ISDIR(found.st_mode):
        return f"it is not a directory; {elsewhere}"
    if found.st_uid != os.geteuid():
        return f"it belongs to user id {found.st_uid}, not {os.geteuid()}; {elsewhere}"
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        return f"its mode is {mode:04o}, so others may enter it; chmod 0700 {path}"
    return ""


# --- private supervisors of this user ------------------------------------------------------------------------------


class RegisteredSupervisor(msgspec.Struct, frozen=True):
    directory: Path
    pid: int
    started_at_ns: int  # Unix time


class Registration:
    """An entry in the registry, until `remove`."""

    def __init__(self, paths: tuple[Path, ...]) -> None:
        self.paths = paths

    def remove(self) -> None:
        """Never raises for an entry that is gone."""
        for path in self.paths:
            _unlink(path)


def register(
    directory: Path, pid: int, started_at_ns: int, *, environment: Mapping[str, str] | None = None
) -> Registration:
    """Let this user's commands find the private supervisor `pid`. Raises ConfigurationError if that's impossible."""
    entry = process_table.look_up(pid)
    body = {
        "dir": str(directory),
        "pid": pid,
        "started_at_ns": started_at_ns,
        "started_ticks": entry.started_ticks if entry else 0,
        "boot_id": process_table.boot_id(),
        "pid_namespace": process_table.namespace(pid, "pid"),
    }
    written: list[Path] = []
    faults: list[str] = []
    # In every place, since not every shell of a user (cron, a Slurm step) has the same XDG_RUNTIME_DIR.
    for place in _registries(environment):
        try:
            make_closed(place)
            target = place / f"{pid}-{body['started_ticks']}.json"
            unfinished = target.with_suffix(".new")
            unfinished.write_text(json.dumps(body))
            unfinished.replace(target)
            written.append(target)
        except (ConfigurationError, OSError) as error:
            faults.append(str(error))
    if not written:
        raise ConfigurationError(
            "cannot register this supervisor, so other commands won't see it: " + "; ".join(faults)
        )
    return Registration(tuple(written))


def registered(*, environment: Mapping[str, str] | None = None) -> tuple[RegisteredSupervisor, ...]:
    """Live private supervisors of this user, oldest first. Entries of dead ones are removed on the way."""
    found: dict[tuple[int, int], RegisteredSupervisor] = {}
    for place in _registries(environment):
        if _fault_of(place):
            continue  # Not there, or not ours: nothing in it can be believed.
        for path in place.glob("*.json"):
            entry = _read_entry(path)
            if entry is not None:
                found[(entry.pid, entry.started_at_ns)] = entry
    return tuple(sorted(found.values(), key=lambda entry: (entry.started_at_ns, entry.pid)))


def _registries(environment: Mapping[str, str] | None) -> list[Path]:
    user_dir = _user_runtime_dir(os.environ if environment is None else environment)
    places = [user_dir / "holdfast-private"] if user_dir is not None else []
    return [*places, SHARED_TEMP / f"holdfast-{os.geteuid()}"]


def _read_entry(path: Path) -> RegisteredSupervisor | None:
    try:
        with path.open("rb") as file:
            body = json.loads(file.read(REGISTRATION_BYTES_MAX))
        entry = RegisteredSupervisor(Path(str(body["dir"])), int(body["pid"]), int(body["started_at_ns"]))
        ticks, boot, namespace = int(body["started_ticks"]), str(body["boot_id"]), body["pid_namespace"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if boot == process_table.boot_id() and namespace != process_table.namespace(os.getpid(), "pid"):
        return entry if answers(entry.directory / CONTROL_SOCKET) else None  # its pid means nothing here
    process = process_table.look_up(entry.pid)
    same_boot = boot == process_table.boot_id()
    if same_boot and process is not None and process.state not in "ZX" and process.started_ticks == ticks:
        return entry
    _unlink(path)
    return None


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return  # Not ours to remove, or the whole directory is gone.
