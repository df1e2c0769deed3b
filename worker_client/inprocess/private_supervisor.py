"""Who decides for a rank that nobody supervises? A private supervisor in the background, one for all ranks of the node.

Under plain python, torchrun or srun the first rank of the job that needs it starts `python -m supervisor adopt`; the
others find it in a directory of this user that is named after the job. It is no child of any rank, outlives the one
that started it and ends with the last of them. If it dies before, private_successor.py starts another.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Generator, Mapping
from pathlib import Path
from time import monotonic
from typing import cast

from holdfast_wire.private_folder import ENDPOINT_FILE, JOB_ID_VARIABLE, LIFE_FILE, RANKS_FILE, READY, TOKEN_VARIABLE

from worker_client.endpoint import (
    NO_PAGE_VARIABLE,
    SOCKET_VARIABLES,
    Endpoint,
    NoEndpoint,
    from_environment,
)
from worker_client.inprocess.exception import InternalError

START_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 1.0
KILL_TIMEOUT_S = 1.0
LOG_FILE = "supervisor.log"
LOCK_FILE = "inprocess.lock"  # one for all jobs of this user: a file of each job's own could never be removed safely
ENDPOINT_BYTES_MAX = 16 * 1024
RANKS_BYTES_MAX = 1024 * 1024
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
        found = find(folder, environment)
        return found if found is not None else _start(folder, environment, monotonic() + start_timeout_s)


def start_another(folder: Path, environment: Mapping[str, str], *, cancel: int) -> Endpoint | None:
    """One in the place of a dead one; None where another rank is about to, or where the old one lives after all.

    `cancel` is a descriptor: once it is readable, whatever was started ends. Blocks for START_TIMEOUT_S at most. Raises
    InternalError.
    """
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(_locked(folder.with_name(LOCK_FILE), waits=False))
        except BlockingIOError:
            return None
        found = find(folder, environment)
        if found is not None or _lives(folder):
            return found
        return _start(folder, environment, monotonic() + START_TIMEOUT_S, ranks=_ranks(folder), cancel=cancel)


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
def _locked(path: Path, *, waits: bool = True) -> Generator[None]:
    """One rank at a time looks for the supervisor and starts it; the kernel lets a dead one's lock go.

    flock() knows no timeout, but whoever holds it is bounded by its own. Raises BlockingIOError where it `waits` not.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


# --- one that runs -------------------------------------------------------------------------------------------------


def find(folder: Path, environment: Mapping[str, str]) -> Endpoint | None:
    """A supervisor that serves this job already: it lets us connect."""
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


def _lives(folder: Path) -> bool:
    """Whether the supervisor of this directory is a living process, though it does not answer."""
    try:
        descriptor = os.open(folder / LIFE_FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


# --- a new one -----------------------------------------------------------------------------------------------------


def _ranks(folder: Path) -> bytes:
    """What a supervisor that died has noted of its ranks: its successor misses those that have ended since."""
    try:
        with (folder / RANKS_FILE).open("rb") as file:
            return file.read(RANKS_BYTES_MAX)
    except OSError:
        return b""


def _start(
    folder: Path, environment: Mapping[str, str], deadline_s: float, *, ranks: bytes = b"", cancel: int = -1
) -> Endpoint:
    shutil.rmtree(folder, ignore_errors=True)  # Of a supervisor that is no more.
    _closed(folder)
    (folder / RANKS_FILE).write_bytes(ranks)
    reader, writer = os.pipe()
    command = [
        sys.executable, "-m", "supervisor", "adopt", "--dir", str(folder), "--ready-fd", str(writer),
        "--local-world-size", str(_local_world_size(environment)), "--job-id", _job_id(environment, folder),
        "--", *sys.argv,
    ]  # fmt: skip
    try:
        # By a shell that ends at once: the supervisor is nobody's child, no wait() of the script ever meets it.
        shell = subprocess.Popen(
            ["/bin/sh", "-c", '"$@" >>"$0" 2>&1 & echo $!', str(folder / LOG_FILE), *command],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, pass_fds=(writer,),
            start_new_session=True, cwd="/",
            env={name: value for name, value in environment.items() if name not in RANK_VARIABLES},
        )  # fmt: skip
    finally:
        os.close(writer)
    try:
        with _Process(shell.communicate()[0]) as process:
            said = _word(reader, deadline_s, cancel)
            found = find(folder, environment) if said == READY else None
            if found is None:
                why = _why(folder, said)
                process.kill()
                if not _lives(folder):
                    shutil.rmtree(folder, ignore_errors=True)
                raise InternalError(f"cannot start a private supervisor: {why}")
    finally:
        os.close(reader)
    return found


class _Process:
    """One that is nobody's child, by the number that the shell has told."""

    def __init__(self, told: bytes) -> None:
        self._descriptor = -1
        with contextlib.suppress(OSError, ValueError):  # It has ended already.
            self._descriptor = os.pidfd_open(int(told))

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def kill(self) -> None:
        """Returns once it has ended, or after KILL_TIMEOUT_S."""
        if self._descriptor < 0:
            return
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
        poller = select.poll()
        poller.register(self._descriptor, select.POLLIN)
        poller.poll(KILL_TIMEOUT_S * 1000)


def _job_id(environment: Mapping[str, str], folder: Path) -> str:
    run_id = next((environment[name] for name in RUN_ID_VARIABLES if environment.get(name, "none") != "none"), "")
    return f"inprocess-{run_id}" if run_id else folder.name


def _word(reader: int, deadline_s: float, cancel: int) -> str:
    """What the supervisor says at its start, up to the end of the line or of itself; "" if nothing comes in time."""
    said = b""
    poller = select.poll()
    poller.register(reader, select.POLLIN)
    if cancel >= 0:
        poller.register(cancel, select.POLLIN)
    while b"\n" not in said and len(said) < WORD_BYTES_MAX:
        left_s = deadline_s - monotonic()
        if left_s <= 0 or reader not in dict(poller.poll(left_s * 1000)):
            return ""
        chunk = os.read(reader, WORD_BYTES_MAX)
        if not chunk:
            break
        said += chunk
    return said.decode(errors="replace").strip()


def _why(folder: Path, said: str) -> str:
    if said and said != READY:
        return said
    try:
        (last,) = (folder / LOG_FILE).read_text(errors="replace").strip().splitlines()[-1:] or ("",)
    except OSError:
        last = ""
    if "No module named" in last:
        return f"{last}; pip install 'holdfast[supervisor]' for {sys.executable}"
    return f"it did not answer in time{': ' + last if last else ''}"
