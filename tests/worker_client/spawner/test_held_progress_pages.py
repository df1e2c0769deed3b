"""Which pages does a spawner hold, and do they reach the next supervisor with the right ranks?"""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Callable, Generator

import pytest
from holdfast_wire import framing
from holdfast_wire.spawner_link import HeldPages, HoldPages, decode

from worker_client.spawner import held_progress_pages
from worker_client.spawner.held_progress_pages import Pages
from worker_client.spawner.supervisor_link import Link

Make = Callable[[], tuple[int, int]]


@pytest.fixture
def make() -> Generator[Make]:
    """Yields a function that makes a page: its inode, and a descriptor that the test or its subject closes."""
    before = len(os.listdir("/proc/self/fd"))

    def make() -> tuple[int, int]:
        fd = os.memfd_create("page")
        return os.fstat(fd).st_ino, fd

    yield make
    assert len(os.listdir("/proc/self/fd")) == before, "a descriptor was left open"


def handed_over(pages: Pages) -> tuple[list[HeldPages], dict[tuple[int, int], int]]:
    """Returns what the next supervisor hears, and the inode that came for each rank."""
    ours, theirs = socket.socketpair()
    with theirs:
        link = Link(ours.detach())
        pages.hand_over(link)
        decoder, heard, arrived = framing.Decoder(frame_bytes_max=1 << 20), list[HeldPages](), list[int]()
        while not heard or heard[-1].more:
            link.flush()
            data, descriptors, _, _ = socket.recv_fds(theirs, 65536, 253)
            arrived += descriptors
            for payload in decoder.feed(data):
                message = decode(payload)
                assert isinstance(message, HeldPages)
                heard.append(message)
        link.flush()
        assert not link.has_unsent
        os.close(link.fd)
    inodes = {os.fstat(fd).st_ino for fd in arrived}
    for fd in arrived:
        os.close(fd)
    named = {(cycle, local_rank): inode for message in heard for cycle, local_rank, inode, _ in message.pages}
    assert set(named.values()) == inodes
    return heard, named


def test_pages_are_told_apart_by_their_inodes_whatever_the_order(make: Make) -> None:
    pages = Pages()
    (first, fd_a), (second, fd_b), (third, fd_c) = make(), make(), make()
    arrived = [fd_c, fd_b, fd_a]
    pages.hold(HoldPages(((0, 0, first, "a"), (0, 1, second, "b"))), arrived)
    pages.hold(HoldPages(((0, 2, third, "c"), (0, 3, 1, "lost on the way"))), arrived)
    assert arrived == []
    _, named = handed_over(pages)
    assert named == {(0, 0): first, (0, 1): second, (0, 2): third}
    _, again = handed_over(pages)
    assert again == named, "the supervisor after the next one needs them, too"
    pages.drop_cycle(0)


def test_a_page_goes_with_its_worker_and_makes_room_for_a_later_one(make: Make) -> None:
    pages = Pages()
    (first, fd_a), (second, fd_b) = make(), make()
    pages.hold(HoldPages(((4, 1, first, ""),)), [fd_a])
    pages.hold(HoldPages(((4, 1, second, ""),)), [fd_b])
    assert handed_over(pages)[1] == {(4, 1): second}
    pages.hold(HoldPages(((4, 1, first, ""),)), [])
    assert handed_over(pages)[1] == {}, "the rank has another page, which did not come"
    pages.drop(4, 1)
    pages.drop_cycle(4)


def test_many_pages_take_several_messages(make: Make) -> None:
    pages = Pages()
    made = [make() for _ in range(300)]
    for start in range(0, 300, 100):
        part = made[start : start + 100]
        named = tuple((0, start + number, inode, "") for number, (inode, _) in enumerate(part))
        pages.hold(HoldPages(named), [fd for _, fd in part])
    heard, named = handed_over(pages)
    assert (len(heard), [message.more for message in heard]) == (3, [True, True, False])
    assert named == {(0, number): inode for number, (inode, _) in enumerate(made)}
    pages.drop_cycle(0)


def test_a_quarter_of_the_descriptors_is_left_for_all_else(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    pages, (first, fd_a), (second, fd_b) = Pages(), make(), make()

    def limit(_: int) -> tuple[int, int]:
        return (fd_b // 3 + 1) * 4 - 4, 1 << 20

    monkeypatch.setattr(resource, "getrlimit", limit)
    assert held_progress_pages._descriptors_max() <= fd_b  # pyright: ignore[reportPrivateUsage]
    pages.hold(HoldPages(((0, 1, second, ""),)), [fd_b])
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, -1))  # pyright: ignore
    pages.hold(HoldPages(((0, 0, first, ""),)), [fd_a])
    assert handed_over(pages)[1] == {(0, 0): first}
    pages.drop_cycle(0)


def test_the_time_without_a_supervisor_that_serves_is_told(make: Make) -> None:
    pages = Pages()
    pages.be_served(5)
    assert handed_over(pages)[0][0].absences == ()
    pages.lose_supervisor(10)
    pages.lose_supervisor(12)  # one that came in between has served nothing
    assert handed_over(pages)[0][0].absences == ((10, 0),)
    pages.be_served(15)
    pages.be_served(16)
    pages.lose_supervisor(20)
    assert handed_over(pages)[0][0].absences == ((10, 15), (20, 0))
