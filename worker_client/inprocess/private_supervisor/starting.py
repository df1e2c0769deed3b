"""How is a private supervisor started as nobody's child, and what is said where it does not come?

The command `adopt`, by a shell that ends at once: it outlives the rank that started it.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from time import monotonic

from holdfast_wire.private_folder import JOB_ID_VARIABLE, RANKS_FILE, READY, TOKEN_VARIABLE

from worker_client.endpoint import SOCKET_VARIABLES, Endpoint
from worker_client.inprocess.exception import InternalError
from worker_client.inprocess.private_supervisor.job_folder import RUN_ID_VARIABLES, find, lives, private_folder

# By its path: the current folder and PYTHONPATH may hold packages of our names.
PROGRAM = Path(__file__).parents[3] / "holdfast_command.py"
KILL_TIMEOUT_S = 1.0
LOG_FILE = "supervisor.log"
WORD_BYTES_MAX = 4096
# A rank's own: what runs for all ranks must not look like one of them.
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", *SOCKET_VARIABLES, JOB_ID_VARIABLE, TOKEN_VARIABLE)


def start(
    folder: Path,
    environment: Mapping[str, str],
    deadline_s: float,
    *,
    local_world_size: int,
    ranks: bytes = b"",
    cancel: int = -1,
) -> Endpoint:
    """Starts a supervisor in `folder` and blocks until it answers, at most until the deadline. Raises InternalError.

    `ranks` is what a dead predecessor has noted of its ranks. Once the descriptor `cancel` is readable, it is given up.
    """
    shutil.rmtree(folder, ignore_errors=True)  # Of a supervisor that is no more.
    private_folder(folder)
    (folder / RANKS_FILE).write_bytes(ranks)
    reader, writer = os.pipe()
    command = [
        sys.executable, "-P", str(PROGRAM), "adopt", "--dir", str(folder), "--ready-fd", str(writer),
        "--local-world-size", str(local_world_size), "--job-id", _job_id(environment, folder),
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
                if not lives(folder):
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
    if "is not installed for" in last:
        return last.removeprefix("holdfast: cannot run: ")
    return f"it did not answer in time{': ' + last if last else ''}"
