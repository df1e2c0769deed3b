"""How do messages get from and to the supervisor without ever blocking the spawner?"""

from __future__ import annotations

import os
import select

from holdfast_wire import framing, spawner_link

READ_BYTES = 256 * 1024
# Above this, a stalled supervisor loses what may be lost: OutputDropped, whose totals the next one repeats.
UNSENT_BYTES_SOFT_MAX = 1024 * 1024


class Link:
    """One end of the spawner link over a non-blocking descriptor. `lost` once the supervisor is gone."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.lost = False
        self._is_deaf = False  # the other end accepts nothing more, but may have sent something
        self._unsent = bytearray()
        self._decoder = framing.Decoder(frame_bytes_max=framing.SPAWNER_FRAME_BYTES_MAX)
        os.set_blocking(fd, False)
        os.set_inheritable(fd, False)

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    @property
    def is_readable(self) -> bool:
        """Whether something has arrived that was not received yet, be it the end of the stream."""
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        return bool(poll.poll(0))

    def receive(self) -> list[spawner_link.Message]:
        """Returns what has arrived. Sets `lost` at the stream's end. Raises SpawnerProtocolError, FrameTooLongError."""
        try:
            data = os.read(self.fd, READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError:  # ECONNRESET: as good as the end of the stream.
            data = b""
        if not data:
            self.lost = True
            self._unsent.clear()
            return []
        return [spawner_link.decode(payload) for payload in self._decoder.feed(data)]

    def send(self, message: spawner_link.Message) -> None:
        """Queues `message` and sends what the socket takes now; does nothing once the supervisor is lost."""
        self.queue(message)
        self.flush()

    def queue(self, message: spawner_link.Message) -> None:
        """Queues `message` for the next `send` or `flush`."""
        if self.lost or self._is_deaf:
            return
        if isinstance(message, spawner_link.OutputDropped) and len(self._unsent) > UNSENT_BYTES_SOFT_MAX:
            return
        self._unsent += framing.encode(spawner_link.encode(message), frame_bytes_max=framing.SPAWNER_FRAME_BYTES_MAX)

    def flush(self) -> None:
        """Sends what the socket takes now."""
        while self._unsent:
            try:
                sent = os.write(self.fd, self._unsent)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:  # EPIPE, ECONNRESET
                self._is_deaf = True
                self._unsent.clear()
                return
            del self._unsent[:sent]
