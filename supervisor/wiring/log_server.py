"""What is started so that one process writes the logs of all nodes (--ft-enable-log-server), where, and for how long?

Each node has a sender. The node that leads the job also has the leaves and the root; if another node leads later, its
own replace them. All are separate processes (log_service/): a flood of lines takes no time from a supervisor.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import anyio
import msgspec
from anyio.abc import TaskGroup

from supervisor.config.job_logs import log_sender_socket
from supervisor.config.job_spec import EMBEDDED
from supervisor.config.launch_values import join_endpoint
from supervisor.core.announcements import Announcement, JobEnded, LeadChanged
from supervisor.core.facts import JobEvent
from supervisor.edges.machine.own_process.unix_listener import listening
from supervisor.engine.job_record import JobRecord
from supervisor.wiring.supervisor_paths import SupervisorPaths

if TYPE_CHECKING:
    from supervisor.edges.machine.logs.log_tier_supervision import LogTier

SENDER_BACKLOG = 64
SENDER_LOG = "log_sender.log"  # in the folder of the run's logs
SENDER_ENDS_IN_S = 15.0  # after its supervisor: orphaned log processes give up by then

Publish = Callable[[JobRecord, JobEvent], None]


@runtime_checkable
class KnowsLeaders(Protocol):
    def leader_host(self, job_id: str) -> str: ...


class _JobTiers:
    """The processes that run here for one job."""

    def __init__(self, job: JobRecord) -> None:
        self.job = job
        self.listener: socket.socket | None = None
        self.listener_inode = 0
        self.sender: LogTier | None = None
        self.servers: list[LogTier] = []
        self.root: LogTier | None = None
        self.before_root: list[anyio.Event] = []  # the root waits for these ends
        self.server_scopes: list[anyio.CancelScope] = []


class LogFunnel:
    """The log processes of one supervisor. A job without a log server costs only a check of its settings."""

    def __init__(
        self,
        tasks: TaskGroup,
        jobs: Mapping[str, JobRecord],
        publish: Publish,
        *,
        paths: SupervisorPaths,
        node_requests: object,
        on_finish: Callable[[str], None],
    ) -> None:
        """`node_requests` may know where elected leaders are. `on_finish` gets the id of a job whose sender ends."""
        self._tasks = tasks
        self._jobs = jobs
        self._publish = publish
        self._paths = paths
        self._tiers: dict[str, _JobTiers] = {}
        self._node_requests = node_requests
        self._on_finish = on_finish

    def _sender_socket_of(self, job_id: str) -> str:
        """Returns the socket that takes this node's output for the files of a job."""
        return log_sender_socket(str(self._paths.worker_socket), job_id)

    def submitted(self, job_id: str) -> None:
        job = self._jobs[job_id]
        if not job.spec.has_log_server:
            return
        tiers = self._tiers[job_id] = _JobTiers(job)
        try:
            tiers.listener = _listen(Path(self._sender_socket_of(job_id)))
            tiers.listener_inode = Path(self._sender_socket_of(job_id)).stat().st_ino
        except OSError as error:
            self._tell(job, f"cannot take the lines of this node's workers: {error.strerror}")
            return
        tiers.sender = self._start(
            tiers, self._sender_settings(job, tiers.listener.fileno()), "the sender of this node"
        )
        self._tell_address(tiers)

    def finished(self, job_id: str) -> None:
        """Ends the sender first: the leaves wait for it, and the root for them."""
        tiers = self._tiers.pop(job_id, None)
        if tiers is None:
            return
        self._on_finish(job_id)
        for each in (tiers.sender, *tiers.servers):
            if each is not None:
                each.finish()
        if tiers.root is not None:
            self._tasks.start_soon(self._finish_root, tiers)

    async def _finish_root(self, tiers: _JobTiers) -> None:
        began_s = anyio.current_time()
        for each in tiers.before_root:
            await each.wait()
        if tiers.root is not None:
            tiers.root.finish(spent_s=anyio.current_time() - began_s)

    def _lead(self, job_id: str, cycle: int) -> None:
        """Starts the job's leaves and root here: this node leads the job. `cycle` runs already, unless it is -1."""
        tiers = self._tiers.get(job_id)
        if tiers is None or tiers.root is not None:
            return
        server = tiers.job.spec.log_server
        leaves = self._leaves(tiers.job)
        of_root = {**self._server_settings(tiers.job, -1), "run_began_ms": _run_began_ms(tiers.job, cycle)}
        tiers.root = self._start(tiers, of_root, "the root of the log server")
        from supervisor.core.log_funnel.log_leaves import root_port

        address = join_endpoint(self._leader_host(tiers.job), root_port(server.port, leaves))
        for leaf in range(leaves):
            tier = self._start(tiers, self._server_settings(tiers.job, leaf), f"leaf {leaf} of the log server")
            tier.tell(_line({"address": address}))
            tiers.servers.append(tier)
        self._tell_address(tiers)

    def _follow(self, job_id: str) -> None:
        """Ends this node's servers at once: another node leads, or will. Their callers keep all data."""
        tiers = self._tiers.get(job_id)
        if tiers is None or tiers.root is None:
            return
        for scope in tiers.server_scopes:
            scope.cancel()
        tiers.servers, tiers.root, tiers.server_scopes, tiers.before_root = [], None, [], []

    def announced(self, job: JobRecord, announcement: Announcement) -> None:
        """Has the servers where the job is led, and the sender until the job ends."""
        match announcement:
            case LeadChanged(leads, cycle):
                if leads:
                    self._lead(job.spec.job_id, cycle)
                else:
                    self._follow(job.spec.job_id)
            case JobEnded():
                self.finished(job.spec.job_id)
            case _:
                pass

    def finish_all(self) -> None:
        for job_id in list(self._tiers):
            self.finished(job_id)

    # --- one process -----------------------------------------------------------------------------------------------

    def _start(self, tiers: _JobTiers, settings: Mapping[str, object], what: str) -> LogTier:
        from supervisor.edges.machine.logs.log_tier_supervision import LogTier

        is_sender = settings["tier"] == "sender"
        tier = LogTier(
            _line(settings),
            ends_in_s=float(str(settings["graceful_s"])),
            on_lost=lambda why: self._tell(tiers.job, f"{what} is replaced: {why}"),
            on_away=lambda: self._tell_address(tiers),
            on_warning=lambda warning: self._tell(tiers.job, warning),
            listening_fd=tiers.listener.fileno() if tiers.listener is not None and is_sender else -1,
        )
        ended, scope = anyio.Event(), anyio.CancelScope()
        if not is_sender:
            tiers.server_scopes.append(scope)
        if settings["tier"] != "root":
            tiers.before_root.append(ended)
        self._tasks.start_soon(self._keep, tiers, tier, what, ended, scope)
        return tier

    async def _keep(
        self, tiers: _JobTiers, tier: LogTier, what: str, ended: anyio.Event, scope: anyio.CancelScope
    ) -> None:
        try:
            with scope:
                if not await tier.run():
                    why = f"{what} could not pass on everything in time"
                    self._tell(tiers.job, f"lines of the job may be missing in its logs: {why}")
        finally:
            ended.set()
            if tier is tiers.sender:
                self._close_listener(tiers)

    def _close_listener(self, tiers: _JobTiers) -> None:
        """Closes the listener once no sender needs it. The job's next run may have its own there already."""
        if tiers.listener is not None:
            tiers.listener.close()
        path = Path(self._sender_socket_of(tiers.job.spec.job_id))
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_ino == tiers.listener_inode:
                path.unlink()

    def _tell(self, job: JobRecord, sentence: str) -> None:
        self._publish(job, JobEvent("log_server_trouble", sentence, cycle=job.cycle))

    def _tell_address(self, tiers: _JobTiers) -> None:
        """Tells the sender where its leaf is, as far as known."""
        from supervisor.core.log_funnel.log_leaves import leaf_port, shard

        spec = tiers.job.spec
        host = self._leader_host(tiers.job)
        if tiers.sender is None or not host or spec.nodes is None:
            return
        leaf = shard(spec.facts.infrastructure_rank, spec.nodes.name, self._leaves(tiers.job))
        tiers.sender.tell(_line({"address": join_endpoint(host, leaf_port(spec.log_server.port, leaf))}))

    # --- settings --------------------------------------------------------------------------------------------------

    def _leaves(self, job: JobRecord) -> int:
        from supervisor.core.log_funnel.log_leaves import leaf_count

        nodes = job.spec.nodes
        return leaf_count(job.spec.log_server.leaves, nodes.max_nodes if nodes is not None else 1)

    def _shared_settings(self, job: JobRecord) -> dict[str, object]:
        nodes = job.spec.nodes
        assert nodes is not None
        return {
            "job_id": job.spec.job_id,
            "token_file": nodes.token_file,
            "tls_cert": nodes.tls_cert,
            "tls_key": nodes.tls_key,
            "tls_ca": nodes.tls_ca,
            "ends_with_supervisor": not self._paths.private,
        }

    def _sender_settings(self, job: JobRecord, listening_fd: int) -> dict[str, object]:
        from supervisor.edges.machine.logs.log_tier_supervision import END_MARGIN_S

        assert job.spec.nodes is not None
        name = job.spec.nodes.name
        return {
            **self._shared_settings(job), "tier": "sender", "name": f"node {name}", "door_fd": listening_fd,
            "graceful_s": min(SENDER_ENDS_IN_S, job.spec.log_server.graceful_s + END_MARGIN_S),
            "log_path": f"{job.log_dir}/{SENDER_LOG}",
        }  # fmt: skip

    def _server_settings(self, job: JobRecord, leaf: int) -> dict[str, object]:
        """Returns the settings. `leaf` -1: of the root."""
        from supervisor.config.job_logs import server_log_prefix
        from supervisor.core.log_funnel.log_leaves import leaf_port, queue_chunks, root_port

        logs, leaves, nodes = job.spec.logs, self._leaves(job), job.spec.nodes
        assert nodes is not None
        server, host = job.spec.log_server, self._leader_host(job)
        shared = {**self._shared_settings(job), "host": host}
        if nodes.backend != EMBEDDED:  # another node leads soon, and its root waits for the end of this one
            shared["ends_with_supervisor"] = True
        own_log = f"{server_log_prefix(logs, server)}_{'root' if leaf < 0 else f'leaf_{leaf}'}.log"
        if leaf < 0:
            return {
                **shared, "tier": "root", "name": "root", "port": root_port(server.port, leaves), "log_path": own_log,
                "cycle_prefix": logs.cycle_prefix, "supervisor_log": logs.supervisor_log,
                "graceful_s": 2 * server.graceful_s, "callers": leaves,
            }  # fmt: skip
        return {
            **shared, "tier": "leaf", "name": f"leaf {leaf}", "port": leaf_port(server.port, leaf),
            "log_path": own_log, "graceful_s": server.graceful_s, "callers": max(1, nodes.min_nodes // leaves),
            "queue_chunks": queue_chunks(server.leaf_queue_chunks, nodes.max_nodes, leaves),
        }  # fmt: skip

    def _leader_host(self, job: JobRecord) -> str:
        """Returns the leader's host; "" if none is known. An embedded leader is where the nodes meet."""
        nodes = job.spec.nodes
        if nodes is None or nodes.backend != EMBEDDED:
            return (
                self._node_requests.leader_host(job.spec.job_id)
                if isinstance(self._node_requests, KnowsLeaders)
                else ""
            )
        return nodes.host


def _run_began_ms(job: JobRecord, cycle: int) -> int:
    """Returns the epoch of the running cycle, or the one that this node gives to the first; 0: not known here.

    A node that came later than the running cycle would take what its ranks have printed for an earlier run's.
    """
    if job.running is None and cycle >= 0:
        return 0
    known = job.running.assignment.epoch if job.running is not None else 0
    return known or job.submitted_at_ms


def _listen(path: Path) -> socket.socket:
    """Returns a listening socket, which the process that accepts waits for. Raises OSError."""
    path.unlink(missing_ok=True)
    return listening(path, mode=0o600, backlog=SENDER_BACKLOG, kind=socket.SOCK_STREAM)


def _line(words: Mapping[str, object]) -> bytes:
    return msgspec.json.encode(words)
