"""What is in place between init_workload_monitoring() and shutdown_workload_monitoring()?

One object owns it all: what this rank has done, the limits in effect, the channel with its thread, the signal for
stacks, the exception hook. Whatever the supervisor does or fails to do, the only effect here is a log line.

A rank has one connection to its supervisor: all clients of a process, such as a framework's callback and the script's
own, share one Monitoring. `acquire()` returns it, the last `release()` ends it. A client that the script drops, as
after a caught exception, is released as if it had been shut down.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, TypeVar

from worker_client import job_nodes, thread_signals
from worker_client.endpoint import Endpoint, NoEndpoint
from worker_client.exception_hook import ExceptionHook
from worker_client.guarded_log import GuardedLog
from worker_client.own_stacks import StacksSignal, claim_signal
from worker_client.progress_page_writer import ProgressPage
from worker_client.rank_progress import Progress
from worker_client.timeouts import MonitoringConfig, Timeouts
from worker_client.workload_control import WorkloadControlRequest

if TYPE_CHECKING:
    from worker_client.call_protocol import CallEvent
    from worker_client.channel import Channel
    from worker_client.channel_protocol import Welcomed

_Client = TypeVar("_Client")

WELCOME_WAIT_S = 2.0  # the longest that the start of monitoring delays training

log = GuardedLog("holdfast")


class CallListener(Protocol):
    """How a wrapped call receives messages. Called on the channel's thread, `connected` on others too."""

    def find(self, known: Endpoint) -> Endpoint | None:
        """Finds a supervisor: see ChannelOwner.find."""
        ...

    def connected(self, page: ProgressPage) -> None:
        """Notes a new connection; nothing sent on an earlier one is known there."""
        ...

    def disconnected(self) -> None: ...

    def refused(self, reason: str) -> None:
        """Notes that no further connection comes."""
        ...

    def heard(self, event: CallEvent) -> None: ...


class Monitoring:
    """The monitoring of one rank, under one supervisor or none. A ChannelOwner's methods run on the channel thread."""

    def __init__(self, *, rank: int, local_rank: int, timeouts: Timeouts, warm_up_steps: int | None = None) -> None:
        self.progress = Progress(wake=self._wake)
        self.config = MonitoringConfig()
        self.rank = rank
        self._local_rank = local_rank
        self._timeouts = timeouts
        self._warm_up_steps = warm_up_steps
        self._lock = threading.RLock()  # guards config and timeouts
        self._answered = threading.Event()
        self._has_warned = False
        self._channel: Channel | None = None
        self._stacks: StacksSignal | None = None
        self._hook: ExceptionHook | None = None
        self._calls: CallListener | None = None
        self._last_calls: CallListener | None = None  # finds the supervisor, also after its call
        self._page: ProgressPage | None = None  # the connection's, while there is one

    @property
    def timeouts(self) -> Timeouts:
        return self._timeouts

    @property
    def has_supervisor(self) -> bool:
        """Whether this process has a supervisor, connected or not."""
        return self._channel is not None

    @property
    def may_hear(self) -> bool:
        """Whether a supervisor can send anything, now or later."""
        return self._channel is not None and not self._channel.has_given_up

    @property
    def supervisor_pid(self) -> int:
        """Returns the supervisor's pid; 0 if it is not known."""
        return self._channel.supervisor_pid if self._channel is not None else 0

    # --- called by the script's threads ---

    def connect(self, endpoint: Endpoint | NoEndpoint) -> None:
        """Calls `start` unless another client has found a supervisor."""
        with _lock:
            if not self.has_supervisor:
                self.start(endpoint)

    def start(self, endpoint: Endpoint | NoEndpoint) -> None:
        """Connects in the background; waits for the first answer, at most WELCOME_WAIT_S. Never raises."""
        if isinstance(endpoint, NoEndpoint):
            self._warn(f"this rank is not monitored: {endpoint.reason}")
            return
        try:
            from worker_client.channel import Channel
            from worker_client.channel_protocol import Identity
        except Exception as error:  # noqa: BLE001 a protobuf that does not load must not end the training
            self._warn(f"this rank is not monitored: cannot load protobuf: {error}")
            return
        self._answered.clear()
        self._stacks = claim_signal()
        try:
            self._channel = Channel(
                endpoint.socket_path,
                Identity(endpoint.job_id, endpoint.cycle, self.rank, self._local_rank, endpoint.token),
                self.progress,
                self,
                warm_up_steps=self._warm_up_steps,
                stacks=(self._stacks.signal, self._stacks.descriptor) if self._stacks else (0, 0),
                can_share_page=endpoint.can_share_page,
            )
            self._channel.start()
        except (OSError, RuntimeError) as error:  # out of descriptors or threads
            self._warn(f"this rank is not monitored: {error}")
            self._close()
            return
        self._answered.wait(WELCOME_WAIT_S)

    def join(self, timeouts: Timeouts, warm_up_steps: int | None) -> None:
        """Adds another client, whose settings can only extend the current ones."""
        if warm_up_steps is not None and warm_up_steps != self._warm_up_steps:
            log.warning(
                "rank %d: num_warmup_iters=%d comes too late: another client has started the monitoring of this rank",
                self.rank, warm_up_steps,
            )  # fmt: skip
        if timeouts.were_calculated:
            self.hold(timeouts)

    def hold(self, timeouts: Timeouts) -> None:
        """Applies these timeouts from now on to what is configured, and tells the supervisor as soon as possible."""
        with self._lock:
            settled = timeouts.over(self.config.limits) if self.progress.sections.is_settled else timeouts
            self._timeouts = settled.not_below(self.config.learned_limit_floor_s)
            self._tell()

    def request_control(self, request: WorkloadControlRequest, *, timeout_s: float) -> bool:
        """Blocks until the supervisor has accepted, at most `timeout_s`; returns whether it has."""
        return self._channel is not None and self._channel.request_control(request, timeout_s=timeout_s)

    def ask_lease(self, *, timeout_s: float) -> int | None:
        """Requests the lease: see Channel.ask_lease."""
        return self._channel.ask_lease(timeout_s=timeout_s) if self._channel is not None else None

    def listen(self, calls: CallListener | None) -> None:
        """Passes messages about wrapped calls to `calls` from now on."""
        with self._lock:
            self._calls = calls
            self._last_calls = calls or self._last_calls
            if calls is not None and self._page is not None:
                calls.connected(self._page)

    def say(self, frame: bytes) -> None:
        """Sends a frame of a wrapped call, if there is a connection. Never blocks."""
        if self._channel is not None:
            self._channel.say(frame)

    def wait_sent(self, timeout_s: float) -> bool:
        """Blocks until all messages have been sent, at most `timeout_s`; returns whether they have."""
        return self._channel is not None and self._channel.wait_sent(timeout_s)

    def watch_changed(self, soft_timeout_s: float) -> None:
        """Notes that the page's words on a wrapped call have changed."""
        if self._channel is not None:
            self._channel.watch_changed(soft_timeout_s)

    def release(self) -> None:
        """Ends one `acquire()`. The last one ends the channel, and blocks for its short goodbye, 1 s at most."""
        global _shared, _holders
        with _lock:
            if _shared is self:
                _holders -= 1
                if _holders:
                    return
                _shared = None
            self._close()

    def _close(self) -> None:
        """Ends the channel and restores the signal and the hook."""
        channel, self._channel = self._channel, None
        if channel is not None:
            with contextlib.suppress(RuntimeError):  # its thread was never started
                channel.close()
        self.progress.leave()
        self._calls = self._page = None
        self._give_back()

    def detach(self) -> None:
        """Detaches a forked child, so that nothing here acts for the parent."""
        channel, self._channel = self._channel, None
        self._lock = threading.RLock()
        self._calls = self._page = None
        self.progress.detach()
        if channel is not None:
            channel.abandon()
        self._give_back()

    def _give_back(self) -> None:
        stacks, self._stacks = self._stacks, None
        if stacks is not None:
            stacks.remove()
        hook, self._hook = self._hook, None
        if hook is not None:
            hook.remove()

    # --- called by the channel's thread ---

    def find(self, known: Endpoint) -> Endpoint | None:
        calls = self._last_calls
        return calls.find(known) if calls is not None else known

    def welcomed(self, welcome: Welcomed, page: ProgressPage) -> bool:
        """Returns whether a silence that began under an earlier connection continues."""
        by_name = dict(welcome.limits.sections)
        sections = tuple((name, by_name.get(name)) for name in welcome.sections)
        with self._lock:
            self.config = MonitoringConfig(
                limits=replace(welcome.limits, sections=sections),
                warm_up_steps=welcome.warm_up_steps,
                safety_factor=welcome.safety_factor,
                learned_limit_floor_s=welcome.learned_limit_floor_s,
                install_exception_hook=welcome.install_exception_hook,
            )
            self._timeouts = self._timeouts.over(self.config.limits).not_below(welcome.learned_limit_floor_s)
            goes_on = self.progress.adopt(page, welcome.sections)
            self._page = page
            if self._calls is not None:
                self._calls.connected(page)
            self._tell()
        if welcome.install_exception_hook and self._hook is None:
            self._hook = ExceptionHook()
        if self._has_warned:
            log.info("rank %d: the supervisor answers, monitoring starts again", self.rank)
        self._answered.set()
        return goes_on

    def unreachable(self, reason: str) -> None:
        self._disconnected()
        self._warn(f"the supervisor cannot be reached: {reason}; training goes on, trying again in the background")
        self._answered.set()

    def refused(self, reason: str) -> None:
        self._has_warned = False
        self._warn(f"the supervisor does not monitor this rank: {reason}")
        self._disconnected()
        if (calls := self._calls) is not None:
            calls.refused(reason)
        self._answered.set()

    def heard(self, event: CallEvent) -> None:
        if (calls := self._calls) is not None:
            calls.heard(event)

    def _disconnected(self) -> None:
        self.progress.lose()
        with self._lock:
            self._page = None
            if self._calls is not None:
                self._calls.disconnected()

    def _tell(self) -> None:
        channel = self._channel
        if channel is None:
            return
        limits = self._timeouts.limits()
        channel.expect_limits(limits)
        if self.progress.sections.is_settled and limits != self.config.limits:
            channel.tell_limits(limits)

    def _wake(self) -> None:
        channel = self._channel
        if channel is not None:
            channel.wake()

    def _warn(self, message: str) -> None:
        """Warns once; later messages are logged at a lower level."""
        log.log(logging.DEBUG if self._has_warned else logging.WARNING, "rank %d: %s", self.rank, message)
        self._has_warned = True


# --- one for all ---------------------------------------------------------------------------------------------------

_shared: Monitoring | None = None
_holders = 0
# Clients that have not been released yet, by their sections' owner.
_dropped: deque[tuple[Monitoring, object]] = deque()
_lock = threading.RLock()  # guards all three; re-entrant for a signal handler in the middle of a call


def acquire(
    endpoint: Endpoint | NoEndpoint | None,
    *,
    rank: int,
    local_rank: int,
    timeouts: Timeouts | None = None,
    warm_up_steps: int | None = None,
    begin: bool = True,
) -> Monitoring:
    """Returns this process's monitoring, creating it if needed. Each caller owes one `release()`. Never raises.

    Blocks until the supervisor has answered, WELCOME_WAIT_S at most. If monitoring already runs, `warm_up_steps` comes
    too late, and calculated `timeouts` apply from now on; if it has found no supervisor, it tries `endpoint`. The first
    caller with `begin` starts the clocks of heartbeats and sections. `endpoint` None: the caller calls `connect` later.
    """
    global _shared, _holders
    with _lock:
        monitoring = _shared
        if monitoring is None:
            given = timeouts or Timeouts()
            monitoring = Monitoring(rank=rank, local_rank=local_rank, timeouts=given, warm_up_steps=warm_up_steps)
            _shared, _holders = monitoring, 0
        else:
            monitoring.join(timeouts or Timeouts(), warm_up_steps)
        _holders += 1
        _release_dropped()
        if begin:
            monitoring.progress.begin()
        if endpoint is not None:
            monitoring.connect(endpoint)
        return monitoring


def release_when_dropped(client: _Client, monitoring: Monitoring, owner: object) -> weakref.finalize[..., _Client]:
    """Releases the monitoring once nothing refers to the client any more, and closes the sections that `owner` has."""
    finalizer = weakref.finalize(client, _note_dropped, monitoring, owner)
    finalizer.atexit = False  # the end of the process ends the monitoring, too
    return finalizer


def _note_dropped(monitoring: Monitoring, owner: object) -> None:
    """Runs at any moment on any thread, perhaps under one of our locks: so another thread does the work."""
    if monitoring is not _shared:
        return  # a forked child's
    _dropped.append((monitoring, owner))
    with contextlib.suppress(RuntimeError):  # without a thread, the next client does it
        threading.Thread(target=_release_in_thread, name="holdfast-dropped", daemon=True).start()


def _release_in_thread() -> None:
    thread_signals.leave_to_the_script()
    _release_dropped()


def _release_dropped() -> None:
    with _lock:
        while _dropped:
            monitoring, owner = _dropped.popleft()
            monitoring.progress.sections.drop(owner)
            monitoring.release()


def current() -> Monitoring | None:
    """Returns the monitoring of this process, whichever client created it; None if there is none."""
    monitoring = _shared
    return monitoring if monitoring is not None and monitoring.has_supervisor else None


def rank_variable() -> str | None:
    """Returns RANK. A rank that the Wrapper keeps in reserve has none, so there it is that of its monitoring."""
    text, monitoring = os.environ.get("RANK"), _shared
    if text != job_nodes.NO_RANK:
        return text
    return None if monitoring is None else str(monitoring.rank)


def _detach_shared() -> None:
    global _shared, _lock
    _lock = threading.RLock()  # the old lock's owner may be a thread that exists only in the parent
    monitoring, _shared = _shared, None
    _dropped.clear()
    if monitoring is not None:
        monitoring.detach()


os.register_at_fork(after_in_child=_detach_shared)
