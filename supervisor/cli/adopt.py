"""`holdfast adopt`: the private supervisor of ranks that somebody else has started.

worker_client/inprocess/private_supervisor starts it and reads the line that it writes to --ready-fd: "ready", that
another one has the job already, or why it could not start. Any number may be started for one job: one of them serves.
"""

from __future__ import annotations

import fcntl
import os
import signal
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from holdfast_wire.private_supervisor import (
    CYCLE_VARIABLE,
    JOB_ID_VARIABLE,
    MEETING,
    MEETING_FILE,
    READY,
    SOCKET_VARIABLE,
    TAKEN,
    TOKEN_VARIABLE,
)

from supervisor.config.job_spec import JobSpec
from supervisor.config.values import job_id_from
from supervisor.core.facts import HangLimits
from supervisor.edges.machine.folders.adopted_dir import AdoptedDir
from supervisor.errors import HoldfastError, InUseError

if TYPE_CHECKING:
    from supervisor.edges.peers.embedded.adopted_peers import NodeMeeting


def execute_argv(argv: Sequence[str]) -> int:
    """Serves until the last rank has ended; returns the exit code."""
    parser = ArgumentParser(prog="holdfast adopt", allow_abbrev=False)
    parser.add_argument("--dir", type=Path, required=True, help="a 0700 directory of this user, removed at the end")
    parser.add_argument("--ready-fd", type=int, required=True)
    parser.add_argument("--turn-fd", type=int, default=-1, help="a lock that is released once ranks can come")
    parser.add_argument(
        "--successor", action="store_true", help="replaces a supervisor that died: its ranks already run"
    )
    parser.add_argument("--local-world-size", type=int, required=True)
    parser.add_argument("--job-id", required=True, help="any text: a launcher's id may be in it")
    parser.add_argument("--nodes", type=int, default=1, help="nodes of the job; each has a supervisor")
    parser.add_argument("--node-rank", type=int, default=0, help="0: this one leads")
    parser.add_argument("--host", default="", help="address at which the other nodes reach the leader's supervisor")
    parser.add_argument("--meeting-fd", type=int, default=-1, help="what the leader has published")
    parser.add_argument("command", nargs="*", help="what the ranks run, for people")
    given = parser.parse_args(argv)
    spec = JobSpec(
        job_id=job_id_from(given.job_id),
        command=tuple(given.command) or ("unknown",),
        local_world_size=given.local_world_size,
        hang_limits=HangLimits(heartbeat_s=None),
    )
    starter = _Starter(given.ready_fd, given.turn_fd)
    # Who was started by a rank's thread that takes no signals must still hear those of people.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
    try:
        home = AdoptedDir(given.dir, keeps_ranks=given.successor)
        try:
            _serve(spec, home, starter, _meeting(given, spec.job_id, home, starter))
        finally:
            home.close()
    except InUseError as error:
        starter.say(f"{TAKEN}{error}")
        return error.exit_code
    except HoldfastError as error:
        starter.say(str(error))
        return error.exit_code
    return 0


def _meeting(given: Namespace, job_id: str, home: AdoptedDir, starter: _Starter) -> NodeMeeting | None:
    """Returns the supervisors with which this one serves job `job_id`. Raises HoldfastError."""
    if given.nodes == 1:
        return None
    from supervisor.edges.peers.embedded import adopted_peers

    text = os.pread(given.meeting_fd, adopted_peers.TEXT_BYTES_MAX, 0).decode() if given.meeting_fd >= 0 else ""
    meeting = adopted_peers.meet(home.path / MEETING_FILE, text, job_id, given.nodes, given.node_rank, given.host)
    if meeting.leads:
        starter.say_first(f"{MEETING}{meeting.text()}")
    return meeting


def _serve(spec: JobSpec, home: AdoptedDir, starter: _Starter, meeting: NodeMeeting | None) -> None:
    from supervisor.wiring.adoption import serve_adopted

    def opened(socket_path: Path, token_path: Path) -> None:
        """Tells all ranks of this node how to speak to us, then the one that waits."""
        home.tell(
            {
                SOCKET_VARIABLE: str(socket_path),
                JOB_ID_VARIABLE: spec.job_id,
                TOKEN_VARIABLE: str(token_path),
                CYCLE_VARIABLE: "0",
            }
        )
        starter.say(READY)

    anyio.run(serve_adopted, spec, home.path, home.serving, opened, meeting, backend_options={"use_uvloop": True})


class _Starter:
    """The rank that started this supervisor and waits for one line, and the ranks that wait for the end of its turn."""

    def __init__(self, descriptor: int, turn: int) -> None:
        self._descriptor = descriptor
        self._turn = turn
        for each in (descriptor, turn):
            if each >= 0:
                os.set_inheritable(each, False)

    def say_first(self, line: str) -> None:
        """Writes a line before the one that ends the start."""
        if self._descriptor >= 0:
            with suppress(OSError):
                os.write(self._descriptor, f"{line}\n".encode())

    def say(self, line: str) -> None:
        """Writes the line that ends the start, once; the rank that waited may be gone."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):
                os.write(descriptor, f"{line}\n".encode())
            os.close(descriptor)
        turn, self._turn = self._turn, -1
        if turn >= 0:
            # The rank that holds it, too, may be stopped: the lock is released, not our copy of it alone.
            with suppress(OSError):
                fcntl.flock(turn, fcntl.LOCK_UN)
            os.close(turn)
