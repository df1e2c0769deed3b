"""What does one process of the log server do from start to end, and what do signals do to it?

It ends once its supervisor has finished with it, or has died, and all data is passed on or written; or after a bounded
time. If another supervisor will restart it, it ends at once: that loses nothing.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine

import anyio
import msgspec
from anyio import to_thread

from supervisor.core.log_funnel.log_relay import PIECE_BYTES
from supervisor.edges.peers.transport.cluster_link import PeerAddress
from supervisor.edges.peers.transport.cluster_tls import Tls
from supervisor.ports.timed_waits import pause
from supervisor.programs.log_service import log_process_listener
from supervisor.programs.log_service.log_forwarding import LogForwarder
from supervisor.programs.log_service.log_receiving import LogReceiver
from supervisor.programs.log_service.log_tier_listener import TierListener
from supervisor.programs.log_service.log_tier_settings import LEAF, ROOT, Next, Settings, address_of
from supervisor.programs.log_service.replies_to_senders import Callers
from supervisor.programs.log_service.root_files import RootFiles

LEAF_BYTES_MAX = 64 * 1024 * 1024
ROOT_BYTES_MAX = 64 * 1024 * 1024
SENDER_BYTES_MAX = 8 * 1024 * 1024
SENDER_PIECES_MAX = SENDER_BYTES_MAX // PIECE_BYTES
LINE_BYTES_MAX = 64 * 1024
AWAY = "away"  # the next tier can't be reached: the supervisor sends its current address
WARNING = "warning: "  # a sentence for the user follows
UNREACHED_TOLD_S = 10.0

_log = logging.getLogger("holdfast.logs")


class _Requests:
    """The requests of the supervisor on stdin."""

    def __init__(self, settings: Settings, move: Callable[[PeerAddress], None]) -> None:
        self._settings = settings
        self._move = move
        self.ending = anyio.Event()
        self.at_once = False
        self.follows = False  # see settings.Next

    async def read(self) -> None:
        decode = msgspec.json.Decoder(Next).decode
        fd, rest = sys.stdin.fileno(), b""
        os.set_blocking(fd, False)
        while True:
            await anyio.wait_readable(fd)
            if not (data := os.read(fd, LINE_BYTES_MAX)):
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                request = decode(line)
                if request.finish:
                    self.ending.set()
                elif request.follows:
                    self.follows = True
                elif request.address:
                    self._move(address_of(request.address))
        self.at_once = self._settings.ends_with_supervisor and not self.ending.is_set()
        self.ending.set()


def ignore_signals() -> None:
    """Ignores Ctrl-C, SIGHUP and SIGTERM: they are meant for the job, and its supervisor ends this process."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


async def run(settings: Settings) -> bool:
    """Runs until the end; returns whether all data was passed on or written. Raises HoldfastError."""
    tls = await to_thread.run_sync(settings.tls)
    if settings.tier == ROOT:
        return await _run_root(settings, tls)
    if settings.tier == LEAF:
        return await _run_leaf(settings, tls)
    return await _run_sender(settings, tls)


async def _run_root(settings: Settings, tls: Tls | None) -> bool:
    callers = Callers(bytes_max=ROOT_BYTES_MAX)
    files = RootFiles(
        settings.job_id,
        settings.cycle_prefix,
        settings.supervisor_log,
        on_receipt=callers.send,
        on_trouble=callers.tell_trouble,
        run_began_ms=settings.run_began_ms,
    )
    receiver = LogReceiver(files, callers)
    return await _serve(settings, tls, callers, receiver, _nowhere, files.run, lambda: files.is_idle, files.aclose)


async def _run_leaf(settings: Settings, tls: Tls | None) -> bool:
    callers = Callers(bytes_max=LEAF_BYTES_MAX)
    forwarder = LogForwarder(
        settings,
        tls,
        bytes_max=2 * LEAF_BYTES_MAX,
        pieces_max=settings.queue_chunks,
        callers=callers,
        on_trouble=callers.tell_trouble,
        on_away=_stay,
    )
    upstream, receiver = forwarder.upstream, LogReceiver(forwarder, callers)
    return await _serve(
        settings, tls, callers, receiver, upstream.move, upstream.run, lambda: forwarder.relay.is_empty, upstream.part
    )


async def _serve(
    settings: Settings,
    tls: Tls | None,
    callers: Callers,
    receiver: LogReceiver,
    move: Callable[[PeerAddress], None],
    work: Callable[[], Coroutine[None, None, None]],
    is_idle: Callable[[], bool],
    part: Callable[[], Coroutine[None, None, None]],
) -> bool:
    """Runs a leaf or the root."""
    requests = _Requests(settings, move)
    server = TierListener(settings.job_id, tls, receiver)
    # Outside of the task group, so that an address that can't be had is told as it is.
    async with server.serving(PeerAddress(settings.host, settings.port)), anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        _log.info("%s listens at port %d", settings.name, settings.port)
        _say("ready")
        tasks.start_soon(requests.read)
        await requests.ending.wait()
        is_complete = False
        if not requests.at_once:
            with anyio.move_on_after(settings.graceful_s):
                await _until_quiet(callers, receiver, is_idle, settings)
                await part()
                is_complete = True
        tasks.cancel_scope.cancel()
        return is_complete
    raise AssertionError


async def _until_quiet(
    callers: Callers, receiver: LogReceiver, is_idle: Callable[[], bool], settings: Settings
) -> None:
    """Waits until all callers have nothing more to send, or nobody was there for a while and nothing waits.

    A process that replaced another does not know its callers: they may still be coming.
    """
    while True:
        while callers.count or not is_idle():
            await callers.changed.wait_for_s(settings.quiet_s)
        if not receiver.unparted and len(receiver.parted) >= settings.callers:
            return
        with anyio.move_on_after(settings.quiet_s) as quiet:
            while not callers.count:
                await callers.changed.wait()
        if quiet.cancelled_caught and is_idle():
            return


async def _run_sender(settings: Settings, tls: Tls | None) -> bool:
    callers, unreached = Callers(), Unreached()

    def tell_trouble(trouble: str) -> None:
        unreached.note(trouble)
        callers.tell_trouble(trouble)

    def tell_away() -> None:
        _say(AWAY)
        if warning := unreached.warning(anyio.current_time()):
            _say(f"{WARNING}{warning}")

    forwarder = LogForwarder(
        settings,
        tls,
        bytes_max=SENDER_BYTES_MAX,
        pieces_max=SENDER_PIECES_MAX,
        callers=callers,
        on_trouble=tell_trouble,
        on_away=tell_away,
    )
    receiver = LogReceiver(forwarder, callers)
    requests = _Requests(settings, forwarder.upstream.move)
    is_complete = False
    all_are_back_at_s = anyio.current_time() + settings.quiet_s
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(forwarder.upstream.run)
        tasks.start_soon(receiver.run)
        tasks.start_soon(log_process_listener.take_connections, settings.door_fd, receiver)
        tasks.start_soon(requests.read)
        _say("ready")
        await requests.ending.wait()
        if not requests.at_once:
            with anyio.move_on_after(settings.graceful_s):
                if requests.follows and (rest_s := all_are_back_at_s - anyio.current_time()) > 0:
                    await pause(rest_s, why="nobody knows how many had sent to the one that has died")
                while callers.count or not forwarder.relay.is_empty:
                    await callers.changed.wait()
                await forwarder.upstream.part()
                is_complete = True
        tasks.cancel_scope.cancel()
    return is_complete


class Unreached:
    """Decides when the user is told that the log server is not there: once, if it lasts."""

    def __init__(self) -> None:
        self._trouble = ""
        self._since_s: float | None = None
        self._is_told = False

    def note(self, trouble: str) -> None:
        """Notes why the other side was not reached; "": it was."""
        self._trouble = trouble
        if not trouble:
            self._since_s, self._is_told = None, False

    def warning(self, now_s: float) -> str:
        """Returns what to say while it is not reached; "": nothing yet, or it was said."""
        if self._since_s is None:
            self._since_s = now_s
        if self._is_told or not self._trouble or now_s - self._since_s < UNREACHED_TOLD_S:
            return ""
        self._is_told = True
        return f"{self._trouble}; up to 64 MiB of this node's output wait, further lines will be lost and counted"


def _say(word: str) -> None:
    """Writes to the supervisor, which may be gone."""
    try:
        sys.stdout.write(f"{word}\n")
        sys.stdout.flush()
    except OSError:
        return


def _nowhere(address: PeerAddress) -> None:
    del address  # the root is the last tier


def _stay() -> None:
    """Does nothing: a leaf's supervisor is where the root is, and moves both."""
