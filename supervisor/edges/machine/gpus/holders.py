"""Which processes have a GPU open, what are they called, and which of them are left over of a job?

Read from /proc, in the process that may be lost. NVML counts pids as the host does: in a container, only the open
device files tell who it is.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

NAME_MAX = 64


class Job(NamedTuple):
    """By what a process of a job is known: the cgroups of its spawners, and two variables that no other job shares."""

    job_id: str = ""
    socket: str = ""
    cgroups: tuple[str, ...] = ()  # names of the folders


def with_device_open(minors: set[int], *, proc: str = "/proc", dev: str = "/dev") -> set[int]:
    """The pids of processes that have one of /dev/nvidia<minor> open, as far as they may be looked at."""
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
    except OSError:  # It has ended, or is another user's.
        return
    for number in numbers:
        with suppress(OSError):
            yield os.readlink(f"{folder}/{number}")


def described(pid: int, *, proc: str = "/proc") -> tuple[str, str]:
    """Its name and its user; "" where it is not there, or in another pid namespace."""
    try:
        with open(f"{proc}/{pid}/comm", encoding="utf-8", errors="replace") as file:
            name = file.read().strip()[:NAME_MAX]
        uid = os.stat(f"{proc}/{pid}").st_uid
    except OSError:
        return "", ""
    return name, _user(uid)


def _user(uid: int) -> str:
    """From the file alone: a name service may not answer."""
    with suppress(OSError), open("/etc/passwd", encoding="utf-8", errors="replace") as file:
        for line in file:
            parts = line.split(":")
            if len(parts) > 2 and parts[2] == str(uid):
                return parts[0]
    return f"user {uid}"


def is_of(job: Job, pid: int, *, proc: str = "/proc") -> bool:
    """Whether the process was started by this job, under this supervisor."""
    with suppress(OSError), open(f"{proc}/{pid}/cgroup", encoding="utf-8", errors="replace") as file:
        for line in file:
            if not set(job.cgroups).isdisjoint(line.rstrip("\n").split("/")):
                return True
    if not job.job_id or not job.socket:
        return False
    with suppress(OSError), open(f"{proc}/{pid}/environ", "rb") as file:
        variables = set(file.read().split(b"\0"))
        return {
            f"HOLDFAST_JOB_ID={job.job_id}".encode(),
            f"HOLDFAST_SOCKET={job.socket}".encode(),
        } <= variables
    return False


def end_if_of(job: Job, pid: int) -> bool:
    """Kills it if it is of the job. By a handle, so that no other process that has got its number can be hit."""
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
