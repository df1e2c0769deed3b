"""How do whole frames go both ways over one TCP connection of the cluster stream, at what cost, and when does it end?

A leader has thousands of lines, so a line has no task. Received frames are passed on at once, a share in each turn of
the event loop, so that no line keeps the others waiting. `is_writable` shows whether the peer reads.
"""

from __future__ import annotations

import asyncio  # anyio has no callbacks, and thousands of tasks cost ten times as much
import logging
import socket
import ssl
from collections.abc import Callable
from typing import cast

import anyio
from holdfast_wire import framing
from holdfast_wire.framing import Decoder, FrameTooLongError

from supervisor.edges.machine.processes.tcp_peer_user import stranger_at
from supervisor.edges.peers.codec.cluster_frames import ClusterProtocolError
from supervisor.edges.peers.transport.cluster_session import NUMBERS_BYTES, SessionError
from supervisor.edges.peers.transport.cluster_tls import Pipe
from supervisor.edges.peers.transport.preamble import Preamble

FRAME_BYTES_MAX = framing.CLUSTER_FRAME_BYTES_MAX + NUMBERS_BYTES
INTRODUCTION_BYTES_MAX = 16 * 1024  # for a frame of a peer that has proved nothing yet
SHARE_MAX = 64  # frames of one line that are passed on in one turn of the event loop
UNSENT_BYTES_MAX = 64 * 1024  # waiting in our buffer, and as much in the kernel's: urgent data comes after it
CLOSED = "the other side has closed the connection"

_NOTSENT_LOWAT = 25  # Linux's TCP_NOTSENT_LOWAT, which has no name in Python before 3.12
_log = logging.getLogger("holdfast.cluster")

OnFrame = Callable[[bytes], None]  # may raise SessionError or ClusterProtocolError, which end the line
OnEnd = Callable[[str], None]


class LinkLostError(Exception):
    """Raised if the connection has ended, or is considered dead."""


class Line(asyncio.Protocol):
    """One connection: use `receive` during the handshake, callbacks from `listen` on."""

    def __init__(
        self,
        *,
        pipe: Pipe | None = None,
        greeting: bytes = b"",
        frame_bytes_max: int = FRAME_BYTES_MAX,
        preamble: Preamble | None = None,
        unsent_bytes_max: int = UNSENT_BYTES_MAX,
    ) -> None:
        """Creates a line. `pipe` None: no TLS. `greeting` is sent first. `frame_bytes_max` holds until `listen`.

        `preamble` comes before all of it. `unsent_bytes_max`: above this, `is_writable` is False.
        """
        self._pipe = pipe
        self._greeting = greeting
        self._unsent_bytes_max = unsent_bytes_max
        self._preamble = preamble
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._decoder = Decoder(frame_bytes_max=frame_bytes_max)
        self._frames: list[bytes] = []  # received, but not taken yet
        self._changed: anyio.Event | None = None  # belongs to the waiting caller; any change sets it
        self._on_frame: OnFrame | None = None
        self._on_end: OnEnd | None = None
        self._on_writable: Callable[[], None] | None = None
        self.is_writable = True
        self._is_held_back = False
        self._lost = ""  # why the connection is lost while a step of the handshake may yet give a better reason
        self.ended = ""  # the reason; "": the line is open
        self.distrust = False  # the sides do not trust each other; another attempt would not help
        self.heard_at_s = self._loop.time()  # when the last byte came

    # --- the handshake ---------------------------------------------------------------------------------------------

    async def receive(self) -> bytes:
        """Returns the next frame. Raises LinkLostError."""
        while not self._frames:
            if self.ended:
                raise LinkLostError(self.ended)
            self._read_on(wanted=True)
            await self._change()
        return self._frames.pop(0)

    async def until_ended(self) -> str:
        """Waits for the end and returns the reason."""
        while not self.ended:
            await self._change()
        return self.ended

    async def _change(self) -> None:
        self._changed = anyio.Event()
        await self._changed.wait()

    def _tell_change(self) -> None:
        if self._changed is not None:
            self._changed.set()

    def proof(self, side: str) -> bytes:
        """Returns what `side` ("node" or "leader") proves beside its certificate, once TLS is there; b"": nothing.

        A node that comes through a relay has proved it to the relay.
        """
        return self._pipe.proof(side) if self._pipe is not None else b""

    # --- held ------------------------------------------------------------------------------------------------------

    def listen(self, on_frame: OnFrame, on_end: OnEnd, on_writable: Callable[[], None]) -> None:
        """Passes frames to `on_frame` from now on. Calls `on_end` once, perhaps now."""
        self._on_frame, self._on_end, self._on_writable = on_frame, on_end, on_writable
        if not self._decoder.pending_bytes:
            self._decoder = Decoder(frame_bytes_max=FRAME_BYTES_MAX)
        self._take_turn()
        if self.ended:
            self._tell_end()

    def send(self, *payloads: bytes) -> None:
        """Sends frames. Never blocks. Check `is_writable` before sending data that can wait."""
        if self._transport is None or self.ended or self._lost:
            return
        if len(payloads) == 1:
            data = framing.encode(payloads[0], frame_bytes_max=FRAME_BYTES_MAX)
        else:
            data = b"".join([framing.encode(payload, frame_bytes_max=FRAME_BYTES_MAX) for payload in payloads])
        if self._pipe is None:
            self._transport.write(data)
        else:
            self._write_sealed(self._pipe, data)

    def _write_sealed(self, pipe: Pipe, data: bytes) -> None:
        try:
            pipe.write(data)
        except ssl.SSLError as error:
            self._distrust(error)
            return
        self._answer(pipe)

    def end(self, why: str, *, says_all: bool = False) -> None:
        """Ends the connection. `says_all`: sent data still goes out."""
        if self._transport is not None:
            if says_all:
                self._transport.close()
            else:
                self._transport.abort()
        self._end(why)

    def _end(self, why: str) -> None:
        if not self.ended:
            self.ended = why
            if self._pipe is not None:
                self._pipe.part()
            self._tell_change()
            self._tell_end()

    def _tell_end(self) -> None:
        on_end, self._on_end = self._on_end, None
        self._on_frame = self._on_writable = None
        if on_end is not None:
            on_end(self.ended)

    def _take_turn(self) -> None:
        """Passes on a share of the waiting frames; other lines get their turn before the rest."""
        share, self._frames = self._frames[:SHARE_MAX], self._frames[SHARE_MAX:]
        self._hand_on(share)
        if self._on_frame is None:
            return
        self._read_on(wanted=not self._frames)
        if self._frames:
            self._loop.call_soon(self._take_turn)

    def _hand_on(self, frames: list[bytes]) -> None:
        try:
            for frame in frames:
                if self._on_frame is None:
                    return
                self._on_frame(frame)
        except (SessionError, ClusterProtocolError) as error:
            self.end(str(error))
        except Exception:  # noqa: BLE001 - the bulkhead: an error of one connection leaves the others alone
            _log.warning("a connection of the cluster stream has met a defect", exc_info=True)
            self.end("a defect was met")

    def hold_back(self) -> None:
        """Reads nothing more until `read_on`; frames that have come by then are still passed on."""
        self._is_held_back = True
        self._read_on(wanted=False)

    def read_on(self) -> None:
        self._is_held_back = False
        self._read_on(wanted=not self._frames)

    def _read_on(self, *, wanted: bool) -> None:
        if self._transport is None or self.ended:
            return
        if wanted and not self._is_held_back:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    # --- see asyncio.Protocol --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=self._unsent_bytes_max)
        sock = cast("socket.socket | None", transport.get_extra_info("socket"))
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, _NOTSENT_LOWAT, self._unsent_bytes_max)
        if self._preamble is not None:
            self._transport.write(self._preamble.says)
        if self._greeting:
            self.send(self._greeting)
        if self._pipe is not None and not self._pipe.leads:
            self._unseal(b"")

    def _unseal(self, sealed: bytes | None) -> bytes:
        """Returns the decrypted data. None: a step of the handshake is done, which may have let more in."""
        if self._pipe is None or self._transport is None:
            return sealed or b""
        try:
            pipe, then = self._pipe, self._take_step
            data = pipe.read(sealed, then) if sealed is not None else pipe.go_on(then)
        except ssl.SSLError as error:
            self._distrust(error)
            return b""
        self._answer(self._pipe)
        return data

    def _answer(self, pipe: Pipe) -> None:
        if (answer := pipe.outgoing()) and self._transport is not None and not self._lost:
            self._transport.write(answer)

    def _distrust(self, error: ssl.SSLError) -> None:
        if isinstance(error, ssl.SSLZeroReturnError):
            self.end(CLOSED)
            return
        why = str(error)
        if self._pipe is not None:
            self._answer(self._pipe)  # The other side learns the reason.
            self.distrust, why = self._pipe.judge(error)
        self.end(why, says_all=True)

    def data_received(self, data: bytes) -> None:
        self.heard_at_s = self._loop.time()
        preamble, self._preamble = self._preamble, None
        if preamble is not None and (why := preamble.read(data)):
            self.end(why, says_all=True)
            return
        self._take_in(data if self._pipe is None else self._unseal(data))

    def _take_step(self) -> None:
        if not self.ended:
            self._take_in(self._unseal(None))
            if self._lost:
                self._lose(self._lost)

    def _take_in(self, data: bytes) -> None:
        try:
            frames = self._decoder.feed(data)
        except FrameTooLongError as error:
            self.end(str(error), says_all=True)
            return
        if self._on_frame is None:
            self._frames += frames
            if frames:
                self._read_on(wanted=False)
                self._tell_change()
        elif self._frames:  # They get their turn soon.
            self._frames += frames
        elif len(frames) <= SHARE_MAX:
            self._hand_on(frames)
        else:
            self._frames = frames
            self._take_turn()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        told = exc.strerror or str(exc) if isinstance(exc, OSError) else str(exc)
        self._lose(CLOSED if exc is None else f"the connection has broken: {told}")

    def _lose(self, why: str) -> None:
        if self._pipe is not None and self._pipe.is_computing:
            self._lost = why
        else:
            self._end(why)

    def pause_writing(self) -> None:
        self.is_writable = False

    def resume_writing(self) -> None:
        self.is_writable = True
        if self._on_writable is not None:
            self._on_writable()

    # --- addresses -------------------------------------------------------------------------------------------------

    def address(self, which: str) -> str:
        """Returns "sockname" or "peername" as an IP; "" without a connection."""
        try:
            found = self._transport.get_extra_info(which) if self._transport is not None else None
        except (OSError, ValueError):  # uvloop asks the kernel, with the descriptor -1 if the connection has ended
            found = None
        return str(found[0]) if found else ""

    @property
    def peer(self) -> tuple[str, int]:
        return self.address("peername"), 0

    def stranger(self) -> str:
        """Returns whose process has the other end, if it is not this user's. Raises OSError; see tcp_peer_user.py."""
        if self._transport is None or self.ended:
            raise ConnectionResetError(self.ended or CLOSED)
        return stranger_at(*(self._transport.get_extra_info(which) for which in ("peername", "sockname")))

    @property
    def unsent_bytes(self) -> int:
        """Returns the bytes that wait here for a peer that does not read."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0
