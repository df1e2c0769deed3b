"""How do the pages that a spawner holds for the next supervisor get there, with the messages to it?"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable

from holdfast_wire import spawner_link as wire
from holdfast_wire.framing import SPAWNER_FRAME_BYTES_MAX, encode

from supervisor.edges.workers.page_hand_over import PageOffers, note_text


class PageSending:
    """The pages of one link. Never blocks."""

    def __init__(self, offers: PageOffers | None, job_id: str) -> None:
        self._offers = offers
        self._job_id = job_id
        self._takes_pages = False
        self._descriptors: tuple[int, ...] = ()  # to be sent with the first byte that is unsent

    def note_ready(self, ready: wire.Ready) -> None:
        if ready.holds_pages and self._offers is not None:
            self._takes_pages = True
            self._offers.accept(self._job_id)

    def frame(self, is_worker: Callable[[int, int], bool]) -> bytes:
        """Returns the message with the offered pages of these workers, to be sent before all else; b"": none."""
        if self._offers is None or not self._takes_pages or self._descriptors:
            return b""
        offered = self._offers.take(self._job_id, is_worker)
        if not offered:
            return b""
        self._descriptors = tuple(each.fd for each in offered)
        pages = tuple((each.cycle, each.local_rank, each.inode, note_text(each.note)) for each in offered)
        return encode(wire.encode(wire.HoldPages(pages)), frame_bytes_max=SPAWNER_FRAME_BYTES_MAX)

    def send(self, link: socket.socket, data: bytes | bytearray) -> int:
        """Sends what the socket takes. If the kernel takes no more descriptors, the message goes without them."""
        if not self._descriptors:
            return link.send(data)
        try:
            sent = socket.send_fds(link, [data], self._descriptors)
        except OSError as error:
            if error.errno != errno.ETOOMANYREFS:
                raise
            sent = link.send(data)
        self.drop()
        return sent

    def drop(self) -> None:
        """Closes the descriptors: they were sent, or never will be."""
        descriptors, self._descriptors = self._descriptors, ()
        for each in descriptors:
            os.close(each)
