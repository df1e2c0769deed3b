"""How do messages get from and to the supervisor without ever blocking the spawner?"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
from collections.abc import Callable, Sequence

from holdfast_wire import framing, spawner_link

READ_BYTES = 256 * 1024
# Above this, a stalled supervisor loses what may be lost: OutputDropped, whose totals the next one repeats.
UNSENT_BYTES_SOFT_MAX = 1024 * 1024
_DESCRIPTOR = struct.Struct("i")
_EXTRAS_BYTES_MAX = socket.CMSG_SPACE(253 * _DESCRIPTOR.size)  # the kernel passes no more at once (SCM_MAX_FD)


class Link:
    """One end of the spawner link over a non-blocking descriptor. `lost` once the supervisor is gone."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.lost = False
        self.arrived: list[int] = []  # descriptors from the other end, which the reader of the messages takes
        self._is_deaf = False  # the other end accepts nothing more, but may have sent something
        self._unsent = bytearray()
        self._more: Callable[[], bool] | None = None
        self._decoder = framing.Decoder(frame_bytes_max=framing.SPAWNER_FRAME_BYTES_MAX)
        os.set_blocking(fd, False)
        os.set_inheritable(fd, False)

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent) or self._more is not None

    @property
    def is_readable(self) -> bool:
        """Whether something has arrived that was not received yet, be it the end of the stream."""
        if self.lost:
            return False
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        return bool(poll.poll(0))

    def receive(self, *, everything: bool = False) -> list[spawner_link.Message]:
        """Returns what has arrived, at most READ_BYTES unless `everything` is wanted. Sets `lost` at the stream's end.

        Raises SpawnerProtocolError, FrameTooLongError.
        """
        link = self._as_socket()
        try:
            data, extras, _, _ = link.recvmsg(READ_BYTES, _EXTRAS_BYTES_MAX, socket.MSG_CMSG_CLOEXEC)
            for level, kind, body in extras:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    self.arrived += [number for (number,) in _DESCRIPTOR.iter_unpack(body)]
        except (BlockingIOError, InterruptedError):
            return []
        except OSError:  # ECONNRESET: as good as the end of the stream.
            data = b""
        finally:
            link.detach()
        if not data:
            self.lost = True
            self._forget_unsent()
            return []
        messages = [spawner_link.decode(payload) for payload in self._decoder.feed(data)]
        while everything and self.is_readable:
            messages += self.receive()
        return messages

    def send(self, message: spawner_link.Message) -> None:
        """Queues `message` and sends what the socket takes now; does nothing once the supervisor is lost."""
        self.queue(message)
        self.flush()

    def drops(self, message: spawner_link.Message) -> bool:
        """Returns whether `message` is one that may be lost, and too much waits already."""
        return isinstance(message, spawner_link.OutputDropped) and len(self._unsent) > UNSENT_BYTES_SOFT_MAX

    def queue(self, message: spawner_link.Message) -> None:
        """Queues `message` for the next `send` or `flush`."""
        if not self.lost and not self._is_deaf:
            self._unsent += _frame(message)

    def call_when_sent(self, more: Callable[[], bool]) -> None:
        """Calls `more` whenever all is sent, until it returns False; it may call `send_with`."""
        if not self.lost and not self._is_deaf:
            self._more = more

    def send_with(self, message: spawner_link.Message, descriptors: Sequence[int]) -> None:
        """Sends `message` with descriptors, once all else is sent. Raises BlockingIOError if the socket is full.

        The descriptors go with the first byte. If the kernel passes no more of them, the message goes without.
        """
        assert not self._unsent, "they would go with another message"
        frame, link = _frame(message), self._as_socket()
        try:
            sent = socket.send_fds(link, [frame], descriptors)
        except OSError as error:
            if error.errno != errno.ETOOMANYREFS:
                raise
            sent = link.send(frame)
        finally:
            link.detach()
        self._unsent += frame[sent:]

    def flush(self) -> None:
        """Sends what the socket takes now."""
        try:
            while self.has_unsent:
                if self._unsent:
                    del self._unsent[: os.write(self.fd, self._unsent)]
                elif self._more is not None and not self._more():
                    self._more = None
        except (BlockingIOError, InterruptedError):
            return
        except OSError:  # EPIPE, ECONNRESET
            self._is_deaf = True
            self._forget_unsent()

    def _forget_unsent(self) -> None:
        self._unsent.clear()
        self._more = None

    def _as_socket(self) -> socket.socket:
        """Returns the descriptor as a socket, to be detached: a number is not closed by surprise in a fork."""
        return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, self.fd)


def _frame(message: spawner_link.Message) -> bytes:
    return framing.encode(spawner_link.encode(message), frame_bytes_max=framing.SPAWNER_FRAME_BYTES_MAX)
