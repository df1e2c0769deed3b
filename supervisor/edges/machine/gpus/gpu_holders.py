"""Which processes have a GPU open, what are their names and users, and which of them did the job leave over?

The disposable process reads this from /proc. NVML reports pids of the host's namespace: in a container, only the open
device files show which processes they are.
"""

from __future__ import annotations

import os
import pwd
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

NAME_MAX = 64
USERS_MAX = 64  # whose names are known or being looked up
_ENVIRON_BYTES_MAX = 8 << 20  # see process_table.py


class Job(NamedTuple):
    """What identifies the processes of a job: its spawners' cgroups, and two variables that no other job shares."""

    job_id: str = ""
    socket: str = ""
    cgroups: tuple[str, ...] = ()  # names of the folders


def with_device_open(minors: set[int], *, proc: str = "/proc", dev: str = "/dev") -> set[int]:
    """Returns the pids of processes that have one of /dev/nvidia<minor> open, as far as we may see them."""
    wanted = {f"{dev}/nvidia{minor}" for minor in minors}
    own = os.getpid()
    return {pid for pid in _pids(proc) if pid != own and not wanted.isdisjoint(_open_files(pid, proc))}


def _pids(proc: str) -> Iterator[int]:
    with suppress(OSError):
        for name in os.listdir(proc):
            if name.isdigit():
                yield int(name)


def _open_files(pid: int, proc: str) -> Iterator[str]:
    folder = f"{proc}/{pid}/fd"
    try:
        numbers = os.listdir(folder)
    except OSError:  # It has ended, or belongs to another user.
        return
    for number in numbers:
        with suppress(OSError):
            yield os.readlink(f"{folder}/{number}")


class UserNames:
    """The names of users. Threads ask the user database: it may be on a server, which may not answer."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}

    def of(self, uid: int) -> str:
        """Returns the user's name; "user 1000" if there is none, or as long as it is looked up. Never blocks."""
        unnamed = f"user {uid}"
        if uid not in self._names and len(self._names) < USERS_MAX:
            self._names[uid] = unnamed
            with suppress(RuntimeError, MemoryError):  # Without a thread, the id has to do.
                threading.Thread(target=self._look_up, args=(uid,), name="user name", daemon=True).start()
        return self._names.get(uid, unnamed)

    def _look_up(self, uid: int) -> None:
        try:
            self._names[uid] = pwd.getpwuid(uid).pw_name
        except (KeyError, OverflowError, OSError):  # The next one who asks has it looked up again.
            self._names.pop(uid, None)


def described(pid: int, users: UserNames, *, proc: str = "/proc") -> tuple[str, str]:
    """Returns the name and the user of a process; "" if it is gone or in another pid namespace. Never blocks."""
    try:
        with open(f"{proc}/{pid}/comm", encoding="utf-8", errors="replace") as file:
            name = file.read().strip()[:NAME_MAX]
        uid = os.stat(f"{proc}/{pid}").st_uid
    except OSError:
        return "", ""
    return name, users.of(uid)


def is_of(job: Job, pid: int, *, proc: str = "/proc") -> bool:
    """Returns whether this job started the process, under this supervisor."""
    with suppress(OSError), open(f"{proc}/{pid}/cgroup", encoding="utf-8", errors="replace") as file:
        for line in file:
            if not set(job.cgroups).isdisjoint(line.rstrip("\n").split("/")):
                return True
    if not job.job_id or not job.socket:
        return False
    with suppress(OSError), open(f"{proc}/{pid}/environ", "rb") as file:
        variables = set(file.read(_ENVIRON_BYTES_MAX).split(b"\0"))
        return {
            f"HOLDFAST_JOB_ID={job.job_id}".encode(),
            f"HOLDFAST_SOCKET={job.socket}".encode(),
        } <= variables
    return False


def end_if_of(job: Job, pid: int) -> bool:
    """Kills the process if it belongs to the job. Uses a pidfd, so a process that reuses the pid is never hit."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if not is_of(job, pid):
            return False
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True
