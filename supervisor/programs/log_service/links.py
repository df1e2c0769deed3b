"""Which processes are connected to this one, what do they get back, and when do they have to wait?

The same for the log processes of a node at its sender, for senders at a leaf, and for leaves at the root. A connection
needs no task: the line calls when pieces have come.
"""

from __future__ import annotations

import asyncio  # anyio has no callbacks
import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

import anyio
from holdfast_wire import log_frames
from holdfast_wire.log_frames import Alive, LogFrameError, Message, Parting, Terms, Trouble
from holdfast_wire.log_pieces import Piece, Receipt

from supervisor.core.log_funnel.relay import pause_s, window_bytes
from supervisor.edges.peers.transport.cluster_line import Line
from supervisor.edges.peers.transport.cluster_session import SessionError
from supervisor.ports.pauses import pause
from supervisor.programs.log_service.bells import Bell

ALIVE_S = 5.0

_log = logging.getLogger("holdfast.logs")


class Taker(Protocol):
    """Handles the pieces."""

    @property
    def is_full(self) -> bool: ...

    def take(self, link: int, piece: Piece) -> None: ...

    def lose(self, link: int) -> None:
        """Forgets a link that has ended; its caller may come back on another one."""
        ...

    async def until_room(self) -> None: ...


class _Link:
    def __init__(self, line: Line, caller: str) -> None:
        self.line = line
        self.caller = caller
        self.receipts: dict[int, Receipt] = {}  # to be sent, by their streams
        self.other: dict[type[Message], Message] = {}  # to be sent; a later one replaces an earlier one of its kind
        self.is_flush_due = False


class Links:
    """Serves the links; `run` does so until cancelled. `bytes_max`: that all callers together may send ahead of
    receipts; 0: these callers know no such terms, nor whether this process lives."""

    def __init__(self, taker: Taker, *, bytes_max: int = 0) -> None:
        self._taker = taker
        self._bytes_max = bytes_max
        self._links: dict[int, _Link] = {}
        self._last = 0
        self._told_for = 0  # number of links when terms were last sent
        self._trouble = ""
        self._held_back: set[int] = set()  # links from which nothing is read until there is room
        self._is_full = Bell()
        self._loop = asyncio.get_running_loop()
        self.on_change: Callable[[], None] = _nothing
        self.parted: set[str] = set()  # callers that have nothing more to send
        self.unparted = 0  # connections that ended without saying so

    @property
    def count(self) -> int:
        return len(self._links)

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._read_on_with_room)
            if self._bytes_max:
                tasks.start_soon(self._tell_alive)

    def hold(self, line: Line, caller: str = "") -> None:
        """Serves a line until it ends. `caller` "": a process of this node, whose connections come and go."""
        self._last += 1
        number = self._last
        link = self._links[number] = _Link(line, caller)
        if caller:
            _log.info("%s is connected", caller)
        self._on_count()
        if self._trouble:
            self._say(link, Trouble(self._trouble))
        line.listen(partial(self._hear, number, link), partial(self._lose, number, link), partial(self._flush, link))

    def send(self, number: int, receipt: Receipt) -> None:
        """Sends a receipt. A later receipt of a stream replaces an earlier one."""
        if (link := self._links.get(number)) is not None:
            link.receipts[receipt.stream] = receipt
            self._flush_soon(link)

    def tell_trouble(self, trouble: str) -> None:
        """Reports why receipts are late; "": they are not."""
        if trouble != self._trouble:
            self._trouble = trouble
            for link in self._links.values():
                self._say(link, Trouble(trouble))

    # --- messages sent -----------------------------------------------------------------------------------------------

    def _say(self, link: _Link, message: Message) -> None:
        link.other[type(message)] = message
        self._flush_soon(link)

    def _flush_soon(self, link: _Link) -> None:
        if not link.is_flush_due:
            link.is_flush_due = True
            self._loop.call_soon(self._flush, link)

    def _flush(self, link: _Link) -> None:
        """Sends what waits, if the caller reads; else the line calls again."""
        link.is_flush_due = False
        if (link.receipts or link.other) and link.line.is_writable:
            said: list[Message] = [*link.receipts.values(), *link.other.values()]
            link.receipts, link.other = {}, {}
            link.line.send(*map(log_frames.encode, said))

    def _on_count(self) -> None:
        """Sends terms when the number of links doubles or halves, so that a storm of joins costs each link little."""
        count = len(self._links)
        if not self._bytes_max:
            pass
        elif not self._told_for <= count <= 2 * self._told_for:
            self._told_for = 1 << max(0, count.bit_length() - 1)
            for link in self._links.values():
                self._say(link, self._terms())
        elif self._last in self._links:
            self._say(self._links[self._last], self._terms())
        self.on_change()

    def _terms(self) -> Terms:
        for_links = 2 * self._told_for
        return Terms(window_bytes(self._bytes_max, for_links), round(pause_s(for_links) * 1000))

    async def _tell_alive(self) -> None:
        while True:
            await pause(ALIVE_S, why="a process that stands still says nothing, and its callers notice that")
            for link in self._links.values():
                self._say(link, Alive())

    # --- what is heard -----------------------------------------------------------------------------------------------

    def _hear(self, number: int, link: _Link, payload: bytes) -> None:
        try:
            message = log_frames.decode(payload)
        except LogFrameError as error:
            _log.warning("%s is cut off: %s", link.caller or "a log process", error)
            raise SessionError(str(error)) from error
        match message:
            case Piece() as piece:
                self._taker.take(number, piece)
                if self._taker.is_full and number not in self._held_back:
                    self._held_back.add(number)
                    link.line.hold_back()
                    self._is_full.ring()
            case Parting():
                self.parted.add(link.caller)
                link.line.end("it has nothing more to send", says_all=True)
            case _:
                pass

    async def _read_on_with_room(self) -> None:
        while True:
            await self._is_full.wait()
            await self._taker.until_room()
            held_back, self._held_back = self._held_back, set()
            for number in held_back:
                if (link := self._links.get(number)) is not None:
                    link.line.read_on()

    def _lose(self, number: int, link: _Link, why: str) -> None:
        del self._links[number]
        self.unparted += link.caller not in self.parted
        if link.caller:
            _log.info("the connection of %s has ended: %s", link.caller, why)
        self._taker.lose(number)
        self._on_count()


def _nothing() -> None:
    """Does nothing."""
