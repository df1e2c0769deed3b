"""How do messages go both ways over one TCP connection between a node and the leader, and when is it dead?

Both sides say something every ALIVE_S. A side that hears nothing for SILENCE_S takes the connection for dead, so also
where a cable was pulled and no end ever comes. One that stood still itself looks at what has come before it judges.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import cast

import anyio
import msgspec
from anyio.abc import ByteStream, SocketAttribute, SocketStream
from holdfast_wire import framing
from holdfast_wire.framing import Decoder, FrameTooLongError

from supervisor.edges.peers.cluster_frames import ClusterProtocolError
from supervisor.edges.peers.cluster_session import OVERHEAD_BYTES, Arrivals, Outbox, Seal, SessionError

ALIVE_S = 1.0
SILENCE_S = 3.0
HANDSHAKE_S = 10.0  # from the connection to the last word of the handshake
SEALED_BYTES_MAX = framing.CLUSTER_FRAME_BYTES_MAX + OVERHEAD_BYTES
RECEIVE_BYTES = 64 * 1024
ASIDES_BYTES_MAX = 8 * 1024 * 1024  # that wait to be sent; what comes beyond it is dropped


class LinkLostError(Exception):
    """Raised where the connection has ended, or is taken for dead."""


class FrameStream:
    """Whole frames over a byte stream."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._decoder = Decoder(frame_bytes_max=SEALED_BYTES_MAX)
        self._frames: list[bytes] = []

    async def receive(self) -> bytes:
        """Raises LinkLostError."""
        while not self._frames:
            try:
                self._frames = self._decoder.feed(await self._stream.receive(RECEIVE_BYTES))
            except anyio.EndOfStream:
                raise LinkLostError("the other side has closed the connection") from None
            except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
                raise LinkLostError(f"the connection has broken: {error.__cause__ or error}") from error
            except FrameTooLongError as error:
                raise LinkLostError(str(error)) from error
        return self._frames.pop(0)

    async def send(self, *payloads: bytes) -> None:
        """Raises LinkLostError."""
        data = b"".join(framing.encode(payload, frame_bytes_max=SEALED_BYTES_MAX) for payload in payloads)
        try:
            await self._stream.send(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
            raise LinkLostError(f"the connection has broken: {error.__cause__ or error}") from error


class Conversation:
    """All that two processes have to say to each other, over one connection after the other."""

    def __init__(self) -> None:
        self._outbox = Outbox()
        self._arrivals = Arrivals()
        self._asides: deque[bytes] = deque()
        self._asides_bytes = 0
        self._wakes = anyio.Event()
        self._settled = anyio.Event()
        self._told_received = 0  # the newest arrival that the other side knows of
        self.heard_at_s = anyio.current_time()

    def end(self) -> None:
        """The other side is lost: nobody waits for it any more."""
        self._outbox = Outbox()
        self._told_received = self._arrivals.received
        self._settled.set()

    def say(self, payload: bytes) -> None:
        """Goes out as soon as there is a connection. Never blocks. Raises SessionError once too much waits."""
        self._outbox.put(payload)
        self._wakes.set()

    def say_aside(self, payload: bytes) -> bool:
        """Goes out when nothing else waits, once, whether it arrives or not. False: too much waits already."""
        if self._asides_bytes + len(payload) > ASIDES_BYTES_MAX:
            return False
        self._asides.append(payload)
        self._asides_bytes += len(payload)
        self._wakes.set()
        return True

    async def until_all_is_heard(self) -> None:
        """Returns once the other side has confirmed everything, and was told what has come from it."""
        while not (self._outbox.is_empty and self._told_received == self._arrivals.received):
            self._settled = anyio.Event()
            await self._settled.wait()

    async def hold(
        self, frames: FrameStream, *, sends: Seal, receives: Seal, on_message: Callable[[bytes], None]
    ) -> None:
        """Until the connection is lost, which LinkLostError, SessionError or ClusterProtocolError tells."""
        self._outbox.begin_connection()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._speak, frames, sends)
                await self._listen(frames, receives, on_message)
        except BaseExceptionGroup as group:
            faults = group.subgroup((LinkLostError, SessionError, ClusterProtocolError))
            if faults is None:
                raise
            raise _first(faults) from None

    async def _listen(self, frames: FrameStream, receives: Seal, on_message: Callable[[bytes], None]) -> None:
        while True:
            sealed = await _in_time(frames)
            payload, number, received = receives.open(sealed)
            self.heard_at_s = anyio.current_time()
            self._outbox.confirm(received)
            if self._arrivals.is_new(number) and (number or payload):
                on_message(payload)
            self._settled.set()
            if number:
                self._wakes.set()  # It is told at once that this one has come.

    async def _speak(self, frames: FrameStream, sends: Seal) -> None:
        while True:
            received = self._arrivals.received
            waiting = self._outbox.unsent()
            if waiting:
                for number, payload in waiting:
                    await frames.send(sends.close(payload, number=number, received=received))
            else:
                await frames.send(sends.close(self._next_aside(), number=0, received=received))
            self._told_received = received
            self._settled.set()
            if self._arrivals.received == received and not self._asides:
                with anyio.move_on_after(ALIVE_S):
                    await self._wakes.wait()
            self._wakes = anyio.Event()

    def _next_aside(self) -> bytes:
        """Empty where there is none: then the frame only says that this side lives."""
        if not self._asides:
            return b""
        payload = self._asides.popleft()
        self._asides_bytes -= len(payload)
        return payload


async def _in_time(frames: FrameStream) -> bytes:
    """Raises LinkLostError after SILENCE_S."""
    for patience_s in (SILENCE_S, 0.1):  # The second look: we may have stood still ourselves.
        with anyio.move_on_after(patience_s):
            return await frames.receive()
    raise LinkLostError(f"nothing was heard for {SILENCE_S:g} s")


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseException", error.exceptions[0])
    return error


class PeerAddress(msgspec.Struct, frozen=True):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def local_host(stream: SocketStream) -> str:
    """The address of this side: by it the other side's network can reach us."""
    return str(stream.extra(SocketAttribute.local_address)[0])


def remote_address(stream: SocketStream) -> PeerAddress:
    host, port = stream.extra(SocketAttribute.remote_address)[:2]
    return PeerAddress(str(host), int(port))


async def close(stream: SocketStream) -> None:
    """Whatever state it is in."""
    with suppress(Exception), anyio.move_on_after(1, shield=True):  # A broken connection has nothing left to say.
        await stream.aclose()
