"""How is a private supervisor started as a detached process, and what is reported if it does not come up?

A shell that exits at once runs the command `adopt`, so the supervisor outlives the rank that started it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from holdfast_wire.private_supervisor import JOB_ID_VARIABLE, MEETING, READY, TAKEN, TOKEN_VARIABLE

from worker_client import job_nodes
from worker_client.endpoint import SOCKET_VARIABLES, Endpoint
from worker_client.inprocess.exception import InternalError
from worker_client.inprocess.private_supervisor.job_folder import find, job_key, run_id
from worker_client.inprocess.private_supervisor.lock_wait import is_readable
from worker_client.inprocess.private_supervisor.node_meeting import NodeMeeting
from worker_client.inprocess.private_supervisor.starters_turn import CancelledWaitError

# Run by its path: the current folder and PYTHONPATH may contain packages with our names.
PROGRAM = Path(__file__).parents[3] / "holdfast_command.py"
KILL_TIMEOUT_S = 1.0
OUTPUT_BYTES_MAX = 64 * 1024
WORD_BYTES_MAX = 4096
# A rank's own variables: a process that serves all ranks must not look like one of them.
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", *SOCKET_VARIABLES, JOB_ID_VARIABLE, TOKEN_VARIABLE)


@dataclass(frozen=True, slots=True)
class NotServing:
    """No supervisor serves, though nothing is wrong: another one has this job, or the new one was ended. Look again.

    `why` is shown to people if looking again does not help.
    """

    why: str


def start(
    folder: Path,
    environment: Mapping[str, str],
    deadline_s: float,
    *,
    turn: int,
    is_successor: bool = False,
    meeting: NodeMeeting | None = None,
    cancel: int = -1,
) -> Endpoint | NotServing:
    """Starts a supervisor for `folder` and blocks until it answers, at most until the deadline.

    The supervisor gets a copy of the descriptor `turn`, and unlocks it once it answers. Raises CancelledWaitError once
    the descriptor `cancel` is readable, and InternalError if it can't start.
    """
    reader, writer = os.pipe()
    output = os.memfd_create("holdfast-private-supervisor", os.MFD_CLOEXEC)
    told = os.memfd_create("holdfast-meeting", os.MFD_CLOEXEC)
    os.write(told, meeting.leader.encode() if meeting is not None else b"")
    command = [
        sys.executable, "-P", str(PROGRAM), "adopt", "--dir", str(folder), "--ready-fd", str(writer),
        "--turn-fd", str(turn), *(["--successor"] if is_successor else []),
        "--local-world-size", str(job_nodes.local_world_size(environment)), "--job-id", _job_id(environment),
        *_about_nodes(environment, told), "--", *sys.argv,
    ]  # fmt: skip
    try:
        try:
            # The shell exits at once, so the supervisor is not our child and no wait() of the script sees it.
            shell = subprocess.Popen(
                ["/bin/sh", "-c", '"$@" >&2 & echo $!', "sh", *command],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=output, pass_fds=(writer, turn, told),
                start_new_session=True, cwd="/",
                env={name: value for name, value in environment.items() if name not in RANK_VARIABLES},
            )  # fmt: skip
        finally:
            os.close(writer)
        with _Process(shell.communicate()[0]) as process:
            said = _word(reader, deadline_s, cancel)
            if said.startswith(MEETING):
                if meeting is not None:
                    meeting.publish(said.removeprefix(MEETING))
                said = _word(reader, deadline_s, cancel)
            found = find(folder, environment)
            if found is not None:
                return found
            process.kill()
        return _without_it(said, output, cancel)
    finally:
        os.close(told)
        os.close(output)
        os.close(reader)


def _without_it(said: str, output: int, cancel: int) -> NotServing:
    """Returns why it does not serve. `said`: its message; "": none in time."""
    if said == READY:
        return NotServing("it was ended as soon as it had started; see who ends processes of this user")
    if said.startswith(TAKEN):
        return NotServing(said.removeprefix(TAKEN))
    if not said and is_readable(cancel):
        raise CancelledWaitError
    raise InternalError(f"cannot start a private supervisor: {said or _last_words(output)}")


class _Process:
    """A process that is not our child; the shell printed its pid."""

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
        """Kills the process; returns once it has ended, or after KILL_TIMEOUT_S."""
        if self._descriptor < 0:
            return
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
        poller = select.poll()
        poller.register(self._descriptor, select.POLLIN)
        poller.poll(KILL_TIMEOUT_S * 1000)


def _about_nodes(environment: Mapping[str, str], told: int) -> list[str]:
    """Returns the arguments for several nodes. `told`: a descriptor of what the leader has published."""
    if not job_nodes.has_other_nodes(environment):
        return []
    nodes, node_rank = job_nodes.node_count(environment), job_nodes.node_rank(environment)
    host = environment.get("MASTER_ADDR", "")
    return ["--nodes", str(nodes), "--node-rank", str(node_rank), "--host", host, "--meeting-fd", str(told)]


def _job_id(environment: Mapping[str, str]) -> str:
    return f"inprocess-{run_id(environment) or job_key(environment)}"


def _word(reader: int, deadline_s: float, cancel: int) -> str:
    """Returns the next line of the supervisor's start, or all up to its end; "" if nothing comes in time."""
    said = b""
    poller = select.poll()
    poller.register(reader, select.POLLIN)
    if cancel >= 0:
        poller.register(cancel, select.POLLIN)
    while b"\n" not in said and len(said) < WORD_BYTES_MAX:
        left_s = deadline_s - monotonic()
        if left_s <= 0 or reader not in dict(poller.poll(left_s * 1000)):
            return ""
        chunk = os.read(reader, 1)  # Another line may follow, which is a separate message.
        if not chunk:
            break
        said += chunk
    return said.decode(errors="replace").strip()


def _last_words(output: int) -> str:
    """Returns why the supervisor did not answer, as far as its output says."""
    printed = os.pread(output, OUTPUT_BYTES_MAX, max(0, os.fstat(output).st_size - OUTPUT_BYTES_MAX))
    (last,) = printed.decode(errors="replace").strip().splitlines()[-1:] or ("",)
    if "is not installed for" in last:
        return last.removeprefix("holdfast: cannot run: ")
    return f"it did not answer in time{': ' + last if last else ''}; see whether holdfast daemon starts here"
