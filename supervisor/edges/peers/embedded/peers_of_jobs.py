"""How does each job of a supervisor get its own connections to its other nodes, separate from other jobs?

A job on several nodes has its own leader or follower, connections and questions, in a separate task. A failure there
ends only that job. Jobs on this node alone have none of this.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Protocol, cast, runtime_checkable

import anyio
import msgspec
from anyio.abc import TaskGroup, TaskStatus

from supervisor.config.job_spec import JobSpec, Nodes
from supervisor.core.cluster.cluster_messages import Event as Report
from supervisor.core.cluster.cluster_messages import LeadershipLost, Reported
from supervisor.core.leader_ledger import Ledger
from supervisor.core.node.node_messages import FenceMoved, JobAbandoned, Ordered
from supervisor.core.orders import Order
from supervisor.core.session_state import JobSessions
from supervisor.edges.machine.own_process.kernel_error_remedies import is_passing
from supervisor.edges.peers.embedded.local_peers import LocalPeers
from supervisor.edges.peers.stream.session_store import JobPeers, SessionStore
from supervisor.errors import ConfigurationError, HoldfastError, NoAnswerError
from supervisor.ports.edges import Post
from supervisor.ports.questions import Answer, LastEvents, PeersAndNodeRequests, Question, TakeQuestion
from supervisor.ports.timed_waits import pause

OPEN_AGAIN_S = 0.5
OTHERS_LAST_EVENTS_S = 2.0  # for the other nodes' events of a job that has ended

Opener = Callable[[Post, TakeQuestion], AbstractAsyncContextManager[JobPeers]]
Keep = Callable[[str], bool]  # see Meetings.open
Joining = Callable[[JobSpec, Nodes, SessionStore], Awaitable[tuple[JobSpec, Opener]]]
FromPeers = Ordered | Reported | FenceMoved | JobAbandoned

_log = logging.getLogger("holdfast.cluster")


@runtime_checkable
class KnowsLeader(Protocol):
    """Knows, for one job, where the leading node is reached now."""

    @property
    def leader_host(self) -> str: ...


@runtime_checkable
class AwaitsLastEvents(Protocol):
    """Knows, for one job, whether its other nodes have sent their last events."""

    async def until_all_have_left(self) -> None:
        """Waits until no other node is connected: each leaves once the job has ended there and it has told all."""
        ...


@runtime_checkable
class FallsQuiet(Protocol):
    """Knows, for one job, whether nodes still ask each other."""

    async def until_quiet(self) -> None:
        """Waits until no question is open, here or of another node."""
        ...


class _Meeting:
    """The meeting of one job."""

    def __init__(self, pass_on: Post, session_store: SessionStore) -> None:
        self._pass_on = pass_on
        self.session_store = session_store
        self._held: list[FromPeers] | None = []  # until the engine knows the job
        self.peers: JobPeers | None = None
        self.has_ended = False  # the job has; else this supervisor ends, and the job may go on
        self.is_over = anyio.Event()
        self.is_closed = anyio.Event()

    def post(self, event: FromPeers) -> None:
        if self._held is None:
            self._pass_on(event)
        else:
            self._held.append(event)

    @property
    def has_begun(self) -> bool:
        return self._held is None

    def begin(self) -> None:
        held, self._held = self._held, None
        for event in held or ():
            self._pass_on(event)


class PeersOfJobs:
    """Peers of all jobs; see ports.Peers, ports.Meetings, questions.NodeRequests. For the event loop's thread."""

    def __init__(
        self,
        *,
        local: LocalPeers,
        post: Post,
        take_question: TakeQuestion,
        unsent: LastEvents,
        tasks: TaskGroup,
        joining: Joining,
    ) -> None:
        """`take_question` gets the questions of the other nodes of all jobs."""
        self._local = local
        self._post = post
        self._take_question = take_question
        self._unsent = unsent
        self._tasks = tasks
        self._joining = joining
        self._meetings: dict[str, _Meeting] = {}

    # --- see ports.Meetings ----------------------------------------------------------------------------------------

    async def open(self, spec: JobSpec, keep: Keep | None) -> JobSpec:
        return await self._open(spec, None, keep)

    async def _open(self, spec: JobSpec, kept: JobSessions | None, keep: Keep | None) -> JobSpec:
        assert spec.nodes is not None, "a job of one node has no peers"
        earlier = self._meetings.get(spec.job_id)
        if earlier is not None:
            await earlier.is_closed.wait()  # its last messages go out; that takes a bounded time
        nodes, job_id = spec.nodes, spec.job_id
        session_store = SessionStore(partial(self._keep_first, job_id, keep) if keep is not None else None, kept)
        spec, opener = await self._joining(spec, nodes, session_store)
        meeting = self._meetings[job_id] = _Meeting(self._post, session_store)
        try:
            await self._tasks.start(self._keep, job_id, meeting, opener)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise ConfigurationError(
                f"cannot meet the other nodes at {nodes.host}:{nodes.port}: {why}; check --rdzv-endpoint"
            ) from error
        if not nodes.has_election and meeting.peers is not None and meeting.peers.leads(job_id):
            spec = msgspec.structs.replace(spec, nodes=msgspec.structs.replace(nodes, leads=True))
        return spec

    async def reopen(self, spec: JobSpec, kept: JobSessions | None, keep: Keep | None) -> None:
        if kept is None:
            why = "no record of what its nodes have exchanged was kept"
        elif not (why := await self._opened_again(spec, kept, keep)):
            return
        meeting = self._meetings[spec.job_id] = _Meeting(self._post, SessionStore())
        meeting.post(JobAbandoned(spec.job_id, f"cannot meet the other nodes of the job again: {why}"))
        self._tasks.start_soon(self._keep, spec.job_id, meeting, None)

    async def _opened_again(self, spec: JobSpec, kept: JobSessions, keep: Keep | None) -> str:
        """Returns why the job can't have its connections back; "": it has. Waits for a thread or descriptor."""
        is_told = False
        while True:
            try:
                await self._open(spec, kept, keep)
            except (HoldfastError, OSError) as error:
                cause = error if isinstance(error, OSError) else error.__cause__
                if not is_passing(cause):
                    return str(error)
                if not is_told:
                    _log.warning("job %s waits to meet its other nodes again: %s", spec.job_id, error)
                is_told = True
            else:
                return ""
            await pause(OPEN_AGAIN_S, why="the kernel does not tell when there is a thread or a descriptor again")

    def _keep_first(self, job_id: str, keep: Keep) -> bool:
        """Keeps a job's data; see SessionStore.keep. A job being taken back can't be kept before the engine knows
        it."""
        meeting = self._meetings.get(job_id)
        if meeting is not None and meeting.session_store.kept is not None and not meeting.has_begun:
            return False
        return keep(job_id)

    def session_state(self, job_id: str, *, whole: bool = True) -> JobSessions | None:
        meeting = self._meetings.get(job_id)
        peers = meeting.peers if meeting is not None else None
        return peers.session_state(whole=whole) if peers is not None else None

    def begin(self, job_id: str) -> None:
        if (meeting := self._meetings.get(job_id)) is not None:
            meeting.begin()

    def close(self, job_id: str) -> None:
        if (meeting := self._meetings.get(job_id)) is not None:
            meeting.has_ended = meeting.has_begun
            meeting.is_over.set()

    async def until_closed(self, job_id: str) -> None:
        """Waits, if the job has ended, until its other nodes have said their last; that takes a bounded time."""
        meeting = self._meetings.get(job_id)
        if meeting is not None and meeting.is_over.is_set():
            await meeting.is_closed.wait()

    def close_all(self) -> None:
        for meeting in self._meetings.values():
            meeting.is_over.set()

    async def _keep(
        self,
        job_id: str,
        meeting: _Meeting,
        opener: Opener | None,
        *,
        task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Keeps the connections open. `opener` None: there are none."""
        try:
            if opener is None:
                await meeting.is_over.wait()
                return
            async with opener(meeting.post, self._take_question) as peers:
                meeting.peers = peers
                task_status.started()
                await meeting.is_over.wait()
                if meeting.has_ended:
                    with anyio.move_on_after(OTHERS_LAST_EVENTS_S):
                        await self._exchange_last_events(job_id, peers)
        except Exception as error:  # noqa: BLE001 - the bulkhead: any failure is that of this job alone
            fault = _first(error)
            if meeting.peers is None:
                raise fault from None  # the job's submitter gets it
            _log.error("job %s has lost its connection to the other nodes", job_id, exc_info=error)
            text = f"a fault of the supervisor broke the connection to the other nodes: {type(fault).__name__}: {fault}"
            meeting.post(JobAbandoned(job_id, text))
            meeting.peers = None
            await meeting.is_over.wait()
        finally:
            meeting.peers = None
            # A remaining coordinator would wait for nodes that nobody hears any more.
            meeting.post(Reported(job_id, LeadershipLost("the job has ended on this node")))
            del self._meetings[job_id]
            meeting.is_closed.set()
            self._unsent.forget(job_id)

    async def _exchange_last_events(self, job_id: str, peers: PeersAndNodeRequests) -> None:
        if not peers.leads(job_id):
            await self._unsent.tell_last(job_id)
            if isinstance(
                peers.node_requests, FallsQuiet
            ):  # People who follow the job read its last output and events.
                await peers.node_requests.until_quiet()
        elif isinstance(peers, AwaitsLastEvents):
            await peers.until_all_have_left()

    # --- see ports.Peers -------------------------------------------------------------------------------------------

    @property
    def node_requests(self) -> PeersOfJobs:
        return self

    def leads(self, job_id: str) -> bool:
        peers = self._of(job_id)
        return peers is not None and peers.leads(job_id)

    def leader_host(self, job_id: str) -> str:
        """Returns the host of the elected leader; "": nobody leads, or the job finds its leader in another way."""
        peers = self._of(job_id)
        return peers.leader_host if isinstance(peers, KnowsLeader) else ""

    def send(self, node: str, job_id: str, order: Order) -> None:
        if (peers := self._of(job_id)) is not None:
            peers.send(node, job_id, order)

    def report(self, job_id: str, report: Report) -> None:
        if (peers := self._of(job_id)) is not None:
            peers.report(job_id, report)

    def record(self, job_id: str, ledger: Ledger) -> None:
        if (peers := self._of(job_id)) is not None:
            peers.record(job_id, ledger)

    # --- see questions.NodeRequests ----------------------------------------------------------------------------------

    def outage(self, job_id: str) -> str:
        peers = self._of(job_id)
        return "" if peers is None else peers.node_requests.outage(job_id)

    async def ask(self, job_id: str, to: str, question: Question, *, timeout_s: float) -> Answer:
        if job_id not in self._meetings:  # Nobody asks about a job of this node alone.
            raise NoAnswerError(f"cannot ask the other nodes of job {job_id}: it has ended on this node")
        peers = self._of(job_id)
        if peers is None:
            raise NoAnswerError(f"cannot ask the other nodes of job {job_id}: the connection to them is lost")
        return await peers.node_requests.ask(job_id, to, question, timeout_s=timeout_s)

    def _of(self, job_id: str) -> PeersAndNodeRequests | None:
        """Returns the job's peers; None if they are closed or lost: then nobody could hear a message."""
        meeting = self._meetings.get(job_id)
        return self._local if meeting is None else meeting.peers


@asynccontextmanager
async def open_peers_of_jobs(
    post: Post,
    take_question: TakeQuestion,
    unsent: LastEvents,
    *,
    state_dir: Path,
    joining: Joining | None = None,
) -> AsyncGenerator[PeersOfJobs]:
    """Yields the peers. At the end, unheard messages are delivered to the nodes of each job for a bounded time."""
    async with anyio.create_task_group() as tasks:
        local = LocalPeers(post)
        peers = PeersOfJobs(
            local=local,
            post=post,
            take_question=take_question,
            unsent=unsent,
            tasks=tasks,
            joining=joining or partial(_joining, state_dir),
        )
        yield peers
        peers.close_all()


async def _joining(state_dir: Path, spec: JobSpec, nodes: Nodes, session_store: SessionStore) -> tuple[JobSpec, Opener]:
    from supervisor.edges.peers.embedded import cluster_peers  # Late: most jobs have one node.

    return await cluster_peers.joining(spec, nodes, session_store, state_dir=state_dir)


def _first(error: BaseException) -> BaseException:
    """Returns the first error that somebody can act on, out of its group."""
    while isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        refusals = group.subgroup(HoldfastError) or group
        error = refusals.exceptions[0]
    return error
