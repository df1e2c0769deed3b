"""Do the folders of sockets, history and logs exist, and are they safe and large enough?"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from supervisor.edges.machine import network_folders
from supervisor.edges.machine.folders import default_dirs, socket_dir, state_dir, supervisor_owner, write_probe
from supervisor.edges.machine.journal.timed_reads import SilentDiskError, TimedReads
from supervisor.edges.machine.processes import home_folder
from supervisor.errors import ConfigurationError, NoSupervisorError
from supervisor.programs.doctor.doctor_finding import Area, DoctorFinding
from supervisor.programs.doctor.machine_probe import Machine

ANSWER_TIMEOUT_S = 5.0
FREE_MIN_BYTES = 1 << 30
LOCAL_REMEDY = f"name a folder on a local disk: --state-dir, or {state_dir.STATE_DIR_VARIABLE}"


def look(machine: Machine, *, sockets: str | None = None, state: str | None = None) -> list[DoctorFinding]:
    places = socket_dir.candidates(sockets, machine.environ)
    history = state_dir.find(state, machine.environ)
    return [
        *_in_time(
            "service",
            " or ".join(str(place.path) for place in places),
            lambda area: _service(area, places),
            remedy=f"name a folder on a local disk: --socket-dir, or {socket_dir.SOCKET_DIR_VARIABLE}",
        ),
        *_in_time("state", str(history), lambda area: _history(area, history), remedy=LOCAL_REMEDY),
        *_in_time(
            "sockets of a run",
            "a folder for temporary files",
            lambda area: _temporary(area, machine),
            remedy="set TMPDIR and HOME to folders on a local disk",
        ),
    ]


def _in_time(check: str, where: str, look: Callable[[Area], None], *, remedy: str) -> list[DoctorFinding]:
    """Returns what `look` finds; a warning if a disk does not answer it."""

    def findings() -> list[DoctorFinding]:
        area = Area("folders")
        look(area)
        return area.findings

    try:
        return TimedReads().read(findings, place=where, within_s=ANSWER_TIMEOUT_S)
    except SilentDiskError:
        area = Area("folders")
        area.warn(
            check,
            f"{where}: no answer from its disk within {ANSWER_TIMEOUT_S:g} s",
            why="holdfast run waits for that disk before it starts a job",
            remedy=remedy,
        )
        return area.findings


def _service(area: Area, places: tuple[socket_dir.Candidate, ...]) -> None:
    """Adds a finding on whose sockets a command would use."""
    for place in places:
        if socket_dir.answers(place.path / socket_dir.CONTROL_SOCKET):
            _answering(area, place)
            return
    for place in places:
        if place.explicit or _is_own(place.path):
            _unanswered(area, place)
            return
    area.ok("service", "none answers here: holdfast run supervises its own job")


def _answering(area: Area, place: socket_dir.Candidate) -> None:
    try:
        with supervisor_owner.opened(place.path):
            area.ok("service", f"a supervisor answers at {place.path}")
    except NoSupervisorError as error:
        found, _, remedy = str(error).partition("; ")
        tell, ends = (area.problem, "ends with exit code 69") if place.explicit else (area.warn, "leaves it out")
        tell("service", found, why=f"holdfast run hands it no job, and {ends}", remedy=remedy)


def _is_own(path: Path) -> bool:
    """Returns whether the folder is there and this user's: another's service, such as root's, is none of ours."""
    try:
        return path.lstat().st_uid == os.geteuid()
    except OSError:
        return False


def _unanswered(area: Area, place: socket_dir.Candidate) -> None:
    try:
        if os.path.exists(place.path) and not os.path.isdir(place.path / socket_dir.USERS):  # All may enter that one.
            socket_dir.check(place.path)
    except ConfigurationError as error:
        area.problem(
            "service",
            str(error),
            why="holdfast daemon would refuse it, since others could take its sockets' place",
            remedy=f"chmod 0700 {place.path}, chown it to the service's user, or name another with --socket-dir",
        )
        return
    told = f"nobody answers at {place.path}"
    if place.explicit:
        area.problem(
            "service",
            told,
            why="it was named, so commands end with exit code 69 instead of looking elsewhere",
            remedy=f"holdfast daemon --socket-dir {place.path}, or unset {socket_dir.SOCKET_DIR_VARIABLE}",
        )
    else:
        area.note(
            "service",
            told,
            why="a service ran there once; until it does again, holdfast run supervises its own job",
            remedy="systemctl start holdfast, or holdfast daemon",
        )


def _history(area: Area, path: Path) -> None:
    """Adds a finding on whether history and logs can be kept."""
    try:
        there = _nearest(path)
        fault = _fault(path, there)
        disk = os.statvfs(there)
    except OSError as error:
        _refused(area, path, error.strerror or str(error))
        return
    if fault:
        _refused(area, path, fault)
        return
    kind, free = network_folders.file_system(there), disk.f_bavail * disk.f_frsize
    told = f"{path} on {kind or 'an unknown file system'}, {free / 2**30:.1f} GiB free"
    if kind in network_folders.NETWORK_FILE_SYSTEMS:
        area.warn(
            "state",
            told,
            why="where its server hangs, history and logs wait for it",
            remedy=LOCAL_REMEDY,
        )
    elif free < FREE_MIN_BYTES:
        area.warn(
            "state",
            told,
            why="on a full disk, output that nobody reads is lost; training goes on",
            remedy=f"make room on the disk of {there}, or lower --log-gib-max",
        )
    else:
        area.ok("state", told)


def _refused(area: Area, path: Path, fault: str) -> None:
    area.warn(
        "state",
        f"{path}: {fault}",
        why="history and logs go to a folder below /tmp instead, and may not outlive the next reboot",
        remedy=f"name one that only you may write: --state-dir, or {state_dir.STATE_DIR_VARIABLE}",
    )


def _nearest(path: Path) -> Path:
    """Returns the path itself, or what exists nearest above it. Raises OSError."""
    for each in (path, *path.parents):
        with suppress(FileNotFoundError, NotADirectoryError):
            each.stat()
            return each
    return Path("/")


def _fault(path: Path, there: Path) -> str:
    """Returns why a run would refuse the folder; "" if it would not. Raises OSError."""
    if there != path:
        if not there.is_dir():
            return f"{there} is not a directory"
        return "" if os.access(there, os.W_OK | os.X_OK) else f"it is not there, and {there} may not be written"
    if not (fault := state_dir.owner_fault(path)):
        write_probe.write(path)
    return fault


def _temporary(area: Area, machine: Machine) -> None:
    for folder in default_dirs.temp_dirs(machine.environ):
        try:
            is_at_home = folder == home_folder.home_dir(machine.environ)
            write_probe.write(folder.parent if is_at_home else folder)
        except OSError:
            continue
        if socket_dir.longest_socket_path_fits(folder / "holdfast-run-00000000"):
            area.ok("sockets of a run", f"{folder}")
            return
    area.problem(
        "sockets of a run",
        "no folder for temporary files can be written",
        why="holdfast run needs one for its sockets",
        remedy="set TMPDIR to a folder of your own with a short path",
    )
