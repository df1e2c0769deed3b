"""Which processes exist, and is this still the one that was meant?

A bare pid is not an identity, because pids are reused. A pid with its start time is, within one boot and pid namespace.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
from collections.abc import Iterator

from holdfast_wire.process_sweep import Entry as ProcessEntry
from holdfast_wire.process_sweep import all_pids, look_up
from holdfast_wire.process_sweep import send as send

ANCESTORS_MAX = 64

ENVIRON_BYTES_MAX = 8 << 20  # execve takes less; a process may claim any range of its memory for its environment
_PR_SET_CHILD_SUBREAPER = 36
# vfork would stop every thread of this process until the child has executed: if its folder or program is on a file
# system that does not answer, that never happens.
subprocess._USE_VFORK = False  # pyright: ignore[reportPrivateUsage] - the documented switch


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


def descriptor_of_child(process: subprocess.Popen[bytes]) -> int:
    """Returns a descriptor of a child that was just started. If there is none left, ends it and raises OSError."""
    try:
        return descriptor(process.pid)
    except OSError:
        discard(process)
        raise


def discard(process: subprocess.Popen[bytes]) -> None:
    """Kills a child that nobody wants any more, and waits for its end."""
    process.kill()
    process.wait()
    for end in (process.stdin, process.stdout, process.stderr):
        if end is not None:
            end.close()


def all_processes() -> Iterator[ProcessEntry]:
    """Yields every visible process, zombies included."""
    return filter(None, map(look_up, all_pids()))


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


def initial_variable(pid: int, name: str) -> str | None:
    """Returns a variable from the environment with which the process was exec'ed; None if unset or unreadable."""
    return initial_variables(pid, name)[0]


def initial_variables(pid: int, *names: str) -> tuple[str | None, ...]:
    """Returns several variables of one moment: a process that executes another program shows none meanwhile."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            content = file.read(ENVIRON_BYTES_MAX)
    except OSError:
        content = b""
    first = {name: value for name, _, value in (entry.partition(b"=") for entry in reversed(content.split(b"\0")))}
    found = (first.get(name.encode()) for name in names)
    return tuple(value.decode(errors="replace") if value is not None else None for value in found)


def has_initial_variables(pid: int) -> bool:
    """Returns whether any can be read: a process that ends, or has overwritten them by a title, shows none."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return re.search(rb"(?:^|\0)[A-Za-z_]\w*=", file.read(ENVIRON_BYTES_MAX)) is not None
    except OSError:
        return False


def is_being_killed(pid: int) -> bool:
    """Returns whether SIGKILL was sent to it and has not ended it yet, since it waits in the kernel."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            pending = re.findall(rb"^(?:SigPnd|ShdPnd):\s*([0-9a-f]+)$", file.read(), re.MULTILINE)
    except OSError:
        return False
    return any(int(each, 16) >> (signal.SIGKILL - 1) & 1 for each in pending)


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
