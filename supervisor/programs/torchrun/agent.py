"""How does torchrun's single thread take part in a rendezvous that never pauses?

A separate thread keeps in touch with the leader, or leads. torchrun's thread asks it for the latest state, which costs
nothing, or blocks until there is an order.
"""

from __future__ import annotations

import asyncio
import atexit
import queue
import socket
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import TimeoutError as LateError
from contextlib import suppress
from typing import Any

import anyio

from supervisor.core.elastic.elastic_messages import AgentClosed, RoundStoreServed, TellClosed
from supervisor.edges.peers.transport.own_address import own_address
from supervisor.errors import ConfigurationError
from supervisor.programs.torchrun import node_daemon
from supervisor.programs.torchrun.leader_connection import ForAgent, LeaderConnection, Unreachable
from supervisor.programs.torchrun.options import AgentOptions

EXIT_S = 2.0  # for the last message of a process that ends without one


class Agent:
    """One torchrun's part in the rendezvous. Use it only from torchrun's thread."""

    def __init__(self, options: AgentOptions) -> None:
        self._options = options
        self._orders = queue.SimpleQueue[tuple[int, int, ForAgent]]()  # number of the request, and of the meeting
        self._requests = 0
        self._meeting = 0  # where the last order came from
        self._host = ""  # looked up once: later there may be no name service
        self._thread: threading.Thread | None = None
        self._is_ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        self._touch: LeaderConnection | None = None
        self._stop: Callable[[], None]

    @property
    def waiting(self) -> int:
        """Returns how many agents wait to join the next round."""
        return self._touch.waiting if self._touch is not None else 0

    @property
    def closed(self) -> TellClosed | None:
        return self._touch.closed if self._touch is not None else None

    def join(self) -> None:
        """Requests a part in the next round: from now on `next_order` has orders."""
        self._requests += 1
        touch = self._start()
        self._loop.call_soon_threadsafe(touch.want, self._requests, self._options.order)

    def next_order(self) -> ForAgent:
        """Returns the next order. Blocks. A signal handler may end that with an exception."""
        while True:
            request, meeting, order = self._orders.get()
            if request == self._requests:  # else it is meant for an earlier wait
                self._meeting = meeting
                return order

    def own_host(self) -> str:
        """Returns the address at which the others reach this node. Raises OSError."""
        if not self._host:
            self._host = self._run(_ip_of(self._options), None)
        return self._host

    def answer(self, number: int, host: str, port: int) -> None:
        """Tells the leader that last requested it where this round's store is."""
        touch, meeting = self._start(), self._meeting
        report = RoundStoreServed(self._options.meeting.node, number, host, port)
        self._loop.call_soon_threadsafe(lambda: touch.say(report, meeting=meeting))

    def close(self, reason: str, *, failed: bool) -> None:
        """Closes the rendezvous to further rounds. Does not wait for the others; without a `join` nobody is told."""
        touch = self._touch
        if self._thread is None or touch is None:
            return
        report = AgentClosed(self._options.meeting.node, reason, failed)
        self._loop.call_soon_threadsafe(touch.say, report)

    def leave(self, reason: str, timeout_s: float) -> bool:
        """Ends the thread; returns True if the others know by then. A second call does nothing."""
        thread, self._thread = self._thread, None
        if thread is None or self._touch is None:
            return True
        atexit.unregister(self.leave)
        is_heard = True
        try:
            self._run(self._touch.part(reason), timeout_s)
        except LateError:
            is_heard = False
        self._loop.call_soon_threadsafe(self._stop)
        thread.join(timeout_s)
        return is_heard

    def _start(self) -> LeaderConnection:
        if self._thread is None:
            self._is_ready.clear()
            self._thread = threading.Thread(target=self._in_thread, name="holdfast rendezvous", daemon=True)
            self._thread.start()
            self._is_ready.wait()
            atexit.register(self.leave, "its process has ended", EXIT_S)
        assert self._touch is not None, "the thread is ready"
        return self._touch

    def _run(self, what: Coroutine[Any, Any, Any], timeout_s: float | None) -> Any:  # noqa: ANN401 (what it returns)
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(timeout_s)

    # --- the other thread ------------------------------------------------------------------------------------------

    def _in_thread(self) -> None:
        """Runs the thread. However it ends, nobody waits for its orders in vain."""
        try:
            anyio.run(self._main)
        finally:
            self._orders.put((self._requests, 0, Unreachable("the thread of the rendezvous has ended")))
            self._is_ready.set()

    async def _main(self) -> None:
        options = self._options
        self._loop = asyncio.get_running_loop()
        request = options.request
        is_led_here = None if request is None else lambda: node_daemon.leads(request)
        self._touch = LeaderConnection(options.meeting, options.rules, self._take, is_led_here)
        async with anyio.create_task_group() as tasks:
            self._stop = tasks.cancel_scope.cancel
            tasks.start_soon(self._find_host)
            tasks.start_soon(self._touch.run)
            self._is_ready.set()
            await anyio.Event().wait()

    def _take(self, request: int, meeting: int, order: ForAgent) -> None:
        self._orders.put((request, meeting, order))

    async def _find_host(self) -> None:
        if not self._host:
            with suppress(OSError, ConfigurationError):  # it is looked up again, and then this is an error
                self._host = await _ip_of(self._options)


async def _ip_of(options: AgentOptions) -> str:
    """Returns an address: a name may mean something else, or nothing, on another node."""
    if not options.local_address:
        return await own_address(options.meeting.endpoint)
    found = await anyio.getaddrinfo(options.local_address, 0, type=socket.SOCK_STREAM)
    return str(found[0][4][0])
