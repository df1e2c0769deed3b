"""Which client speaks for each rank, and what has it sent? One coroutine per connection of the worker socket.

A peer is checked before its messages count (worker_admission.py). At most, it can harm its own connection.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import anyio
import msgspec
from anyio.abc import TaskGroup, TaskStatus
from holdfast_wire.framing import FrameTooLongError
from holdfast_wire.page_layout import SECTION_SLOTS_MAX

from supervisor.config.job_spec import JobSpec
from supervisor.core.facts import HangLimits, Progress
from supervisor.core.node import node_messages
from supervisor.core.wrapped_calls.call_messages import ToRank
from supervisor.edges.machine.processes.peer_credentials import Peer
from supervisor.edges.workers.auto_heartbeat_pages import MainThreads
from supervisor.edges.workers.channel import worker_codec as codec
from supervisor.edges.workers.channel import worker_frames as frames
from supervisor.edges.workers.channel.lease_expiry import Leases
from supervisor.edges.workers.channel.progress_page_reader import ProgressPage, TrueStamps, now_ns
from supervisor.edges.workers.channel.rank_client import RankClient
from supervisor.edges.workers.channel.recalled_ranks import RecalledRanks
from supervisor.edges.workers.channel.section_tallies import SectionTallies
from supervisor.edges.workers.channel.worker_admission import (
    Admitted,
    OpenCycle,
    Refusal,
    WorkerCycles,
    is_one_clock,
)
from supervisor.edges.workers.channel.worker_connection import WorkerConnection
from supervisor.edges.workers.channel.worker_frames import WorkerProtocolError
from supervisor.edges.workers.channel.worker_listener import WorkerListener
from supervisor.edges.workers.page_hand_over import PageNote, PageOffers, ReturnedPage
from supervisor.ports.edges import Clock

HELLO_TIMEOUT_S = 5.0
PICKLE = b"\x80"  # no frame of ours begins so
OTHER_CLIENT = (
    "it sends pickles, as the client of nvidia-resiliency-ext does; in the script, write from worker_client import "
    "RankMonitorClient (docs/from-reference-product.md)"
)
HELD_TIMEOUT_S = 5.0  # for a hello that came before its worker was announced
STRANGERS_MAX = 64  # connections that have not shown a token yet; the oldest is dropped first
TOLD_FIRST = 20
TOLD_EVERY = 1000
HELD_MAX = 1024  # hellos that wait for the announcement of their worker

_log = logging.getLogger("holdfast.workers")


class Counters(msgspec.Struct):
    """Counts errors at the socket since the start."""

    refused: int = 0
    malformed: int = 0
    timed_out: int = 0
    crowded_out: int = 0
    foreign_uid: int = 0
    unknown: int = 0  # connections of newer clients

    def tell(self, kind: str, message: str) -> None:
        """Counts one, and logs the first ones, then every thousandth: a failing peer must not fill the log."""
        count = getattr(self, kind) + 1
        setattr(self, kind, count)
        if count <= TOLD_FIRST or count % TOLD_EVERY == 0:
            _log.warning("%s (number %d of this kind)", message, count)


class Events(Protocol):
    """The engine's inbox."""

    def post(self, event: node_messages.Event) -> None:
        """Posts an event. Never blocks: for events that happen once per connection."""
        ...

    async def post_in_turn(self, event: node_messages.Event) -> None:
        """Waits until there is room for another event of this job: for events that a connection may repeat."""
        ...


class WorkerServer:
    """The worker socket; see ports.Workers. `run` must be started first. For the event loop's thread."""

    def __init__(
        self,
        *,
        socket_path: Path,
        events: Events,
        clock: Clock,
        on_sections: Callable[[str], None],
        pages: PageOffers | None = None,
        main_threads: MainThreads | None = None,
    ) -> None:
        """`on_sections` is called with the job of a rank that may stamp sections. `pages`: for the spawners, which keep
        them for the next supervisor; None: there is none. `main_threads`: of the spawners' workers."""
        self._events = events
        self._clock = clock
        self._cycles = WorkerCycles()
        self._leases = Leases(clock)
        self._clients: dict[tuple[str, int, int], RankClient] = {}
        self._recalled = RecalledRanks(clock)
        self._pages = pages if pages is not None else PageOffers()
        self._main_threads = main_threads if main_threads is not None else MainThreads()
        self._strangers: dict[anyio.CancelScope, None] = {}  # in order of arrival
        self._connections: set[WorkerConnection] = set()
        self._held = 0
        self._tasks: TaskGroup | None = None
        self._listener = WorkerListener(socket_path, on_accept=self._accept)
        self.counters = Counters()
        self._on_sections = on_sections

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serves until cancelled. Raises HoldfastError if another supervisor serves the directory or it is unsafe."""
        self._listener.open()  # before the task group, so that its error is not wrapped in a group
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                tasks.start_soon(self._listener.run)
                task_status.started()
        finally:
            for connection in self._connections:
                connection.close()  # a task cancelled before its first step never closes its connection
            self._listener.close()

    # --- for the engine --------------------------------------------------------------------------------------------

    def open_cycle(
        self, job_id: str, cycle: int, *,
        token: bytes, spec: JobSpec, limits: HangLimits, first_rank: int, is_fenced: bool,
    ) -> None:  # fmt: skip
        self._leases.begin(job_id, is_fenced=is_fenced)
        self._cycles.open(OpenCycle(job_id, cycle, token, spec, limits, first_rank))
        self._listener.check()

    def expect(self, job_id: str, cycle: int, local_rank: int, pid: int) -> None:
        self._cycles.expect(job_id, cycle, local_rank, pid)

    async def next_unknown(self, job_id: str) -> tuple[int, int]:
        return await self._cycles.next_unknown(job_id)

    def close_cycle(self, job_id: str, cycle: int) -> None:
        """Closes a cycle. Idempotent. Its clients are dropped without ClientLeft: the cycle is over."""
        self._cycles.close(job_id, cycle)
        self._recalled.forget_cycle(job_id, cycle)
        for key in [key for key in self._clients if key[:2] == (job_id, cycle)]:
            self._clients[key].end_lease()
            self._drop(self._clients[key])

    def extend_lease(self, job_id: str, until_s: float) -> None:
        self._leases.extend(job_id, until_s)
        for key, client in self._clients.items():
            if key[0] == job_id:
                for answer in client.take_lease():
                    self._send_soon(client, answer)

    def set_limits(self, job_id: str, cycle: int, limits: HangLimits) -> None:
        found = self._cycles.get(job_id, cycle)
        if found is not None:
            found.limits = limits

    def read_progress(self, job_id: str, cycle: int, local_rank: int) -> Progress | None:
        """Returns the rank's pages as they are now, or its last frame.

        None if no client is connected and its main thread is not watched either.
        """
        now_s = self._clock.now_s()
        executed_at_s = self._main_threads.executed_at_s(job_id, cycle, local_rank, now_s)
        progress = self._client_progress(job_id, cycle, local_rank)
        if executed_at_s is None:
            return progress
        if progress is None:
            progress = Progress(initialised_at_s=now_s, out_of_section_since_s=now_s, read_at_s=now_s)
        return msgspec.structs.replace(progress, executed_at_s=executed_at_s)

    def _client_progress(self, job_id: str, cycle: int, local_rank: int) -> Progress | None:
        client = self._clients.get((job_id, cycle, local_rank))
        if client is None:
            return self._recalled.progress((job_id, cycle, local_rank))
        return client.progress() if client.joined else None

    def section_tallies(self, job_id: str, cycle: int, local_rank: int) -> SectionTallies | None:
        """Returns the current tallies of the rank's connection. None if there is none, or no shared page."""
        client = self._clients.get((job_id, cycle, local_rank))
        return client.section_tallies() if client is not None and client.joined else None

    def recall(
        self, job_id: str, cycle: int, local_rank: int, progress: Progress, page: ReturnedPage | None = None
    ) -> None:
        """Sets the page, or without one the progress, that counts until the rank's client is back; takes the page."""
        self._recalled.recall((job_id, cycle, local_rank), progress, page)

    def tell_ranks(
        self, job_id: str, cycle: int, local_ranks: Sequence[int], order: ToRank | node_messages.Accepted
    ) -> None:
        """Sends without blocking. A rank that is not connected or does not read gets an order when it reconnects."""
        frame = codec.encode(order) if isinstance(order, node_messages.Accepted) else codec.encode_order(order)
        for local_rank in local_ranks:
            client = self._clients.get((job_id, cycle, local_rank))
            if client is not None and client.joined:
                self._send_soon(client, frame)

    def _send_soon(self, client: RankClient, frame: bytes) -> None:
        if not client.connection.send_soon(frame):
            client.scope.cancel()
        elif client.connection.must_flush and self._tasks is not None:
            self._tasks.start_soon(self._flush, client)

    def reconnect(self, job_id: str, cycle: int) -> None:
        for key, client in self._clients.items():
            if key[:2] == (job_id, cycle):
                client.scope.cancel()

    async def _flush(self, client: RankClient) -> None:
        try:
            await client.connection.flush()
        except (OSError, TimeoutError):
            client.scope.cancel()

    async def ask_stacks(self, job_id: str, cycle: int, local_rank: int, *, timeout_s: float) -> str | None:
        """Returns what faulthandler prints in the worker, main thread first; None if that takes too long."""
        key = job_id, cycle, local_rank
        client = self._clients.get(key)
        return await (client.ask_stacks(timeout_s) if client else self._recalled.ask_stacks(key, timeout_s))

    @property
    def connected(self) -> int:
        return len(self._clients)

    # --- one connection --------------------------------------------------------------------------------------------

    def _accept(self, sock: socket.socket) -> None:
        try:
            peer = Peer.of(sock)
        except OSError:
            sock.close()
            return
        if not peer.may_be_this_user:
            self.counters.tell("foreign_uid", f"refused a connection of user id {peer.uid} (pid {peer.pid})")
            sock.close()
            return
        if len(self._strangers) >= STRANGERS_MAX:
            self.counters.crowded_out += 1
            next(iter(self._strangers)).cancel()
        scope = anyio.CancelScope()
        self._strangers[scope] = None
        assert self._tasks is not None
        connection = WorkerConnection(sock, self._clock)
        self._connections.add(connection)
        self._tasks.start_soon(self._serve, connection, peer, scope)

    async def _serve(self, connection: WorkerConnection, peer: Peer, scope: anyio.CancelScope) -> None:
        client: RankClient | None = None
        try:
            with scope:
                client = await self._greet(connection, peer, scope)
                if client is not None:
                    await self._listen(client)
        except (WorkerProtocolError, FrameTooLongError) as error:
            self.counters.tell("malformed", f"dropped the connection of pid {peer.pid}: {error}")
        except TimeoutError:
            self.counters.tell(
                "timed_out", f"dropped the connection of pid {peer.pid}: it neither sends nor reads anything"
            )
        except OSError:
            pass  # The peer is gone: there is nothing more to know.
        finally:
            self._strangers.pop(scope, None)
            if client is not None:
                self._left(client)
            self._connections.discard(connection)
            connection.close()
            self._listener.freed()

    async def _greet(self, connection: WorkerConnection, peer: Peer, scope: anyio.CancelScope) -> RankClient | None:
        payload = await connection.receive(timeout_s=HELLO_TIMEOUT_S)
        if payload is None:
            return None
        received_ns = now_ns(self._clock)
        if payload.startswith(PICKLE):
            raise WorkerProtocolError(OTHER_CLIENT)
        hello = codec.decode(payload)
        if not isinstance(hello, frames.Hello):
            raise WorkerProtocolError(f"cannot take a {type(hello).__name__} before Hello")
        one_clock = is_one_clock(hello.monotonic_ns, received_ns, peer)
        answer = await self._admit(hello, peer, scope)
        if isinstance(answer, Refusal):
            self.counters.tell("refused", f"refused pid {peer.pid}: {answer.reason}")
            connection.send_last(codec.encode(frames.Refused(answer.reason, retry=answer.retry)))
            return None
        self._strangers.pop(scope, None)
        return await self._welcome(
            answer.cycle, hello, peer, connection, scope, share_page=hello.can_share_page and one_clock
        )

    async def _admit(self, hello: frames.Hello, peer: Peer, scope: anyio.CancelScope) -> Admitted | Refusal:
        """Waits for the announcement of the worker, at most HELD_TIMEOUT_S."""
        answer = self._cycles.answer(hello, peer)
        if isinstance(answer, Admitted | Refusal):
            return answer
        if self._held >= HELD_MAX:
            return Refusal(f"{answer.reason}; too many wait", retry=True)
        self._strangers.pop(scope, None)  # it has shown the token
        self._held += 1
        try:
            with anyio.move_on_after(HELD_TIMEOUT_S):
                while not isinstance(answer, Admitted | Refusal):
                    await self._cycles.changed()
                    answer = self._cycles.answer(hello, peer)
        finally:
            self._held -= 1
        return answer if isinstance(answer, Admitted | Refusal) else Refusal(answer.reason, retry=True)

    async def _welcome(
        self,
        cycle: OpenCycle,
        hello: frames.Hello,
        peer: Peer,
        connection: WorkerConnection,
        scope: anyio.CancelScope,
        *,
        share_page: bool,
    ) -> RankClient:
        page = _new_page() if share_page else None
        limits = msgspec.structs.replace(
            cycle.limits,
            sections=cycle.limits.sections[:SECTION_SLOTS_MAX],
            warm_up_steps=cycle.limits.warm_up_steps if hello.warm_up_steps is None else hello.warm_up_steps,
        )
        names = tuple(name for name, _ in limits.sections)
        client = RankClient(
            cycle=cycle,
            local_rank=hello.local_rank,
            pid=0 if peer.foreign else peer.pid,
            connection=connection,
            scope=scope,
            limits=limits,
            stamps=TrueStamps(names, exact=page is not None),
            page=page,
            clock=self._clock,
            leases=self._leases,
            on_unknown=partial(self.counters.tell, "unknown"),
            stacks_signal=hello.stacks_signal,
            stacks_fd=hello.stacks_fd,
        )
        self._register(client)
        client.take_lease()
        welcome = frames.Welcome(
            cycle=cycle.cycle,
            rank=hello.rank,
            page_shared=page is not None,
            limits=_told_limits(limits),
            sections=names,
            warm_up_steps=max(0, limits.warm_up_steps),
            safety_factor=cycle.spec.safety_factor,
            learned_limit_floor_s=cycle.spec.learned_limit_floor_s,
            install_exception_hook=cycle.spec.install_exception_hook,
            lease_is_unbounded=self._leases.is_unbounded(cycle.job_id),
        )
        try:
            await connection.send(codec.encode(welcome), () if page is None else (page.fd,))
        except BaseException:  # whatever stopped it, including cancellation, the client must not stay registered
            self._left(client)
            raise
        if page is not None:
            self._offer(client, page)
            page.close_descriptor()
        await self._join(client)
        return client

    def _offer(self, client: RankClient, page: ProgressPage) -> None:
        names = client.stamps.section_names
        note = PageNote(now_ns(self._clock), names, client.pid, client.stacks_signal, client.stacks_fd)
        with contextlib.suppress(OSError):  # then the next supervisor waits for the rank's client
            self._pages.offer(*client.key, page.fd, note)

    async def _join(self, client: RankClient) -> None:
        try:
            await self._events.post_in_turn(node_messages.ClientJoined(*client.key, client.limits, client.progress()))
        except BaseException:  # the engine never heard of this client: do not report that it left; raised again
            self._left(client)
            raise
        client.joined = True
        if client.page is not None and client.stamps.section_names:
            self._on_sections(client.cycle.job_id)

    def _register(self, client: RankClient) -> None:
        """Registers the newest valid hello as the rank's: a dead rank's children may hold its old socket."""
        self._recalled.forget(client.key)
        older = self._clients.get(client.key)
        if older is not None:
            self._drop(older)
        self._clients[client.key] = client
        client.cycle.speaking[client.local_rank] = client.pid

    async def _listen(self, client: RankClient) -> None:
        """Receives frames. While one waits for its turn, reads no more: only this rank's own socket fills."""
        while (payload := await client.connection.receive()) is not None:
            event, reply = client.hear(payload)
            if isinstance(event, node_messages.ClientLeft):
                return  # it said goodbye; the close of the connection posts that
            if event is not None:
                await self._events.post_in_turn(event)
            if reply is not None:
                await client.connection.send(reply)

    def _left(self, client: RankClient) -> None:
        if self._clients.get(client.key) is not client:
            return  # a newer one took its place, or the cycle is over
        self._drop(client)
        if client.joined:
            self._events.post(node_messages.ClientLeft(*client.key))

    def _drop(self, client: RankClient) -> None:
        del self._clients[client.key]
        client.cycle.speaking.pop(client.local_rank, None)
        self._pages.withdraw(*client.key)
        client.close()


def _told_limits(limits: HangLimits) -> frames.Limits:
    return frames.Limits(limits.initial_heartbeat_s, limits.heartbeat_s, limits.out_of_section_s, limits.sections)


def _new_page() -> ProgressPage | None:
    """Returns None if no page is available: then progress comes in frames."""
    try:
        return ProgressPage()
    except OSError as error:
        _log.warning("a progress page can't be made, progress comes by frames: %s", error)
        return None
