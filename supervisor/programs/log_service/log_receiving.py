"""What do the processes that are connected to this one send, and when do they have to wait?

The same for the log processes of a node at its sender, for senders at a leaf, and for leaves at the root. A connection
needs no task: the line calls when pieces have come.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Protocol

import anyio
from holdfast_wire import log_frames
from holdfast_wire.log_frames import LogFrameError, Parting
from holdfast_wire.log_pieces import Piece

from supervisor.edges.peers.transport.cluster_line import Line
from supervisor.edges.peers.transport.cluster_session import SessionError
from supervisor.programs.log_service.replies_to_senders import CallerConnection, Callers
from supervisor.programs.log_service.wakeup import Wakeup

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


class LogReceiver:
    """Serves the callers' links; `run` does so until cancelled."""

    def __init__(self, taker: Taker, callers: Callers) -> None:
        self._taker = taker
        self._callers = callers
        self._held_back: set[int] = set()  # links from which nothing is read until there is room
        self._is_full = Wakeup()
        self.parted: set[str] = set()  # callers that have nothing more to send
        self.unparted = 0  # connections that ended without saying so

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._read_on_with_room)
            tasks.start_soon(self._callers.tell_alive)

    def hold(self, line: Line, caller: str = "") -> None:
        """Serves a line until it ends. `caller` "": a process of this node, whose connections come and go."""
        number, link = self._callers.add(line, caller)
        line.listen(
            partial(self._hear, number, link), partial(self._lose, number, link), partial(self._callers.flush, link)
        )

    def _hear(self, number: int, link: CallerConnection, payload: bytes) -> None:
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
                    self._is_full.wake()
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
                if (link := self._callers.get(number)) is not None:
                    link.line.read_on()

    def _lose(self, number: int, link: CallerConnection, why: str) -> None:
        self.unparted += link.caller not in self.parted
        self._taker.lose(number)
        self._callers.remove(number, why)
