"""Do pages reach the spawner with the message that names them, and are they closed here in any case?"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Generator

import pytest
from holdfast_wire import framing
from holdfast_wire import spawner_link as wire

from supervisor.edges.workers.page_hand_over import PageNote, PageOffers, note_from
from supervisor.edges.workers.spawner.page_sending import PageSending

NOTE = PageNote(made_at_ns=7, sections=(), pid=12, stacks_signal=23, stacks_fd=5)
READY = wire.Ready(1, 1, "3.11", "fork", "", (), "", holds_pages=True)


@pytest.fixture
def pair() -> Generator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        yield ours, theirs


def every_worker(cycle: int, local_rank: int) -> bool:
    return True


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def offer(offers: PageOffers) -> int:
    """Offers a page; returns its inode."""
    fd = os.memfd_create("page")
    offers.offer("job", 2, 1, fd, NOTE)
    inode = os.fstat(fd).st_ino
    os.close(fd)
    return inode


def test_a_page_comes_with_the_message_that_names_it(pair: tuple[socket.socket, socket.socket]):
    ours, theirs = pair
    offers, before = PageOffers(), open_descriptors()
    sending = PageSending(offers, "job")
    assert sending.frame(every_worker) == b"", "before the spawner has said what it takes"
    sending.note_ready(READY)
    inode = offer(offers)
    frame = sending.frame(every_worker)
    assert sending.frame(every_worker) == b""
    sent = sending.send(ours, frame + b"more")
    assert sent == len(frame) + 4
    data, (descriptor,), _, _ = socket.recv_fds(theirs, 65536, 10)
    (payload,) = framing.Decoder(frame_bytes_max=1 << 20).feed(data[: len(frame)])
    message = wire.decode(payload)
    assert isinstance(message, wire.HoldPages)
    ((cycle, local_rank, named, text),) = message.pages
    assert (cycle, local_rank, named, note_from(text)) == (2, 1, inode, NOTE)
    assert os.fstat(descriptor).st_ino == inode
    os.close(descriptor)
    assert open_descriptors() == before
    assert sending.send(ours, b"later") == 5


def test_a_spawner_that_takes_nothing_gets_the_page_later_or_never(pair: tuple[socket.socket, socket.socket]):
    ours, _ = pair
    offers, before = PageOffers(), open_descriptors()
    sending = PageSending(offers, "job")
    sending.note_ready(READY)
    offer(offers)
    frame = sending.frame(every_worker)
    with contextlib.suppress(BlockingIOError):
        while ours.send(b"x" * 65536):
            pass
    with pytest.raises(BlockingIOError):
        sending.send(ours, frame)
    assert open_descriptors() == before + 1
    sending.drop()
    assert open_descriptors() == before


def test_a_spawner_of_an_older_version_gets_none():
    offers = PageOffers()
    sending = PageSending(offers, "job")
    sending.note_ready(READY._replace(holds_pages=False))
    offer(offers)
    assert sending.frame(every_worker) == b""
