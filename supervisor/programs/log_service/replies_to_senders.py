"""Which processes are connected to this one, and what do they get back?

A link needs no task: what it gets waits until the caller reads, and a later message of a kind replaces an earlier one.
"""

from __future__ import annotations

import asyncio  # anyio has no callbacks
import logging

from holdfast_wire import log_frames
from holdfast_wire.log_frames import Alive, Message, Terms, Trouble
from holdfast_wire.log_pieces import Receipt

from supervisor.core.log_funnel.log_relay import pause_s, window_bytes
from supervisor.edges.peers.transport.cluster_line import Line
from supervisor.ports.timed_waits import pause
from supervisor.programs.log_service.wakeup import Wakeup

ALIVE_S = 5.0

_log = logging.getLogger("holdfast.logs")


class CallerConnection:
    """One caller and what it gets next."""

    def __init__(self, line: Line, caller: str) -> None:
        self.line = line
        self.caller = caller
        self.receipts: dict[int, Receipt] = {}  # to be sent, by their streams
        self.other: dict[type[Message], Message] = {}  # to be sent; a later one replaces an earlier one of its kind
        self.is_flush_due = False


class Callers:
    """All callers. `bytes_max`: that they may send together ahead of receipts; 0: these callers know no such terms, nor
    whether this process lives."""

    def __init__(self, *, bytes_max: int = 0) -> None:
        self._bytes_max = bytes_max
        self._links: dict[int, CallerConnection] = {}
        self._last = 0
        self._told_for = 0  # number of links when terms were last sent
        self._trouble = ""
        self._loop = asyncio.get_running_loop()
        self.changed = Wakeup()  # wakes when a caller comes or goes, and when nothing is left to pass on

    @property
    def count(self) -> int:
        return len(self._links)

    def get(self, number: int) -> CallerConnection | None:
        return self._links.get(number)

    def add(self, line: Line, caller: str) -> tuple[int, CallerConnection]:
        """Adds a caller; returns the number and the link. `caller` "": a process of this node."""
        self._last += 1
        link = self._links[self._last] = CallerConnection(line, caller)
        if caller:
            _log.info("%s is connected", caller)
        self._on_count()
        if self._trouble:
            self._say(link, Trouble(self._trouble))
        return self._last, link

    def remove(self, number: int, why: str) -> None:
        link = self._links.pop(number)
        if link.caller:
            _log.info("the connection of %s has ended: %s", link.caller, why)
        self._on_count()

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

    async def tell_alive(self) -> None:
        """Shows that this process lives, until cancelled."""
        while self._bytes_max:
            await pause(ALIVE_S, why="a stalled process says nothing, and its callers notice that")
            for link in self._links.values():
                self._say(link, Alive())

    def flush(self, link: CallerConnection) -> None:
        """Sends what waits, if the caller reads; else the line calls again."""
        link.is_flush_due = False
        if (link.receipts or link.other) and link.line.is_writable:
            said: list[Message] = [*link.receipts.values(), *link.other.values()]
            link.receipts, link.other = {}, {}
            link.line.send(*map(log_frames.encode, said))

    def _say(self, link: CallerConnection, message: Message) -> None:
        link.other[type(message)] = message
        self._flush_soon(link)

    def _flush_soon(self, link: CallerConnection) -> None:
        if not link.is_flush_due:
            link.is_flush_due = True
            self._loop.call_soon(self.flush, link)

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
        self.changed.wake()

    def _terms(self) -> Terms:
        for_links = 2 * self._told_for
        return Terms(window_bytes(self._bytes_max, for_links), round(pause_s(for_links) * 1000))
