"""Over which connection does a wrapped call communicate with its supervisor, and how is the supervisor found?

It uses the rank's one connection, which also serves heartbeats. A rank without a supervisor gets a private one. What a
call sends goes through the Connection, which is made first; what comes for it goes through the Receiver, made last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic_ns
from typing import Any

from holdfast_wire.private_supervisor import CYCLE_VARIABLE

from worker_client import job_nodes, workload_monitoring
from worker_client.call_protocol import CallEvent
from worker_client.endpoint import Endpoint, NoEndpoint, from_environment
from worker_client.fencing_tokens import EPOCH_VARIABLE
from worker_client.inprocess.coordinating.coordination import Coordination
from worker_client.inprocess.exception import InternalError
from worker_client.inprocess.private_supervisor.job_folder import ATTEMPT_VARIABLE, job_folder, job_key
from worker_client.inprocess.private_supervisor.private_successor import PrivateSuccessor
from worker_client.inprocess.private_supervisor.supervisor_lookup import find_or_start
from worker_client.inprocess.watching.main_thread_watch import MainThreadWatch
from worker_client.progress_page_writer import ProgressPage

SEND_TIMEOUT_S = 1.0


class Connection:
    """The connection of one call, until `close()`. The Receiver connects it."""

    def __init__(
        self, environment: Mapping[str, str], open_store: Callable[[], Any], *, rank: int, soft_timeout_s: float
    ) -> None:
        """Blocks until there is a supervisor. Raises InternalError if there is none.

        `open_store` opens the script's store, in which private supervisors of several nodes find each other.
        """
        self._soft_timeout_s = soft_timeout_s
        self._began_ns = monotonic_ns()
        self.endpoint = find_or_start(environment, open_store)
        self.start = _start(environment)  # a name of this start of the job, which all its ranks share; "": the first
        self.successor: PrivateSuccessor | None = None
        if isinstance(from_environment(environment), NoEndpoint):
            self.successor = PrivateSuccessor(job_folder(environment), environment)
        self.monitoring = workload_monitoring.acquire(
            None, rank=rank, local_rank=_local_rank(environment, rank), begin=False
        )

    def say(self, frame: bytes) -> None:
        self.monitoring.say(frame)

    def watch_changed(self) -> None:
        self.monitoring.watch_changed(self._soft_timeout_s)

    def close_sections(self) -> None:
        """Closes the sections that were opened during the call, whose ends an interruption has skipped."""
        self.monitoring.progress.sections.drop(since_ns=self._began_ns)

    def close(self) -> None:
        if self.successor is not None:
            self.successor.close()
        self.monitoring.release()


def _start(environment: Mapping[str, str]) -> str:
    if cycle := environment.get(CYCLE_VARIABLE):
        epoch = environment.get(EPOCH_VARIABLE) or "0"  # differs from run to run, and is the same on all of its nodes
        number = cycle if epoch == "0" else f"{epoch}.{cycle}"
    elif job_nodes.has_other_nodes(environment):  # Each of torchrun's agents counts for itself.
        number = job_key(environment)
    else:
        number = environment.get(ATTEMPT_VARIABLE, "")
    return "" if number == "0" else number


class Receiver:
    """Passes on what comes for one call, until `close()`; see monitoring.CallListener."""

    def __init__(
        self,
        connection: Connection,
        coordination: Coordination,
        watch: MainThreadWatch,
        supervised_by: Callable[[int], None],
    ) -> None:
        """Connects, and blocks until the supervisor has answered. Raises InternalError if none does.

        `supervised_by` gets the supervisor's pid after each connection.
        """
        self._connection = connection
        self._monitoring = connection.monitoring
        self._coordination = coordination
        self._watch = watch
        self._supervised_by = supervised_by
        self._monitoring.listen(self)
        self._monitoring.connect(connection.endpoint)
        if not self._monitoring.may_hear:
            self.close()
            raise InternalError("cannot restart in the process: there is no connection to a supervisor; see its log")

    def close(self) -> None:
        """Blocks until the supervisor has everything that other ranks wait for, 1 s at most."""
        if self._connection.successor is not None:
            self._connection.successor.close()
        if self._coordination.must_be_heard():
            self._monitoring.wait_sent(SEND_TIMEOUT_S)
        self._monitoring.listen(None)
        self._watch.leave()

    # --- called by the channel's thread ---

    def find(self, known: Endpoint) -> Endpoint | None:
        successor = self._connection.successor
        return successor.find(self._coordination.needs_supervisor) if successor is not None else known

    def connected(self, page: ProgressPage) -> None:
        self._watch.adopt(page)
        self._supervised_by(self._monitoring.supervisor_pid)
        self._coordination.connected()

    def disconnected(self) -> None:
        self._coordination.disconnected()

    def refused(self, reason: str) -> None:
        self._coordination.refused(reason)

    def heard(self, event: CallEvent) -> None:
        self._coordination.heard(event)


def _local_rank(environment: Mapping[str, str], rank: int) -> int:
    """Returns the local rank. Without a variable for it, all ranks are on this node."""
    for name in ("LOCAL_RANK", "SLURM_LOCALID"):
        if environment.get(name, "").isdecimal():
            return int(environment[name])
    return rank
