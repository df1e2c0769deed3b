"""Where is this rank's supervisor, and how does the rank identify itself to it?"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast_wire.private_supervisor import CYCLE_VARIABLE, JOB_ID_VARIABLE, SOCKET_VARIABLE, TOKEN_VARIABLE

SOCKET_VARIABLES = (SOCKET_VARIABLE, "FT_RANK_MONITOR_IPC_SOCKET", "FT_LAUNCHER_IPC_SOCKET")
CYCLE_VARIABLES = (CYCLE_VARIABLE, "TORCHELASTIC_RESTART_COUNT")
NO_PAGE_VARIABLE = "HOLDFAST_NO_SHARED_PAGE"  # any value: progress is sent in frames, as if no page could be shared
TOKEN_BYTES_MAX = 4096

# A pipe yields its token only once, so it is kept for later readers. A file is read again, because the
# successor of a dead supervisor writes a token of its own.
_tokens: dict[str, bytes] = {}


@dataclass(frozen=True, slots=True)
class Endpoint:
    socket_path: str
    job_id: str
    cycle: int
    token: bytes
    can_share_page: bool = True


@dataclass(frozen=True, slots=True)
class NoEndpoint:
    """No supervisor can be reached; `reason` is for people."""

    reason: str


def from_environment(environment: Mapping[str, str]) -> Endpoint | NoEndpoint:
    """Reads what the supervisor put in this worker's environment, and the token's file. Never blocks, never raises."""
    socket_path = next((environment[name] for name in SOCKET_VARIABLES if environment.get(name)), "")
    if not socket_path:
        return NoEndpoint(f"{SOCKET_VARIABLES[0]} is not set; start the script with `holdfast run`")
    job_id, token_path = environment.get(JOB_ID_VARIABLE, ""), environment.get(TOKEN_VARIABLE, "")
    if not job_id or not token_path:
        return NoEndpoint(f"{JOB_ID_VARIABLE if not job_id else TOKEN_VARIABLE} is not set")
    cycle = next((environment[name] for name in CYCLE_VARIABLES if environment.get(name)), "0")
    if not cycle.isdecimal():
        return NoEndpoint(f"{CYCLE_VARIABLES[0]} is {cycle!r}, not a number")
    try:
        token = _read_cycle_token(token_path)
    except (OSError, ValueError) as error:
        return NoEndpoint(f"cannot read the token {token_path}: {error}")
    return Endpoint(socket_path, job_id, int(cycle), token, can_share_page=not environment.get(NO_PAGE_VARIABLE))


def _read_cycle_token(path: str) -> bytes:
    """Returns the token, from a file of this user or root, or from an inherited descriptor (/dev/fd/N)."""
    if (known := _tokens.get(path)) is not None:
        return known
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_nlink and status.st_uid not in (0, os.geteuid()):
            raise ValueError("it belongs to another user")
        token = b""
        while len(token) <= TOKEN_BYTES_MAX and (chunk := os.read(descriptor, TOKEN_BYTES_MAX)):
            token += chunk
    finally:
        os.close(descriptor)
    if not token:
        raise ValueError("it is empty")
    if len(token) > TOKEN_BYTES_MAX:
        raise ValueError(f"it has more than {TOKEN_BYTES_MAX} bytes")
    if not stat.S_ISREG(status.st_mode) or not status.st_nlink:
        _tokens[path] = token
    return token
