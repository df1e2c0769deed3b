"""Do the folders of sockets, history and logs exist, and are they safe and large enough?"""

from __future__ import annotations

import os
from pathlib import Path

from supervisor.edges.machine.folders import socket_dir, state_dir, supervisor_owner, user_dirs, write_probe
from supervisor.edges.machine.processes import home_folder
from supervisor.errors import ConfigurationError, NoSupervisorError
from supervisor.programs.doctor.doctor_finding import Area, DoctorFinding
from supervisor.programs.doctor.machine_probe import Machine

FREE_MIN_BYTES = 1 << 30
OF_NETWORKS = {"nfs", "nfs4", "lustre", "cifs", "smb3", "ceph", "gpfs", "beegfs", "fuse.sshfs", "9p"}


def look(machine: Machine, *, sockets: str | None = None, state: str | None = None) -> list[DoctorFinding]:
    area = Area("folders")
    _service(area, machine, sockets)
    _history(area, machine, state_dir.find(state, machine.environ))
    _temporary(area, machine)
    return area.findings


def _service(area: Area, machine: Machine, explicit: str | None) -> None:
    """Adds a finding on whose sockets a command would use."""
    places = socket_dir.candidates(explicit, machine.environ)
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
        if os.path.exists(place.path) and not (place.path / socket_dir.USERS).is_dir():  # All users may enter that one.
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


def _history(area: Area, machine: Machine, path: Path) -> None:
    there = _nearest(path)
    fault = _fault(path, there)
    if fault:
        area.warn(
            "state",
            f"{path}: {fault}",
            why="history and logs go to a folder below /tmp instead, and may not outlive the next reboot",
            remedy=f"name one that can be written: --state-dir, or {state_dir.STATE_DIR_VARIABLE}",
        )
        return
    kind = file_system(machine, there)
    free = os.statvfs(there).f_bavail * os.statvfs(there).f_frsize
    told = f"{path} on {kind or 'an unknown file system'}, {free / 2**30:.1f} GiB free"
    if kind in OF_NETWORKS:
        area.warn(
            "state",
            told,
            why="where its server hangs, history and logs wait for it",
            remedy=f"name a folder on a local disk: --state-dir, or {state_dir.STATE_DIR_VARIABLE}",
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


def _nearest(path: Path) -> Path:
    """Returns the folder itself, or the nearest existing folder above it."""
    return next(each for each in (path, *path.parents) if os.path.exists(each))


def _fault(path: Path, there: Path) -> str:
    if there != path:
        return "" if os.access(there, os.W_OK) else f"it is not there, and {there} may not be written"
    if path.stat().st_uid != os.geteuid():
        return f"it belongs to user id {path.stat().st_uid}, not {os.geteuid()}"
    try:
        write_probe.write(path)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def file_system(machine: Machine, path: Path) -> str:
    """Returns the type of the file system as mounted; "" if the kernel does not report it."""
    best, kind = "", ""
    for line in machine.text("/proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        point = left.split()[4].replace("\\040", " ")
        if (path.is_relative_to(point)) and len(point) >= len(best):
            best, kind = point, right.split()[0]
    return kind


def _temporary(area: Area, machine: Machine) -> None:
    for folder in user_dirs.temp_dirs(machine.environ):
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
