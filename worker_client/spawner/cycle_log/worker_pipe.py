"""What is known of one worker's pipe, and of the pipe from it to the process that writes?"""

from __future__ import annotations

import contextlib
import fcntl
import termios
from typing import NamedTuple

PIPE_BYTES = 1024 * 1024
REST_MIN_S = 0.004
STALLED = "the process that writes the log was stalled"


class Place(NamedTuple):
    """Where the output of a cycle goes. The log process gets it as it is."""

    path: str
    sender_socket: str = ""  # of the sender to the job's log server, which then writes the file; "": there is none
    run_began_ms: int = 0  # when this run of the job began, in Unix time; 0: unknown


class Feed:
    """One worker's pipe, and the pipe to the process that writes."""

    __slots__ = (
        "cycle",
        "fd",
        "has_ended",
        "is_held",
        "is_resting",
        "is_stuck",
        "local_rank",
        "loss_reason",
        "lost_bytes",
        "pending",
        "place",
        "prefix",
        "rest_bytes_max",
        "rest_s",
        "sink",
        "tail",
    )  # fmt: skip

    def __init__(self, fd: int, cycle: int, local_rank: int, place: Place, prefix: str) -> None:
        self.fd = fd  # -1: closed
        self.cycle = cycle
        self.local_rank = local_rank
        self.place = place
        self.prefix = prefix
        self.sink = -1
        self.tail = b""
        self.pending = b""  # read, but not in the sink yet
        self.has_ended = False
        self.is_held = False  # not read until the sink takes bytes
        self.is_resting = False
        self.rest_bytes_max = 0
        self.rest_s = REST_MIN_S
        self.is_stuck = False  # was held for too long: its output is dropped
        self.lost_bytes = 0  # since then
        self.loss_reason = STALLED


def waiting_bytes(pipe: int) -> int:
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, b"\0\0\0\0"), "little")


def enlarge(pipe: int) -> None:
    with contextlib.suppress(OSError):  # Above pipe-max-size or the user's quota, 64 KiB must do.
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
