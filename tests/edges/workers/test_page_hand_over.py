"""Which pages wait for a spawner, and does none of their descriptors stay open?"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

from supervisor.edges.workers.page_hand_over import PAGES_AT_ONCE, PageNote, PageOffers, note_from, note_text

NOTE = PageNote(made_at_ns=7, sections=("step",), pid=12, stacks_signal=23, stacks_fd=5)


@pytest.fixture
def memfd() -> Generator[int]:
    fd = os.memfd_create("page")
    yield fd
    os.close(fd)


def every_worker(cycle: int, local_rank: int) -> bool:
    return True


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_note_crosses_and_one_of_another_version_is_no_note():
    assert note_from(note_text(NOTE)) == NOTE
    assert note_from("{}") is None
    assert note_from("later") is None


def test_nothing_waits_for_a_job_whose_spawner_takes_no_pages(memfd: int):
    offers, before = PageOffers(), open_descriptors()
    offers.offer("job", 0, 1, memfd, NOTE)
    assert offers.take("job", every_worker) == []
    assert open_descriptors() == before


def test_the_newest_page_of_a_rank_waits_until_it_is_taken_or_not_needed(memfd: int):
    offers, before = PageOffers(), open_descriptors()
    offers.accept("job")
    for local_rank in (0, 1, 2, 1):
        offers.offer("job", 0, local_rank, memfd, NOTE)
    offers.withdraw("job", 0, 2)
    assert open_descriptors() == before + 2
    assert offers.take("job", lambda cycle, local_rank: (cycle, local_rank) == (1, 0)) == []
    (page,) = offers.take("job", lambda cycle, local_rank: local_rank == 1)
    assert (page.cycle, page.local_rank, page.note) == (0, 1, NOTE)
    assert page.inode == os.fstat(memfd).st_ino
    os.close(page.fd)
    offers.end("job")
    offers.end("job")
    assert open_descriptors() == before


def test_one_message_has_only_as_many_descriptors_as_the_kernel_takes(memfd: int):
    offers = PageOffers()
    offers.accept("job")
    for local_rank in range(PAGES_AT_ONCE + 1):
        offers.offer("job", 0, local_rank, memfd, NOTE)
    taken = offers.take("job", every_worker)
    rest = offers.take("job", every_worker)
    assert (len(taken), len(rest)) == (PAGES_AT_ONCE, 1)
    for page in (*taken, *rest):
        os.close(page.fd)
