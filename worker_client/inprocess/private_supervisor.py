"""Who decides for a rank that nobody supervises? A private supervisor in the background, one for all ranks of the node.

Under plain python, torchrun or srun the first rank of the job that needs it starts `python -m supervisor adopt`; the
others find it in a directory of this user that is named after the job. It is no child of any rank, outlives the one
that started it and ends with the last of them.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import select
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Generator, Mapping
from pathlib import Path
from time import monotonic
from typing import cast

from worker_client.endpoint import (
    JOB_ID_VARIABLE,
    NO_PAGE_VARIABLE,
    SOCKET_VARIABLES,
    TOKEN_VARIABLE,
    Endpoint,
    NoEndpoint,
    from_environment,
)
from worker_client.inprocess.exception import InternalError

START_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 1.0
ENDPOINT_FILE = "endpoint.json"
LOG_FILE = "supervisor.log"
LOCK_FILE = "inprocess.lock"  # one for all jobs of this user: a file of each job's own could never be removed safely
ENDPOINT_BYTES_MAX = 16 * 1024
WORD_BYTES_MAX = 4096
BASE = Path("/tmp")  # not TMPDIR: a socket's path is short, and all ranks must name the same one
RUN_ID_VARIABLES = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")
JOB_VARIABLES = (
    *("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", *RUN_ID_VARIABLES),
    *("SLURM_STEP_ID", "TORCHELASTIC_RESTART_COUNT"),
)
# A rank's own: what runs for all ranks must not look like one of them.
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", *SOCKET_VARIABLES, JOB_ID_VARIABLE, TOKEN_VARIABLE)


def endpoint(environment: Mapping[str, str], *, start_timeout_s: float = START_TIMEOUT_S) -> Endpoint:
    """Where this rank's supervisor answers: that of `holdfast run`, or a private one, which is started if need be.

    Blocks until it answers. Raises InternalError, which says what is in the way.
    """
    given = from_environment(environment)
    if isinstance(given, Endpoint):
        return given
    if _number(environment, "WORLD_SIZE", 1) > _local_world_size(environment):
        raise InternalError(
            f"cannot start a private supervisor: the {environment['WORLD_SIZE']} ranks of this job are on several "
            "nodes, which is not supported yet; run all ranks on one node"
        )
    folder = job_folder(environment)
    with _locked(folder.with_name(LOCK_FILE)):
        found = _find(folder, environment)
        return found if found is not None else _start(folder, environment, monotonic() + start_timeout_s)


def job_folder(environment: Mapping[str, str]) -> Path:
    """The directory of this job's private supervisor: the same for all its ranks on this node, and for nobody else."""
    told = [f"{name}={environment.get(name, '')}" for name in JOB_VARIABLES]
    if not environment.get("MASTER_PORT"):
        told.append(f"pid={os.getpid()}")  # Without an address there is one rank, which is this process.
    key = hashlib.sha256("\n".join(told).encode()).hexdigest()[:16]
    return _closed(BASE / f"holdfast-{os.geteuid()}") / f"inprocess-{key}"


def _local_world_size(environment: Mapping[str, str]) -> int:
    world_size = _number(environment, "WORLD_SIZE", 1)
    nodes = _number(environment, "SLURM_NNODES", 1)
    return _number(environment, "LOCAL_WORLD_SIZE", max(1, world_size // nodes))


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, "")
    return int(text) if text.isdecimal() and int(text) else default


def _closed(path: Path) -> Path:
    """`path` as a directory of our own that nobody else may enter. Raises InternalError."""
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise InternalError(f"cannot make {path} for a private supervisor: {error.strerror}; free the name") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        why = f"it is no directory of user id {os.geteuid()} with mode 0700"
        raise InternalError(f"cannot use {path} for a private supervisor: {why}; remove it")
    return path


@contextlib.contextmanager
def _locked(path: Path) -> Generator[None]:
    """One rank at a time looks for the supervisor and starts it; the kernel lets a dead one's lock go.

    flock() knows no timeout, but whoever holds it is bounded by its own.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


# --- one that runs -------------------------------------------------------------------------------------------------


def _find(folder: Path, environment: Mapping[str, str]) -> Endpoint | None:
    """A supervisor that serves this job already."""
    try:
        with (folder / ENDPOINT_FILE).open("rb") as file:
            told = cast("dict[str, str]", json.loads(file.read(ENDPOINT_BYTES_MAX)))
        found = from_environment({**told, NO_PAGE_VARIABLE: environment.get(NO_PAGE_VARIABLE, "")})
    except (OSError, ValueError, TypeError):
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


# --- a new one -----------------------------------------------------------------------------------------------------


def _start(folder: Path, environment: Mapping[str, str], deadline_s: float) -> Endpoint:
    shutil.rmtree(folder, ignore_errors=True)  # Of a supervisor that is no more.
    _closed(folder)
    reader, writer = os.pipe()
    command = [
        sys.executable, "-m", "supervisor", "adopt", "--dir", str(folder), "--ready-fd", str(writer),
        "--local-world-size", str(_local_world_size(environment)), "--job-id", _job_id(environment, folder),
        "--", *sys.argv,
    ]  # fmt: skip
    try:
        # By a shell that ends at once: the supervisor is nobody's child, no wait() of the script ever meets it.
        with (folder / LOG_FILE).open("ab") as log:
            shell = subprocess.Popen(
                ["/bin/sh", "-c", '"$@" &', "sh", *command],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(writer,), start_new_session=True,
                cwd="/", env={name: value for name, value in environment.items() if name not in RANK_VARIABLES},
            )  # fmt: skip
    finally:
        os.close(writer)
    try:
        shell.wait()
        said = _word(reader, deadline_s)
    finally:
        os.close(reader)
    found = _find(folder, environment) if said == "ready" else None
    if found is None:
        why = _why(folder, said)
        shutil.rmtree(folder, ignore_errors=True)
        raise InternalError(f"cannot start a private supervisor: {why}")
    return found


def _job_id(environment: Mapping[str, str], folder: Path) -> str:
    run_id = next((environment[name] for name in RUN_ID_VARIABLES if environment.get(name, "none") != "none"), "")
    return f"inprocess-{run_id}" if run_id else folder.name


def _word(reader: int, deadline_s: float) -> str:
    """What the supervisor says at its start, up to the end of the line or of itself; "" if nothing comes in time."""
    said = b""
    poller = select.poll()
    poller.register(reader, select.POLLIN)
    while b"\n" not in said and len(said) < WORD_BYTES_MAX:
        left_s = deadline_s - monotonic()
        if left_s <= 0 or not poller.poll(left_s * 1000):
            return ""
        chunk = os.read(reader, WORD_BYTES_MAX)
        if not chunk:
            break
        said += chunk
    return said.decode(errors="replace").strip()


def _why(folder: Path, said: str) -> str:
    if said and said != "ready":
        return said
    try:
        (last,) = (folder / LOG_FILE).read_text(errors="replace").strip().splitlines()[-1:] or ("",)
    except OSError:
        last = ""
    if "No module named" in last:
        return f"{last}; pip install 'holdfast[supervisor]' for {sys.executable}"
    return f"it did not answer in time{': ' + last if last else ''}"
