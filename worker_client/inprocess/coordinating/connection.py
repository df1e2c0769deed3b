"""Over which connection does a wrapped call communicate with its supervisor, and how is the supervisor found?

It uses the rank's one connection, which also serves heartbeats. A rank without a supervisor gets a private one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from worker_client import monitoring
from worker_client.call_frames import CallEvent
from worker_client.endpoint import NoEndpoint, from_environment
from worker_client.inprocess.coordinating.coordination import Coordination
from worker_client.inprocess.exception import InternalError
from worker_client.inprocess.private_supervisor.finding import find_or_start
from worker_client.inprocess.private_supervisor.job_folder import job_folder
from worker_client.inprocess.private_supervisor.private_successor import PrivateSuccessor
from worker_client.inprocess.watching.call_watch import CallWatch
from worker_client.progress_page import ProgressPage

SEND_TIMEOUT_S = 1.0


class Connection:
    """The connection of one call, until `close()`. Its CallListener methods run on the channel's thread."""

    def __init__(
        self, environment: Mapping[str, str], open_store: Callable[[], Any], *, rank: int, soft_timeout_s: float
    ) -> None:
        """Blocks until the supervisor has answered. Raises InternalError if there is none.

        `open_store` opens the script's store, in which private supervisors of several nodes find each other.
        """
        self._soft_timeout_s = soft_timeout_s
        self._coordination: Coordination | None = None
        self._watch: CallWatch | None = None
        self._supervised_by: Callable[[int], None] = lambda pid: None
        endpoint = find_or_start(environment, open_store)
        self._is_open = True
        self._successor: PrivateSuccessor | None = None
        if isinstance(from_environment(environment), NoEndpoint):
            folder = job_folder(environment)
            self._successor = PrivateSuccessor(folder, environment, self._needs_supervisor)
        self._monitoring = monitoring.acquire(
            endpoint, rank=rank, local_rank=_local_rank(environment, rank), begin=False,
            find=self._successor.find if self._successor is not None else None,
        )  # fmt: skip

    def attach(
        self, coordination: Coordination, watch: CallWatch, supervised_by: Callable[[int], None] = lambda pid: None
    ) -> None:
        """Passes messages to both from now on, and the supervisor's pid to `supervised_by` after each connection.

        Raises InternalError if there is no supervisor to talk to.
        """
        self._coordination, self._watch, self._supervised_by = coordination, watch, supervised_by
        if not self._monitoring.listen(self):
            raise InternalError("cannot restart in the process: there is no connection to a supervisor; see its log")

    def say(self, frame: bytes) -> None:
        self._monitoring.say(frame)

    def watch_changed(self) -> None:
        self._monitoring.watch_changed(self._soft_timeout_s)

    def close(self) -> None:
        """Blocks until the supervisor has everything that other ranks wait for, 1 s at most. Idempotent."""
        if not self._is_open:
            return
        self._is_open = False
        if self._successor is not None:
            self._successor.close()
        if self._coordination is not None and self._coordination.must_be_heard():
            self._monitoring.wait_sent(SEND_TIMEOUT_S)
        self._monitoring.listen(None)
        self._coordination = None
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.leave()
        self._monitoring.release()

    def _needs_supervisor(self) -> bool:
        coordination = self._coordination
        return self._is_open and (coordination is None or coordination.needs_supervisor())

    # --- CallListener ---

    def connected(self, page: ProgressPage) -> None:
        if self._watch is not None:
            self._watch.adopt(page)
        if self._coordination is not None:
            self._supervised_by(self._monitoring.supervisor_pid)
            self._coordination.connected()

    def disconnected(self) -> None:
        if self._coordination is not None:
            self._coordination.disconnected()

    def refused(self, reason: str) -> None:
        if self._coordination is not None:
            self._coordination.refused(reason)

    def heard(self, event: CallEvent) -> None:
        if self._coordination is not None:
            self._coordination.heard(event)


def _local_rank(environment: Mapping[str, str], rank: int) -> int:
    """Returns the local rank. Without a variable for it, all ranks are on this node."""
    for name in ("LOCAL_RANK", "SLURM_LOCALID"):
        if environment.get(name, "").isdecimal():
            return int(environment[name])
    return rank
