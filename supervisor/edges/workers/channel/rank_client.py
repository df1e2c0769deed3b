"""What does a rank's client send after its hello, and how is it asked?"""

from __future__ import annotations

from collections.abc import Callable

import anyio
import msgspec
from holdfast_wire import page_layout

from supervisor.core.facts import HangLimits, Progress
from supervisor.core.node import node_messages
from supervisor.edges.workers.channel import worker_codec as codec
from supervisor.edges.workers.channel import worker_frames as frames
from supervisor.edges.workers.channel.lease_expiry import Leases
from supervisor.edges.workers.channel.progress_page_reader import (
    NS_PER_S,
    ProgressPage,
    TrueStamps,
    now_ns,
    stamps_from_frame,
)
from supervisor.edges.workers.channel.section_tallies import SectionTallies
from supervisor.edges.workers.channel.worker_admission import OpenCycle
from supervisor.edges.workers.channel.worker_connection import WorkerConnection
from supervisor.edges.workers.channel.worker_frames import WorkerProtocolError
from supervisor.edges.workers.stacks.stack_text import main_thread_first
from supervisor.edges.workers.stacks.stacks_signal import ask_by_signal
from supervisor.ports.edges import Clock

LEASE_QUESTIONS_MAX = 16  # unanswered ones of a rank; older ones are dropped
CLIENT_SHARE = 0.3  # of the time for stacks, since milliseconds suffice; the rest is for the signal


class _StacksAsked(msgspec.Struct):
    request_id: int
    answered: anyio.Event = msgspec.field(default_factory=anyio.Event)
    text: str = ""


class RankClient(msgspec.Struct, eq=False, kw_only=True):
    """One rank's client, from its welcome to its end."""

    cycle: OpenCycle
    local_rank: int
    pid: int  # 0: unknown here
    connection: WorkerConnection
    scope: anyio.CancelScope  # of the task that serves it
    limits: HangLimits
    stamps: TrueStamps
    page: ProgressPage | None
    clock: Clock
    leases: Leases
    on_unknown: Callable[[str], None]  # called with a sentence about the first frame of a newer client
    stacks_signal: int = 0
    stacks_fd: int = -1
    joined: bool = False  # the engine knows the rank
    tallies: SectionTallies | None = None  # set once they were asked for
    _lease_questions: list[int] = msgspec.field(default_factory=list[int])  # unanswered
    _stacks: _StacksAsked | None = None
    _stacks_asked: int = 0
    _unknown_told: bool = False

    @property
    def key(self) -> tuple[str, int, int]:
        return self.cycle.job_id, self.cycle.cycle, self.local_rank

    def progress(self) -> Progress:
        """Returns the current page, or the last frame that has arrived, even if still in the socket."""
        read_at_s = self.clock.now_s()
        if self.page is not None:
            self.stamps.take(self.page.read(len(self.stamps.section_names)), now_ns=now_ns(self.clock))
        else:
            self._look_ahead()
        return self.stamps.progress(read_at_s=read_at_s)

    def section_tallies(self) -> SectionTallies | None:
        """Returns the current tallies; None if no page is shared."""
        if self.page is None:
            return None
        if self.tallies is None:
            self.tallies = SectionTallies(self.stamps.section_names)
        self.tallies.take(self.page.read_tallies(len(self.tallies.names)))
        return self.tallies

    def _look_ahead(self) -> None:
        """Reads frames ahead: we may be late, and what the rank sent counts before its silence is judged."""
        for payload in reversed(self.connection.waiting()):
            try:
                told = codec.decode(payload)
            except WorkerProtocolError:
                continue  # handled and answered when it is received
            if isinstance(told, frames.Progress):
                read_ns = now_ns(self.clock)
                self.stamps.take(stamps_from_frame(told, now_ns=read_ns), now_ns=read_ns)
                return

    def hear(self, payload: bytes) -> tuple[node_messages.Event | None, bytes | None]:
        """Takes a frame; returns an event for the engine, or a frame that answers at once.

        The engine's core answers a WorkloadControl. Raises WorkerProtocolError.
        """
        told = codec.decode(payload)
        if isinstance(told, frames.LeaseQuestion):
            return None, self._answer_on_lease(told.request_id)
        return self._take(told), None

    def _answer_on_lease(self, request_id: int) -> bytes | None:
        """Returns the answer if the lease holds; else `take_lease` returns it later."""
        left_ns = self.leases.left_ns(self.cycle.job_id)
        if left_ns > 0:
            return codec.encode(frames.Lease(request_id, left_ns))
        del self._lease_questions[: -LEASE_QUESTIONS_MAX + 1]
        self._lease_questions.append(request_id)
        return None

    def take_lease(self) -> list[bytes]:
        """Writes the lease to the page; returns answers to questions that it makes possible."""
        if self.page is not None:
            self.page.set_lease(self.leases.until_ns(self.cycle.job_id))
        if not self._lease_questions or self.leases.left_ns(self.cycle.job_id) <= 0:
            return []
        asked, self._lease_questions = self._lease_questions, []
        return [codec.encode(frames.Lease(request_id, 0)) for request_id in asked]

    def end_lease(self) -> None:
        """Ends the lease: the cycle is over."""
        if self.page is not None:
            self.page.set_lease(page_layout.LEASE_ENDED)

    def _take(self, told: frames.FromWorker) -> node_messages.Event | None:
        match told:
            case frames.Progress():
                return self._take_progress(told)
            case frames.LimitsCalculated(limits):
                self.limits = HangLimits(**msgspec.structs.asdict(limits), warm_up_steps=self.limits.warm_up_steps)
                return node_messages.LimitsCalculated(*self.key, self.limits)
            case frames.WorkloadControl(action, description, request_id):
                return node_messages.ControlRequested(*self.key, action.name.lower(), description, request_id)
            case frames.StacksAnswer():
                asked = self._stacks
                if asked is not None and asked.request_id == told.request_id:
                    asked.text, self._stacks = told.text, None
                    asked.answered.set()
                return None
            case frames.Goodbye():
                return node_messages.ClientLeft(*self.key)
            case frames.LeaseQuestion():
                raise AssertionError("it is answered at once, or later")
            case frames.Hello():
                raise WorkerProtocolError("cannot take a second Hello")
            case frames.Unknown(why):
                self._tell_unknown(why)
                return None
            case word:
                return node_messages.RankSaid(*self.key, word)

    def _tell_unknown(self, why: str) -> None:
        """Reports the first one of this connection."""
        if not self._unknown_told:
            self._unknown_told = True
            whose = f"local rank {self.local_rank} of job {self.cycle.job_id}"
            self.on_unknown(f"skipped a message of {whose}: {why}; if its client is newer, upgrade this supervisor")

    def _take_progress(self, told: frames.Progress) -> node_messages.Event | None:
        if self.page is not None:  # the page has the values; the frame only says that they changed
            return node_messages.ProgressRead(*self.key, self.progress())
        read_ns = now_ns(self.clock)
        before = set(self.stamps.open_slots)
        self.stamps.take(stamps_from_frame(told, now_ns=read_ns), now_ns=read_ns)
        if set(self.stamps.open_slots) <= before:
            return None  # only a section that opens can shorten a deadline
        return node_messages.ProgressRead(*self.key, self.stamps.progress(read_at_s=read_ns / NS_PER_S))

    async def ask_stacks(self, timeout_s: float) -> str | None:
        """Returns what faulthandler prints in the worker, main thread first; None if that takes too long.

        Asks the client; if it does not answer because a thread holds the GIL, a signal makes the worker print.
        """
        with anyio.move_on_after(timeout_s):
            with anyio.move_on_after(CLIENT_SHARE * timeout_s):
                return await self._ask_client()
            text = await ask_by_signal(self.pid, self.stacks_signal, self.stacks_fd)
            return None if text is None else main_thread_first(text)
        return None

    async def _ask_client(self) -> str:
        if self._stacks is None:
            # One request at a time: many requests would fill a stopped worker's socket.
            self._stacks_asked += 1
            self._stacks = _StacksAsked(self._stacks_asked)
            try:
                await self.connection.send(codec.encode(frames.StacksRequest(self._stacks.request_id)))
            except (OSError, TimeoutError):
                self.scope.cancel()
        asked = self._stacks
        await asked.answered.wait()
        return asked.text

    def close(self) -> None:
        """Ends its task and unmaps the page."""
        if self.page is not None:
            self.page.close()
            self.page = None
        self.scope.cancel()
