"""Which processes exist, and is this still the one that was meant?

A bare pid is no identity, because pids are reused. A pid with its start time is, within one boot and pid namespace.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator

import msgspec

ANCESTORS_MAX = 64
NO_DESCRIPTORS_REMEDY = (
    "use Linux 5.4 or newer and, in a container, a runtime whose seccomp profile knows pidfd_open (Docker 20.10.0, "
    "Podman 2.1, with libseccomp 2.5.0), or seccomp=unconfined"
)

_PR_SET_CHILD_SUBREAPER = 36


class ProcessEntry(msgspec.Struct, frozen=True):
    """One entry of the process table. `started_ticks` counts clock ticks since boot."""

    pid: int
    state: str  # one letter, as in /proc/<pid>/stat
    parent_pid: int
    session: int
    started_ticks: int


def look_up(pid: int) -> ProcessEntry | None:
    """Returns the process; None if it does not exist or may not be seen."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read(4096)
    except OSError:
        return None
    # The name in brackets may contain anything, even brackets and spaces: count fields from the last bracket.
    fields = text[text.rfind(b")") + 2 :].split()
    if len(fields) < 20:
        return None
    return ProcessEntry(
        pid=pid,
        state=fields[0].decode(),
        parent_pid=int(fields[1]),
        session=int(fields[3]),
        started_ticks=int(fields[19]),
    )


class NoDescriptorsError(OSError):
    """Raised if no process can be held by a descriptor here, whichever it is."""


def descriptor(pid: int) -> int:
    """Returns a descriptor of the process. Raises OSError: NoDescriptorsError if that is never possible here."""
    try:
        return os.pidfd_open(pid)
    except AttributeError as error:
        raise NoDescriptorsError(errno.ENOSYS, "this Python was built without pidfd_open") from error
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EPERM):
            what = f"the system call pidfd_open is refused ({error.strerror})"
            raise NoDescriptorsError(error.errno, what) from error
        raise


def all_processes() -> Iterator[ProcessEntry]:
    """Yields every visible process, zombies included."""
    for name in os.listdir("/proc"):
        if name.isdecimal():
            entry = look_up(int(name))
            if entry is not None:
                yield entry


def descends_from(pid: int, ancestor_pid: int) -> bool:
    """Returns whether `ancestor_pid` is a parent, grandparent, … of `pid`."""
    for _ in range(ANCESTORS_MAX):
        entry = look_up(pid)
        if entry is None or entry.parent_pid <= 1:
            return False
        pid = entry.parent_pid
        if pid == ancestor_pid:
            return True
    return False


def descendants(pid: int) -> list[ProcessEntry]:
    """Returns the children of `pid`, their children, … Reads all of /proc."""
    children: dict[int, list[ProcessEntry]] = {}
    for entry in all_processes():
        children.setdefault(entry.parent_pid, []).append(entry)
    found: dict[int, ProcessEntry] = {}
    waiting = [pid]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child.pid not in found:
                found[child.pid] = child
                waiting.append(child.pid)
    return list(found.values())


def send(entry: ProcessEntry, number: int) -> None:
    """Sends a signal by pidfd, and only if the pid is still that process. Never raises."""
    try:
        descriptor = os.pidfd_open(entry.pid)
    except OSError:
        return
    try:
        now = look_up(entry.pid)
        if now is not None and now.started_ticks == entry.started_ticks:
            signal.pidfd_send_signal(descriptor, number)
    except OSError:
        return  # It ended by itself.
    finally:
        os.close(descriptor)


def initial_variable(pid: int, name: str) -> str | None:
    """Returns a variable from the environment with which the process was exec'ed; None if unset or unreadable."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            content = file.read()
    except OSError:
        return None
    prefix = name.encode() + b"="
    for entry in content.split(b"\0"):
        if entry.startswith(prefix):
            return entry[len(prefix) :].decode(errors="replace")
    return None


def namespace(pid: int, kind: str) -> int | None:
    """Returns the number of the process's namespace of this kind ("pid", "user"); None if it can't be seen."""
    try:
        return os.stat(f"/proc/{pid}/ns/{kind}").st_ino
    except OSError:
        return None


def boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def become_subreaper() -> None:
    """Makes this process the parent, in place of init, of descendants whose parent dies."""
    import ctypes  # Late: only processes that start spawners need it, and the first spawner starts before.

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot become a child subreaper")
