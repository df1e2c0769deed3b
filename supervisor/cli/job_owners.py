"""Whose is a supervisor, and how is another user's job named? Only the kernel and root's own folders say whose.

A job of another user is named USER/JOB: two users may have the same job id, and no supervisor can say whose it is.
"""

from __future__ import annotations

import os
import pwd
import socket
from functools import cache
from pathlib import Path

import msgspec

from supervisor.edges.machine.folders import socket_dir, supervisor_owner
from supervisor.edges.machine.processes.peer_credentials import Peer

BETWEEN = "/"  # no job id holds it


class ProbeResult(msgspec.Struct, frozen=True):
    """What a socket answered. `why_not` "": it accepts connections. `uid`: whose supervisor is behind it."""

    why_not: str
    uid: int = -1
    pid: int = 0  # of that supervisor; 0: unknown, as behind the socket of a service
    is_slow: bool = False  # somebody listens, but has not accepted so far


def probe_supervisor(socket_path: Path) -> ProbeResult:
    """Connects once, within a second. Needs no gRPC."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(socket_dir.PROBE_TIMEOUT_S)
        try:
            probe.connect(str(socket_path))
            peer = Peer.of(probe)
            uid = supervisor_owner.owner(socket_path, peer.uid)
            return ProbeResult("", uid, peer.pid if uid == peer.uid else 0)
        except (TimeoutError, BlockingIOError):  # Its queue is full.
            return ProbeResult(f"it does not accept within {socket_dir.PROBE_TIMEOUT_S:g} s", is_slow=True)
        except OSError as error:
            return ProbeResult((error.strerror or str(error)).lower())


@cache
def user_name(uid: int) -> str:
    """Returns the user's name; the id of a user without one."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return str(uid)


def name_of(job_id: str, uid: int) -> str:
    """Returns how this user names the job: with its user if it is somebody else's."""
    return job_id if uid == os.geteuid() else f"{user_name(uid)}{BETWEEN}{job_id}"


def is_user(word: str, uid: int) -> bool:
    """Returns whether the word means that user: a name or an id."""
    return word in (user_name(uid), str(uid))


def who_asks() -> str:
    """Returns the user's name for the reason that is recorded."""
    name = user_name(os.getuid())
    return f"user id {name}" if name.isdecimal() else name
