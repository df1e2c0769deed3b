"""Where are the files of this job's private supervisor, and is it alive and answering?

All ranks of a job on a node use the same directory, which belongs only to this user. Ranks only read it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from holdfast_wire import private_files
from holdfast_wire.private_supervisor import ADOPTED_PREFIX, ENDPOINT_FILE, LIFE_FILE

from worker_client import job_nodes
from worker_client.endpoint import NO_PAGE_VARIABLE, Endpoint, NoEndpoint, from_environment
from worker_client.inprocess.exception import InternalError
from worker_client.inprocess.private_supervisor.lock_wait import locked_within

CONNECT_TIMEOUT_S = 1.0
ENDPOINT_BYTES_MAX = 16 * 1024
# Not TMPDIR: a socket's path must be short and the same for all ranks. The first that is ours and writable is used.
BASES = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))
RUN_ID_VARIABLES = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")
JOB_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", *RUN_ID_VARIABLES, "SLURM_STEP_ID")
ATTEMPT_VARIABLE = "TORCHELASTIC_RESTART_COUNT"  # for this node only: each agent counts its own ranks' failures

_attempts: dict[str, str] = {}  # for this process's jobs on several nodes, by launch_key()


def job_folder(environment: Mapping[str, str]) -> Path:
    """Returns the directory of this job's private supervisor, shared by exactly the job's ranks on this node."""
    node = f"-{job_nodes.node_rank(environment)}" if job_nodes.has_other_nodes(environment) else ""
    return _own_folder() / f"{ADOPTED_PREFIX}{job_key(environment)}{node}"


def job_key(environment: Mapping[str, str]) -> str:
    """Returns a key that all ranks of this job share, on all nodes, and no other rank has.

    Raises InternalError if nothing distinguishes them from others.
    """
    launched = launch_key(environment)
    return _digest([launched, _attempts[launched]]) if launched in _attempts else launched


def launch_key(environment: Mapping[str, str]) -> str:
    """Returns what the launcher tells all ranks of the job; on several nodes, the same at each start."""
    told = [f"{name}={environment.get(name, '')}" for name in JOB_VARIABLES]
    if job_nodes.has_other_nodes(environment):
        return _digest(told)
    told.append(f"{ATTEMPT_VARIABLE}={environment.get(ATTEMPT_VARIABLE, '')}")
    if not environment.get("MASTER_PORT"):
        if job_nodes.world_size(environment) > 1 and not run_id(environment):
            raise InternalError(
                "cannot tell which ranks belong to this job: neither MASTER_PORT nor TORCHELASTIC_RUN_ID is set; "
                "set one of them, the same on all ranks"
            )
        told.append("" if run_id(environment) else f"pid={os.getpid()}")  # One rank, which is this process.
    return _digest(told)


def note_attempt(environment: Mapping[str, str], attempt: str) -> None:
    """Notes the name that the ranks of several nodes agree on (node_meeting.py) for this start of the job."""
    _attempts[launch_key(environment)] = attempt


def has_attempt(environment: Mapping[str, str]) -> bool:
    return launch_key(environment) in _attempts


def run_id(environment: Mapping[str, str]) -> str:
    """Returns the launcher's id of the run; "" if it has none."""
    return next(
        (environment[name] for name in RUN_ID_VARIABLES if environment.get(name, "none") not in ("", "none")), ""
    )


def _digest(told: list[str]) -> str:
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:16]


def _own_folder() -> Path:
    """Returns the user's own directory. Raises InternalError about the first one if none is usable."""
    faults: list[InternalError] = []
    for base in BASES:
        try:
            path = private_folder(base / f"holdfast-{os.geteuid()}")
            if os.access(path, os.W_OK | os.X_OK, effective_ids=True):
                return path
            faults.append(
                InternalError(f"cannot use {path} for a private supervisor: it is read-only; check its file system")
            )
        except InternalError as error:
            faults.append(error)
    raise faults[0]


def private_folder(path: Path) -> Path:
    """Makes `path` a directory that only this user may enter. Raises InternalError."""
    try:
        private_files.make_folder(path)
    except OSError as error:
        raise InternalError(f"cannot make {path} for a private supervisor: {error.strerror}; free the name") from error
    if fault := private_files.folder_fault(path):
        raise InternalError(f"cannot use {path} for a private supervisor: {fault}; or remove it")
    return path


def find(folder: Path, environment: Mapping[str, str]) -> Endpoint | None:
    """Returns the supervisor that already serves this job, if we can connect to it."""
    try:
        with (folder / ENDPOINT_FILE).open("rb") as file:
            told = cast("dict[str, str]", json.loads(file.read(ENDPOINT_BYTES_MAX)))
        found = from_environment({**told, NO_PAGE_VARIABLE: environment.get(NO_PAGE_VARIABLE, "")})
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    if isinstance(found, NoEndpoint) or not _answers(found.socket_path):
        return None
    return found


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(CONNECT_TIMEOUT_S)
        try:
            probe.connect(path)
        except OSError:
            return False
        return True


def lives(folder: Path) -> bool:
    """Returns whether the supervisor of this directory is a live process, even if it does not answer."""
    try:
        descriptor = os.open(folder / LIFE_FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # A process forked meanwhile must not keep it.
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def wait_for_its_end(folder: Path, wait_s: float) -> None:
    """Blocks until the supervisor of this directory is no longer alive, at most `wait_s`."""
    try:
        descriptor = os.open(folder / LIFE_FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        if locked_within(descriptor, fcntl.LOCK_SH, wait_s=wait_s):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)
