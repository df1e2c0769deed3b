"""How do frames get to the supervisor and back without ever making training wait?

One daemon thread owns the socket. It sleeps in poll() until a frame comes, a stamp wakes it, or the next Progress is
due; while the supervisor is away, it reconnects with growing pauses. Callers in other threads leave a note and write to
an eventfd. Every buffer has a bound.
"""

from __future__ import annotations

import contextlib
import enum
import os
import select
import socket
import threading
from dataclasses import replace
from time import monotonic, monotonic_ns
from typing import Protocol

from holdfast_wire import page_layout as layout

from worker_client import server_identity, thread_signals
from worker_client.call_protocol import CallEvent
from worker_client.channel_protocol import (
    Accepted,
    ChannelProtocol,
    Event,
    Identity,
    LeaseTold,
    Refused,
    StacksRequested,
    Welcomed,
)
from worker_client.endpoint import Endpoint
from worker_client.errors import ChannelProtocolError
from worker_client.guarded_log import GuardedLog
from worker_client.outbox import LeaseQuestion, Outbox, OverfullError, Watch
from worker_client.own_stacks import current_stacks
from worker_client.progress_page_writer import PageUnusableError, ProgressPage
from worker_client.rank_progress import Progress
from worker_client.timeouts import Limits
from worker_client.workload_control import WorkloadControlRequest

RECONNECT_MIN_S = 0.05
RECONNECT_MAX_S = 0.5
LASTED_S = 5.0  # a connection that lasted this long was a good one
PROGRESS_INTERVAL_MIN_S = 0.01
PROGRESS_INTERVAL_MAX_S = 1.0
PROGRESS_PER_LIMIT = 10  # least number of progress messages per limit, without a shared page
OUT_BYTES_MAX = 256 * 1024  # not yet taken by the socket; only answers can exceed it
RECEIVE_BYTES = 64 * 1024
DESCRIPTORS_MAX = 4  # accepted with one message; one is expected
CLOSE_TIMEOUT_S = 1.0
GOODBYE_TIMEOUT_S = 0.5  # the part of it for sending what a full socket has not taken yet
THREAD_NAME = "holdfast-channel"

log = GuardedLog("holdfast")


class ChannelOwner(Protocol):
    """Handles what the channel receives. All methods are called on the channel's thread."""

    def find(self, known: Endpoint) -> Endpoint | None:
        """Returns where the supervisor answers now; None: nowhere at present; `known`: it is expected there again."""
        ...

    def welcomed(self, welcome: Welcomed, page: ProgressPage) -> bool:
        """Continues monitoring in `page`. Returns whether a silence from another connection continues there."""
        ...

    def unreachable(self, reason: str) -> None:
        """Notes that no supervisor answers, or the connection has ended; the channel retries by itself."""

    def refused(self, reason: str) -> None:
        """Notes that the supervisor has refused this rank for good; the channel gives up."""

    def heard(self, event: CallEvent) -> None:
        """Handles a message about a wrapped call."""


class _ConnectionEndedError(Exception):
    """Raised when the conversation is over; the message says why."""


class _Ending(enum.Enum):
    """Why the channel no longer connects."""

    CLOSED = enum.auto()  # by its owner
    REFUSED = enum.auto()  # by the supervisor, for good


class Channel:
    """The connection of one rank. Call `start()` and `close()` once each. Supervisor problems never raise here."""

    def __init__(
        self,
        socket_path: str,
        identity: Identity,
        progress: Progress,
        owner: ChannelOwner,
        *,
        warm_up_steps: int | None = None,
        stacks: tuple[int, int] = (0, 0),
        can_share_page: bool = True,
    ) -> None:
        self._socket_path = socket_path
        self._identity = identity
        self._progress = progress
        self._owner = owner
        self._warm_up_steps = warm_up_steps
        self._stacks = stacks
        self._can_share_page = can_share_page
        self.supervisor_pid = 0  # pid of the last supervisor that answered
        self._pause_s, self._welcomed_by = RECONNECT_MIN_S, 0  # a pid
        self._ending: _Ending | None = None
        self._outbox = Outbox(self.wake)
        self._progress_interval_s = PROGRESS_INTERVAL_MAX_S
        self._watch_interval_s = PROGRESS_INTERVAL_MAX_S
        self._wake_descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._sock: socket.socket | None = None
        self._knows_leases = False
        self._protocol = ChannelProtocol(identity)
        self._out = bytearray()  # not yet taken by the socket: one note, and answers
        self._descriptors: list[int] = []  # may arrive before the rest of their frame
        self._progress_due_s: float | None = None  # None: progress is not sent in frames
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)

    @property
    def has_given_up(self) -> bool:
        """Whether the supervisor has refused this rank for good."""
        return self._ending is not None

    # --- called by other threads ---

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Makes the thread look at its notes. One system call; never blocks."""
        with contextlib.suppress(OSError, ValueError):  # Closed: there is no thread to wake.
            os.eventfd_write(self._wake_descriptor, 1)

    def tell_limits(self, limits: Limits) -> None:
        """Sends these limits as soon as there is a connection. The owner repeats them after each welcome."""
        self._outbox.tell_limits(limits)

    def expect_limits(self, limits: Limits) -> None:
        """Notes the limits in effect. They decide how often progress is sent if it is sent in frames."""
        shortest_s = limits.shortest_s()
        wanted_s = PROGRESS_INTERVAL_MAX_S if shortest_s is None else shortest_s / PROGRESS_PER_LIMIT
        self._progress_interval_s = min(max(wanted_s, PROGRESS_INTERVAL_MIN_S), PROGRESS_INTERVAL_MAX_S)

    def say(self, frame: bytes) -> None:
        """Sends a frame of a wrapped call over this connection or not at all; the caller repeats it after a welcome."""
        self._outbox.say(frame)

    def wait_sent(self, timeout_s: float) -> bool:
        """Blocks until the kernel has all frames, at most `timeout_s`; returns whether it has.

        After a lost connection, these are the frames repeated on the next one.
        """
        return self._outbox.wait_sent(timeout_s)

    def watch_changed(self, soft_timeout_s: float) -> None:
        """Sends the page's words on a wrapped call, which have changed, at once if there is no shared page."""
        wanted_s = soft_timeout_s / PROGRESS_PER_LIMIT
        self._watch_interval_s = min(max(wanted_s, PROGRESS_INTERVAL_MIN_S), PROGRESS_INTERVAL_MAX_S)
        if self._progress_due_s is not None:
            self._outbox.tell_watch()

    def request_control(self, request: WorkloadControlRequest, *, timeout_s: float) -> bool:
        """Blocks until the supervisor has accepted, at most `timeout_s`; returns whether. A reconnect resends it."""
        accepted = self._outbox.request(request)
        return accepted is not None and accepted.wait(timeout_s)

    def ask_lease(self, *, timeout_s: float) -> int | None:
        """Blocks until this rank's lease holds, at most `timeout_s`; returns how long it held from the call on, in ns.

        Returns 0 if it did not hold at first, and None if it does not hold now, or no supervisor has said so.
        """
        question = LeaseQuestion()
        answered = self._outbox.request(question)
        if answered is not None and answered.wait(timeout_s):
            return question.left_ns
        self._outbox.withdraw(question)
        return None

    def close(self) -> None:
        """Says goodbye and ends the thread. Blocks at most CLOSE_TIMEOUT_S."""
        self._ending = self._ending or _Ending.CLOSED
        self.wake()
        if self._thread.ident is not None:  # else it could not be started
            self._thread.join(CLOSE_TIMEOUT_S)
        if not self._thread.is_alive():
            self._close_wake_descriptor()

    def abandon(self) -> None:
        """Closes a forked child's copies of the descriptors; the parent's connection is untouched."""
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()
        self._close_descriptors()
        self._close_wake_descriptor()

    # --- the thread ---

    def _run(self) -> None:
        thread_signals.leave_to_the_script()
        while self._ending is None:
            began_s = monotonic()
            try:
                self._converse()
            except (_ConnectionEndedError, ChannelProtocolError, OverfullError, OSError) as error:
                self._owner.unreachable(str(error))
            except Exception as error:  # noqa: BLE001 our own defect may cost a connection, never the channel
                self._owner.unreachable(f"cannot go on with this connection: {type(error).__name__}: {error}")
            finally:
                self._hang_up()
            has_lasted = monotonic() - began_s > LASTED_S
            self._pause_s = RECONNECT_MIN_S if has_lasted else min(2 * self._pause_s, RECONNECT_MAX_S)
            self._rest(self._pause_s)
            if self._ending is None:
                self._look_again()
        self._outbox.give_up()

    def _look_again(self) -> bool:
        """Finds out where the supervisor answers now. Returns whether a final refusal just received still counts.

        It does not if another supervisor serves now, or none: then a dead or ending supervisor has refused.
        """
        before, who = (self._socket_path, self._identity), self._identity
        found = self._owner.find(Endpoint(self._socket_path, who.job_id, who.cycle, who.token))
        if found is None:
            return False
        self._socket_path = found.socket_path
        self._identity = replace(self._identity, job_id=found.job_id, cycle=found.cycle, token=found.token)
        self._protocol = ChannelProtocol(self._identity)
        return before == (self._socket_path, self._identity)

    def _rest(self, pause_s: float) -> None:
        """Waits until the pause is over, the channel closes, or a caller waits for an answer."""
        poller = select.poll()
        poller.register(self._wake_descriptor, select.POLLIN)
        until_s = monotonic() + pause_s
        while self._ending is None and (left_s := until_s - monotonic()) > 0:
            if poller.poll(left_s * 1000):
                self._clear_wake()
                if self._outbox.has_requests:
                    return

    def _converse(self) -> None:
        """Runs one connection. Returns when the channel closes; raises the reason if it ends otherwise."""
        sock = self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        sock.setblocking(False)
        sock.connect(self._socket_path)  # does not wait for a full backlog: that is an error at once
        self.supervisor_pid = server_identity.check(sock)
        session = self._protocol
        hello = session.hello(
            now_ns=monotonic_ns(),
            can_share_page=self._can_share_page,
            warm_up_steps=self._warm_up_steps,
            stacks=self._stacks,
        )
        self._send(hello)
        poller = select.poll()
        poller.register(self._wake_descriptor, select.POLLIN)
        poller.register(sock, select.POLLIN)
        while self._ending is None:
            if session.is_welcome:
                self._say_what_is_due()
            poller.modify(sock, select.POLLIN | (select.POLLOUT if self._out else 0))
            for descriptor, ready in poller.poll(self._poll_timeout_ms()):
                if descriptor == self._wake_descriptor:
                    self._clear_wake()
                    continue
                if ready & select.POLLOUT:
                    self._flush()
                if ready & ~select.POLLOUT:
                    self._receive()
        if session.is_welcome:
            self._say_goodbye(sock)

    def _say_goodbye(self, sock: socket.socket) -> None:
        """Sends what is waiting, then a goodbye; a full socket has GOODBYE_TIMEOUT_S to take it."""
        poller = select.poll()
        poller.register(sock, select.POLLOUT)
        until_s = monotonic() + GOODBYE_TIMEOUT_S
        self._say_what_is_due()
        while self._out and (left_s := until_s - monotonic()) > 0 and poller.poll(left_s * 1000):
            self._flush()
            self._say_what_is_due()
        if not self._out:
            self._send(self._protocol.goodbye())

    def _poll_timeout_ms(self) -> float | None:
        if self._progress_due_s is None or self._out or not self._progress.has_news:
            return None
        return max(self._progress_due_s - monotonic(), 0) * 1000

    def _say_what_is_due(self) -> None:
        """Sends the notes one by one, each after the socket has taken the previous one."""
        while not self._out and (note := self._outbox.take()) is not None:
            match note:
                case Watch.CHANGED:
                    self._tell_progress()
                case bytes():
                    self._send(note)
                case Limits():
                    self._tell_progress()  # Tighter limits must not meet a silence that is already over.
                    self._send(self._limits_frame(note))
                case (request_id, LeaseQuestion()):
                    self._ask_lease(request_id)
                case (request_id, WorkloadControlRequest() as request):
                    self._send(self._protocol.workload_control(request, request_id))
        if not self._out:
            self._outbox.taken()
            if self._progress_due_s is not None and monotonic() >= self._progress_due_s and self._progress.has_news:
                self._tell_progress()

    def _ask_lease(self, request_id: int) -> None:
        """Asks, if this supervisor knows the question; an older one would take it for a defect."""
        if self._knows_leases:
            self._send(self._protocol.lease_question(request_id))

    def _limits_frame(self, limits: Limits) -> bytes:
        """Returns b"" for limits that fit no frame, since another connection could not carry them either."""
        try:
            return self._protocol.limits_calculated(limits)
        except ValueError as error:
            log.warning("cannot tell the supervisor the calculated limits: %s; shorten the names of sections", error)
            return b""

    def _tell_progress(self) -> None:
        """Sends the stamps in a frame if there is no shared page."""
        if self._progress_due_s is None:
            return
        snapshot = self._progress.rearm()
        self._progress_due_s = monotonic() + self._interval_s()
        self._send(self._protocol.progress(snapshot, now_ns=monotonic_ns()))

    def _interval_s(self) -> float:
        if not self._progress.is_call_watched:
            return self._progress_interval_s
        return min(self._progress_interval_s, self._watch_interval_s)

    def _receive(self) -> None:
        assert self._sock is not None
        try:
            data, descriptors, _, _ = socket.recv_fds(
                self._sock, RECEIVE_BYTES, DESCRIPTORS_MAX, socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return
        self._descriptors += descriptors
        if len(self._descriptors) > DESCRIPTORS_MAX:
            raise _ConnectionEndedError("the supervisor sent more descriptors than there can be pages")
        if not data:
            raise _ConnectionEndedError("the supervisor closed the connection")
        for event in self._protocol.receive(data):
            self._handle(event)

    def _handle(self, event: Event) -> None:
        match event:
            case Welcomed():
                page = self._page(event)
                self._knows_leases = event.answers_lease_questions
                self._close_descriptors()  # First: a process forked from now on must not inherit it.
                if self._welcomed_by != self.supervisor_pid:  # A new supervisor; if it ends soon, the next is near.
                    self._welcomed_by, self._pause_s = self.supervisor_pid, RECONNECT_MIN_S / 2
                self._outbox.start_over()  # Repeats what no supervisor has received.
                if self._owner.welcomed(event, page) and event.page_shared:
                    # The supervisor saw an empty page and would read it again only one limit later.
                    self._send(self._protocol.progress(self._progress.snapshot(), now_ns=monotonic_ns()))
            case Refused(reason, retry):
                if not retry and self._look_again():
                    self._ending = _Ending.REFUSED
                    self._owner.refused(reason)
                raise _ConnectionEndedError(f"the supervisor refused: {reason}")
            case Accepted(request_id):
                self._outbox.answered(request_id)
            case LeaseTold(request_id, left_ns):
                self._outbox.answered(request_id, left_ns)
            case StacksRequested(request_id):
                self._send(self._protocol.stacks_answer(request_id, current_stacks()))
            case _:
                self._owner.heard(event)

    def _page(self, welcome: Welcomed) -> ProgressPage:
        """Returns the shared page, or a private one whose contents are sent in frames."""
        if not welcome.page_shared:
            self._progress_due_s = monotonic()
            page = ProgressPage.private()
            page.words[layout.WORD_LEASE_UNTIL_NS] = _lease_without_page(welcome)
            return page
        try:
            if not self._descriptors:
                raise PageUnusableError("cannot use the page: it did not come with the welcome")
            return ProgressPage.shared(self._descriptors[0])
        except (PageUnusableError, OSError, ValueError) as error:
            # The supervisor relies on the page until a new hello says otherwise.
            self._can_share_page = False
            raise _ConnectionEndedError(str(error)) from error

    def _send(self, frame: bytes) -> None:
        """Sends what the socket takes now. The rest is kept and sent before anything else."""
        if len(self._out) > OUT_BYTES_MAX:
            raise _ConnectionEndedError("the supervisor asks and does not read the answers")
        self._out += frame
        self._flush()

    def _flush(self) -> None:
        assert self._sock is not None
        with contextlib.suppress(BlockingIOError):
            while self._out:
                sent = self._sock.send(self._out, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                del self._out[:sent]

    def _hang_up(self) -> None:
        self._progress.disarm()
        self._progress_due_s = None
        self._out.clear()
        self._close_descriptors()
        self._protocol = ChannelProtocol(self._identity)
        self._outbox.start_over()
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _close_descriptors(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _close_wake_descriptor(self) -> None:
        # Forget it before closing: the number may soon be another file's.
        descriptor, self._wake_descriptor = self._wake_descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _clear_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake_descriptor)


def _lease_without_page(welcome: Welcomed) -> int:
    """Returns what a shared page would say of the lease; LEASE_ENDED makes the rank ask each time."""
    if not welcome.answers_lease_questions:
        return layout.LEASE_UNKNOWN
    return layout.LEASE_UNBOUNDED if welcome.lease_is_unbounded else layout.LEASE_ENDED
