"""How does the sender of a node receive the output of the node's log processes?

It gets a listening socket that outlives it, so that a log process can connect at once, even while a dead sender is
being replaced.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
from collections.abc import Callable

import anyio
from anyio.abc import SocketStream
from holdfast_wire import framing, log_door
from holdfast_wire.log_door import DoorPiece, DoorReceipt, DoorTrouble

from supervisor.core.log_funnel.pieces import Piece, Receipt
from supervisor.programs.log_service.bells import Bell
from supervisor.programs.log_service.links import Taker

READ_BYTES = 256 * 1024
_CREDENTIALS = struct.Struct("iII")

_log = logging.getLogger("holdfast.logs")


class _Visitor:
    def __init__(self, stream: SocketStream) -> None:
        self.stream = stream
        self.receipts: dict[int, Receipt] = {}
        self.trouble: str | None = None
        self.bell = Bell()


class Door:
    """Takes connections; `run` does so until cancelled."""

    def __init__(self, taker: Taker) -> None:
        self._taker = taker
        self._visitors: dict[int, _Visitor] = {}
        self._last = 0
        self._trouble = ""
        self.on_change: Callable[[], None] = _nothing

    @property
    def count(self) -> int:
        return len(self._visitors)

    def send(self, link: int, receipt: Receipt) -> None:
        if (to := self._visitors.get(link)) is not None:
            to.receipts[receipt.stream] = receipt
            to.bell.ring()

    def tell_trouble(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            for visitor in self._visitors.values():
                visitor.trouble = trouble
                visitor.bell.ring()

    async def run(self, listening_fd: int) -> None:
        listener = socket.socket(fileno=listening_fd)
        listener.setblocking(False)
        async with anyio.create_task_group() as tasks:
            while True:
                await anyio.wait_readable(listener)
                try:
                    accepted, _ = listener.accept()
                except (BlockingIOError, ConnectionError):
                    continue
                if not _is_own(accepted):
                    accepted.close()
                    continue
                accepted.setblocking(False)
                tasks.start_soon(self._serve, await SocketStream.from_socket(accepted))

    async def _serve(self, stream: SocketStream) -> None:
        self._last += 1
        number = self._last
        visitor = self._visitors[number] = _Visitor(stream)
        visitor.trouble = self._trouble
        visitor.bell.ring()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._answer, visitor)
                await self._listen(number, stream)
                tasks.cancel_scope.cancel()
        finally:
            del self._visitors[number]
            self._taker.lose(number)
            await anyio.aclose_forcefully(stream)
            self.on_change()

    async def _listen(self, number: int, stream: SocketStream) -> None:
        decoder = framing.Decoder(frame_bytes_max=log_door.FRAME_BYTES_MAX)
        try:
            while True:
                for payload in decoder.feed(await stream.receive(READ_BYTES)):
                    match log_door.decode(payload):
                        case DoorPiece(stream=stream_id) as said:
                            piece = Piece(stream_id, said.file, said.base, said.position, said.lines, said.ends)
                            self._taker.take(number, piece)
                        case DoorReceipt() | DoorTrouble():
                            pass
                await self._taker.until_room()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return
        except ValueError as error:
            _log.warning("a log process is cut off: %s", error)

    async def _answer(self, visitor: _Visitor) -> None:
        while True:
            await visitor.bell.wait()
            receipts, visitor.receipts = visitor.receipts, {}
            said: list[DoorReceipt | DoorTrouble] = [
                DoorReceipt(each.stream, each.position, each.ended) for each in receipts.values()
            ]
            if visitor.trouble is not None:
                said.append(DoorTrouble(visitor.trouble[:1000]))
                visitor.trouble = None
            frames = [framing.encode(log_door.encode(each), frame_bytes_max=log_door.FRAME_BYTES_MAX) for each in said]
            try:
                await visitor.stream.send(b"".join(frames))
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return  # the reader notices


def _is_own(accepted: socket.socket) -> bool:
    """Returns whether the peer is our own user; the socket's folder keeps others out, too."""
    _, uid, _ = _CREDENTIALS.unpack(accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return uid in (os.getuid(), 0)


def _nothing() -> None:
    """Does nothing."""
