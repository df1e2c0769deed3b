"""`holdfast adopt`: the private supervisor of ranks that somebody else has started.

worker_client/inprocess/private_supervisor starts it, at most one per job and node, and reads the line that it writes
to --ready-fd: "ready", or why it could not start.
"""

from __future__ import annotations

import json
import os
import signal
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

import anyio
from holdfast_wire.private_folder import (
    CYCLE_VARIABLE,
    ENDPOINT_FILE,
    JOB_ID_VARIABLE,
    READY,
    SOCKET_VARIABLE,
    TOKEN_VARIABLE,
)

from supervisor.config.job_spec import JobSpec
from supervisor.core.facts import HangLimits
from supervisor.edges.machine.folders import private_dir
from supervisor.errors import HoldfastError


def execute_argv(argv: Sequence[str]) -> int:
    """Serves until the last rank has ended; returns the exit code."""
    parser = ArgumentParser(prog="holdfast adopt", allow_abbrev=False)
    parser.add_argument("--dir", type=Path, required=True, help="a 0700 directory of this user, removed at the end")
    parser.add_argument("--ready-fd", type=int, required=True)
    parser.add_argument("--local-world-size", type=int, required=True)
    parser.add_argument("--job-id", required=True)
    parser.add_argument("command", nargs="*", help="what the ranks run, for people")
    given = parser.parse_args(argv)
    spec = JobSpec(
        job_id=given.job_id,
        command=tuple(given.command) or ("unknown",),
        local_world_size=given.local_world_size,
        hang_limits=HangLimits(heartbeat_s=None),
    )
    starter = _Starter(given.ready_fd, spec.job_id, given.dir)
    # Who was started by a rank's thread that takes no signals must still hear those of people.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
    try:
        from supervisor.daemon import serve_adopted

        anyio.run(serve_adopted, spec, given.dir, starter.opened, backend_options={"use_uvloop": True})
    except HoldfastError as error:
        starter.say(str(error))
        return error.exit_code
    finally:
        private_dir.remove_adopted(given.dir, waits=starter.has_opened)
    return 0


class _Starter:
    """Who started this supervisor and waits for one line."""

    def __init__(self, descriptor: int, job_id: str, folder: Path) -> None:
        self._descriptor = descriptor
        self._job_id = job_id
        self._folder = folder
        self.has_opened = False
        os.set_inheritable(descriptor, False)

    def opened(self, socket_path: Path, token_path: Path) -> None:
        """Tells all ranks of this node how to speak to us, then the one that waits."""
        told = {
            SOCKET_VARIABLE: str(socket_path),
            JOB_ID_VARIABLE: self._job_id,
            TOKEN_VARIABLE: str(token_path),
            CYCLE_VARIABLE: "0",
        }
        unfinished = self._folder / f"{ENDPOINT_FILE}.new"
        unfinished.write_text(json.dumps(told))
        unfinished.replace(self._folder / ENDPOINT_FILE)
        self.has_opened = True
        self.say(READY)

    def say(self, line: str) -> None:
        """Once; whoever waited may be gone."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            try:
                os.write(descriptor, f"{line}\n".encode())
            except OSError:
                return
            finally:
                os.close(descriptor)
