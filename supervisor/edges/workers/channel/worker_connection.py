"""How are frames received from and sent to a worker that may be slow, silent, flooding or gone?"""

from __future__ import annotations

import copy
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import anyio
from holdfast_wire.framing import WORKER_FRAME_BYTES_MAX, Decoder, FrameTooLongError

from supervisor.edges.workers.channel.worker_frames import WorkerProtocolError
from supervisor.ports.edges import Clock
from supervisor.ports.timed_waits import pause

FRAME_TIMEOUT_S = 5.0  # from the first byte of a frame to its last; for sending, too
RECEIVE_BYTES = 4 * 1024  # at once: a burst on a thousand connections must not block the loop
PEEK_BYTES = 64 * 1024
FRAMES_PER_S = 200.0  # per connection in the long run; a faster one is read more slowly
FRAMES_BURST = 1000.0
BYTES_PER_TOKEN = 4096  # a large frame counts as several
WAITING_BYTES_MAX = 4 * 1024 * 1024  # of our frames, for a peer that does not read


class TokenBucket:
    """Limits how many frames may be received now."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tokens = FRAMES_BURST
        self._filled_at_s = clock.now_s()

    def take(self, cost: float) -> float:
        """Takes `cost` tokens, on credit if needed; returns how long to wait before the next frame."""
        now_s = self._clock.now_s()
        self._tokens = min(FRAMES_BURST, self._tokens + (now_s - self._filled_at_s) * FRAMES_PER_S)
        self._filled_at_s = now_s
        self._tokens -= cost
        return max(0.0, -self._tokens / FRAMES_PER_S)


class WorkerConnection:
    """One accepted socket. Its methods raise OSError if the peer is gone; the owner calls `close`."""

    def __init__(self, sock: socket.socket, clock: Clock) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._decoder = Decoder(frame_bytes_max=WORKER_FRAME_BYTES_MAX)
        self._received: deque[bytes] = deque()
        self._clock = clock
        self._bucket = TokenBucket(clock)
        self._sending = anyio.Lock()
        self._unsent: deque[memoryview] = deque()  # sent before anything else
        self._unsent_bytes = 0

    async def receive(self, *, timeout_s: float | None = None) -> bytes | None:
        """Returns the next frame's payload; None at a clean end of the stream.

        `timeout_s` limits the wait for the whole frame; a frame that has begun may take FRAME_TIMEOUT_S. Raises
        TimeoutError, WorkerProtocolError (cut off inside a frame) and FrameTooLongError.
        """
        until_s = None if timeout_s is None else self._clock.now_s() + timeout_s
        while not self._received:
            if self._decoder.pending_bytes and until_s is None:
                until_s = self._clock.now_s() + FRAME_TIMEOUT_S
            if not await self._fill(until_s):
                return None
        payload = self._received.popleft()
        pause_s = self._bucket.take(1 + len(payload) / BYTES_PER_TOKEN)
        if pause_s > 0:
            # Unread bytes stay in the sender's socket: a flood slows down only its sender.
            await pause(pause_s, why="the sender is held to its rate")
        return payload

    async def _fill(self, until_s: float | None) -> bool:
        """Reads the available data, or waits for it. Returns False at the end of the stream."""
        while True:
            try:
                data = self._socket.recv(RECEIVE_BYTES)
            except (BlockingIOError, InterruptedError):
                await self._ready(anyio.wait_readable, until_s)
                continue
            if not data:
                if self._decoder.pending_bytes:
                    raise WorkerProtocolError("cannot read a frame: the stream ends inside it")
                return False
            self._received.extend(self._decoder.feed(data))
            return True

    async def _ready(self, wait: Callable[[socket.socket], Awaitable[None]], until_s: float | None) -> None:
        """Waits until the socket may be ready or the time is over; after a hang of ours, both may be true."""
        if until_s is None:
            await wait(self._socket)
            return
        left_s = until_s - self._clock.now_s()
        if left_s <= 0:
            raise TimeoutError
        with anyio.move_on_after(left_s):
            await wait(self._socket)

    def waiting(self) -> list[bytes]:
        """Returns received payloads that were not taken yet, oldest first. Only looks: `receive` still returns them."""
        waiting = list(self._received)
        try:
            data = self._socket.recv(PEEK_BYTES, socket.MSG_PEEK)
            return waiting + copy.deepcopy(self._decoder).feed(data)
        except (OSError, FrameTooLongError):
            return waiting  # no more data, or the peer's end or fault, which `receive` reports

    async def send(self, frame: bytes, descriptors: Sequence[int] = ()) -> None:
        """Sends one frame, with file descriptors on its first byte. Raises TimeoutError if the peer is too slow.

        If the caller is cancelled meanwhile, the next sender sends the rest of the frame.
        """
        async with self._sending:
            await self._send_unsent()
            if descriptors:
                frame = frame[await self._send_descriptors(frame, descriptors) :]
            self._keep(frame)
            await self._send_unsent()

    def send_soon(self, frame: bytes) -> bool:
        """Sends as much as the socket takes now; `flush` sends the rest. Returns False if the peer does not read."""
        if not self._unsent and not self._sending.locked():
            try:
                frame = frame[self._socket.send(frame) :]
            except (BlockingIOError, InterruptedError):
                pass
            except OSError:
                return False
        elif self._unsent_bytes + len(frame) > WAITING_BYTES_MAX:
            return False
        self._keep(frame)
        return True

    @property
    def must_flush(self) -> bool:
        """Returns whether frames wait that nobody is sending."""
        return bool(self._unsent) and not self._sending.locked()

    async def flush(self) -> None:
        """Sends waiting frames. Raises TimeoutError if the peer is too slow."""
        async with self._sending:
            await self._send_unsent()

    def _keep(self, frame: bytes) -> None:
        if frame:
            self._unsent.append(memoryview(frame))
            self._unsent_bytes += len(frame)

    async def _send_unsent(self) -> None:
        while self._unsent:
            until_s = self._clock.now_s() + FRAME_TIMEOUT_S
            while rest := self._unsent[0]:
                try:
                    sent = self._socket.send(rest)
                except (BlockingIOError, InterruptedError):
                    await self._ready(anyio.wait_writable, until_s)
                    continue
                self._unsent[0] = rest[sent:]
                self._unsent_bytes -= sent
            self._unsent.popleft()

    async def _send_descriptors(self, frame: bytes, descriptors: Sequence[int]) -> int:
        """Sends the descriptors, and returns how many bytes of the frame went with them."""
        until_s = self._clock.now_s() + FRAME_TIMEOUT_S
        while True:
            try:
                return socket.send_fds(self._socket, [frame], descriptors)
            except (BlockingIOError, InterruptedError):
                await self._ready(anyio.wait_writable, until_s)

    def send_last(self, frame: bytes) -> None:
        """Sends what fits at once, to a peer that will be dropped anyway."""
        try:
            self._socket.send(frame)
        except OSError:
            return  # it is gone or does not read: we need not wait

    def close(self) -> None:
        """Ends the connection, even if a process that has not executed yet has a copy of the socket."""
        with suppress(OSError):  # The peer is gone, or this was closed before.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
