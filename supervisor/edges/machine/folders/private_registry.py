"""Which supervisors does this user have on the node that are at no usual place?

Each private one has an entry in folders of the user's own, where his commands look, too, and so has one that Slurm's
prolog has started for a job. The entries only help to find supervisors: if none can be written, the job keeps running
and a warning says so.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
from holdfast_wire import private_files

from supervisor.edges.machine import records
from supervisor.edges.machine.folders import default_dirs, socket_dir
from supervisor.edges.machine.processes import process_table

REGISTRATION_BYTES_MAX = 16 * 1024
RUNTIME_NAME = "holdfast-private"


class RegisteredSupervisor(msgspec.Struct, frozen=True):
    directory: Path
    pid: int
    started_at_ns: int  # Unix time
    is_daemon: bool = False


class _Entry(msgspec.Struct, frozen=True):
    """One file of the registry."""

    dir: str
    pid: records.Pid
    started_at_ns: records.UnixNs
    started_ticks: records.Ticks
    boot_id: str
    pid_namespace: int | None
    is_daemon: bool = False


class Registration:
    """Entries in the registry, which stay until `remove`. `warning`: what a person should look at, "" for nothing."""

    def __init__(self, paths: tuple[Path, ...], warning: str = "") -> None:
        self.paths = paths
        self.warning = warning

    def remove(self) -> None:
        """Removes the entries. An entry that is already gone is not an error."""
        for path in self.paths:
            _unlink(path)


def register(
    directory: Path,
    pid: int,
    started_at_ns: int,
    *,
    is_daemon: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Registration:
    """Lets this user's commands find the supervisor `pid`. `is_daemon`: it is not a private one. Never raises."""
    entry = process_table.look_up(pid)
    body = _Entry(
        dir=str(directory),
        pid=pid,
        started_at_ns=started_at_ns,
        started_ticks=entry.started_ticks if entry else 0,
        boot_id=process_table.boot_id(),
        pid_namespace=process_table.namespace(pid, "pid"),
        is_daemon=is_daemon,
    )
    name, text = f"{pid}-{body.started_ticks}.json", json.dumps(msgspec.to_builtins(body))
    written: list[Path] = []
    faults: list[str] = []
    # In the runtime directory and in a shared one: some shells of a user (cron, a Slurm step) do not know the first.
    for places in (_in_runtime_dirs(environment), default_dirs.own_dirs(environment)):
        for place in places:
            why_not = _write(place, name, text)
            if not why_not:
                written.append(place / name)
                break
            if place.parent in default_dirs.SHARED_TEMPS:
                faults.append(f"cannot use {place}: {why_not}")
    warning = ""
    if faults and not written:
        warning = (
            f"{'; '.join(faults)}; what runs here is not listed by holdfast status, which finds it with "
            f"--socket-dir {directory} alone"
        )
    elif faults and os.path.lexists(own := default_dirs.own_dirs(environment)[0]) and private_files.folder_fault(own):
        warning = f"{faults[0]}; {written[-1].parent} is used in its place; remove {own}, or ask its owner to"
    return Registration(tuple(written), warning)


def registered(*, environment: Mapping[str, str] | None = None) -> tuple[RegisteredSupervisor, ...]:
    """Returns the live supervisors of this user that are registered, oldest first. Removes entries of dead ones."""
    found: dict[tuple[int, int], RegisteredSupervisor] = {}
    for place in (*_in_runtime_dirs(environment), *default_dirs.own_dirs(environment)):
        if private_files.folder_fault(place):
            continue  # It does not exist or is not ours: nothing in it can be trusted.
        for path in place.glob("*.json"):
            entry = _read_entry(path)
            if entry is not None:
                found[(entry.pid, entry.started_at_ns)] = entry
    return tuple(sorted(found.values(), key=lambda entry: (entry.started_at_ns, entry.pid)))


def _in_runtime_dirs(environment: Mapping[str, str] | None) -> tuple[Path, ...]:
    return tuple(place / RUNTIME_NAME for place in default_dirs.runtime_dirs(environment))


def _write(place: Path, name: str, text: str) -> str:
    """Writes one entry. Returns why it can't be written, "" if it was."""
    target = place / name
    try:
        private_files.make_folder(place)
        if why := private_files.folder_fault(place):
            return why
        unfinished = target.with_suffix(".new")
        unfinished.write_text(text)
        unfinished.replace(target)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _read_entry(path: Path) -> RegisteredSupervisor | None:
    try:
        written = records.read(path, _Entry, bytes_max=REGISTRATION_BYTES_MAX)
    except OSError:
        return None
    entry = RegisteredSupervisor(Path(written.dir), written.pid, written.started_at_ns, written.is_daemon)
    is_of_this_boot = written.boot_id == process_table.boot_id()
    if is_of_this_boot and written.pid_namespace != process_table.namespace(os.getpid(), "pid"):
        # In another pid namespace the pid means nothing.
        return entry if socket_dir.answers(entry.directory / socket_dir.CONTROL_SOCKET) else None
    process = process_table.look_up(entry.pid)
    is_same = process is not None and process.state not in "ZX" and process.started_ticks == written.started_ticks
    if is_of_this_boot and is_same:
        return entry
    _unlink(path)
    return None


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return  # It is not ours to remove, or the whole directory is gone.
