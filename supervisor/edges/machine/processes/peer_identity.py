"""With which user, groups and limits may a job of a Unix socket's peer run? Only the kernel's answer counts."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import resource
import socket
from contextlib import suppress

import msgspec
from holdfast_wire import socket_user

_SO_PEERGROUPS = getattr(socket, "SO_PEERGROUPS", 59)  # on all architectures except parisc and sparc
GROUPS_MAX = 4096  # so that all of them fit into the argument and the record of a supervisor

Limits = tuple[tuple[str, int, int], ...]  # name without RLIMIT_, soft, hard; -1: none

# The rows of /proc/<pid>/limits. Unlike prlimit, a user may read them for root's processes.
ROWS = {
    "cpu time": "CPU", "file size": "FSIZE", "data size": "DATA", "stack size": "STACK", "core file size": "CORE",
    "resident set": "RSS", "processes": "NPROC", "open files": "NOFILE", "locked memory": "MEMLOCK",
    "address space": "AS", "pending signals": "SIGPENDING", "msgqueue size": "MSGQUEUE", "nice priority": "NICE",
    "realtime priority": "RTPRIO", "realtime timeout": "RTTIME",
}  # fmt: skip
_ROW = re.compile(r"Max (.+?) +(unlimited|\d+) +(unlimited|\d+) ")


class Identity(msgspec.Struct, frozen=True):
    """The rights of a process, as far as the kernel derives them from user and groups."""

    uid: int
    gid: int
    groups: tuple[int, ...]

    @property
    def name(self) -> str:
        """Returns a file name that is unique for this identity: the same user with other groups has another one."""
        text = ",".join(map(str, (self.gid, *sorted(self.groups))))
        return f"{self.uid}.{hashlib.sha256(text.encode()).hexdigest()[:12]}"


ROOT = Identity(0, 0, ())  # whatever groups a root shell has


def identity_of(sock: socket.socket) -> Identity:
    """Returns the peer's identity when it connected. Raises OSError if unknown or in more than GROUPS_MAX groups."""
    _, uid, gid = socket_user.credentials(sock)
    if uid == 0:
        return ROOT
    return Identity(uid, gid, tuple(sorted(_groups_of(sock))))


def _groups_of(sock: socket.socket) -> list[int]:
    """Returns the peer's groups. By the C library: Python's getsockopt takes 1,024 bytes at most, for 256 groups."""
    groups = (ctypes.c_uint32 * GROUPS_MAX)()
    size = ctypes.c_uint32(ctypes.sizeof(groups))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.getsockopt(sock.fileno(), socket.SOL_SOCKET, _SO_PEERGROUPS, groups, ctypes.byref(size)):
        raise OSError(number := ctypes.get_errno(), os.strerror(number))
    return groups[: size.value // ctypes.sizeof(ctypes.c_uint32)]


def uid_of(sock: socket.socket) -> int:
    """Returns the user id of the peer when it connected. Raises OSError."""
    return socket_user.credentials(sock).uid


def limits_of_peer(sock: socket.socket) -> Limits:
    """Returns the limits of the process that connected. Raises OSError if it is gone or in another pid namespace."""
    pid, uid, _ = socket_user.credentials(sock)
    if pid == 0:
        raise ProcessLookupError("it is in another pid namespace")
    _check_owner(pid, uid)
    limits = limits_of(pid)
    _check_owner(pid, uid)
    return limits


def _check_owner(pid: int, uid: int) -> None:
    """Raises ProcessLookupError if another process has the pid, or this one runs a setuid program, with its limits."""
    if os.stat(f"/proc/{pid}").st_uid != uid:
        raise ProcessLookupError(f"its process {pid} has ended, or has another user now")


def limits_of(pid: int) -> Limits:
    """Returns the limits of a process. Raises OSError."""
    with open(f"/proc/{pid}/limits") as file:
        found = {row[1]: (_number(row[2]), _number(row[3])) for row in map(_ROW.match, file) if row}
    return tuple((name, *found[row]) for row, name in ROWS.items() if row in found)


def set_limits(pid: int, limits: Limits) -> None:
    """Sets these limits, each reduced to what the process may have. Raises OSError if the process is gone."""
    for name, soft, hard in limits:
        number = getattr(resource, f"RLIMIT_{name}")
        may_have = resource.prlimit(pid, number)[1]
        wanted = (_less(soft, may_have), _less(hard, may_have))
        resource.prlimit(pid, number, wanted)


def raise_hard(pid: int, limits: Limits) -> None:
    """Raises hard limits to at least these, as far as root may. Needs root.

    Raises the soft one where both are equal, since a supervisor uses all that it may have; but never that of STACK, by
    which the C library sizes the stacks of all threads of the programs that it starts.
    """
    for name, _, hard in limits:
        number = getattr(resource, f"RLIMIT_{name}")
        with suppress(OSError, ValueError):  # more than the node allows, or the process is gone
            soft, had = resource.prlimit(pid, number)
            if _less(hard, had) != hard:
                resource.prlimit(pid, number, (hard if soft == had and name != "STACK" else soft, hard))


def highest(one: Limits, other: Limits) -> Limits:
    """Returns the limits of `one`, with hard ones at least those of `other`."""
    hard = {name: limit for name, _, limit in other}
    return tuple((name, soft, _more(limit, hard.get(name, limit))) for name, soft, limit in one)


def _number(text: str) -> int:
    return resource.RLIM_INFINITY if text == "unlimited" else int(text)


def _more(one: int, other: int) -> int:
    return other if _less(one, other) == one else one


def _less(one: int, other: int) -> int:
    if one == resource.RLIM_INFINITY:
        return other
    return one if other == resource.RLIM_INFINITY else min(one, other)


def user_variables(identity: Identity) -> dict[str, str]:
    """Returns HOME, USER, LOGNAME and SHELL, or nothing, from the user database. May block if that is on a server."""
    import pwd  # Late: only the start of a supervisor asks.

    with suppress(KeyError):
        found = pwd.getpwuid(identity.uid)
        return {"HOME": found.pw_dir, "USER": found.pw_name, "LOGNAME": found.pw_name, "SHELL": found.pw_shell}
    return {}
