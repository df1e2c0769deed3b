"""What does a supervisor know of a rank that had connected to the one before it?"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable, Generator
from typing import NamedTuple

import pytest
from holdfast_wire import page_layout as layout

from supervisor.core.facts import Progress
from supervisor.edges.workers.channel.progress_page_reader import ProgressPage
from supervisor.edges.workers.channel.recalled_ranks import RecalledRanks
from supervisor.edges.workers.page_hand_over import PageNote, ReturnedPage

S = 1_000_000_000
F_ADD_SEALS, SEALS = 1033, 7
KEY = ("job", 3, 1)
EXPECTED = Progress(110.0, 110.0, 110.0)


class Clock:
    def now_s(self) -> float:
        return 100.0

    def boot_ns(self) -> int:
        return 0

    def unix_ns(self) -> int:
        return 0


class Written(NamedTuple):
    """The page of a rank: as the rank has it, and its descriptor."""

    words: memoryview[int]
    fd: int


@pytest.fixture
def written() -> Generator[Written]:
    made = ProgressPage()
    mapped = mmap.mmap(made.fd, layout.PAGE_BYTES)
    words = memoryview(mapped).cast("q")
    words[layout.WORD_USE] = layout.USE_CURRENT
    words[layout.WORD_INITIALISED_NS] = 50 * S
    words[layout.WORD_HEARTBEAT_NS] = 89 * S
    words[layout.WORD_HEARTBEATS] = 7
    words[layout.SECTION_SLOTS_START + 1] = 80 * S
    yield Written(words, made.fd)
    words.release()
    mapped.close()
    made.close()


def returned(page: Written, *absences: tuple[int, int], sections: tuple[str, ...] = ("a", "b")) -> ReturnedPage:
    note = PageNote(made_at_ns=60 * S, sections=sections, pid=0, stacks_signal=0, stacks_fd=-1)
    return ReturnedPage(os.dup(page.fd), note, absences)


def test_a_rank_is_known_by_its_page_and_the_time_without_a_supervisor_is_free(written: Written):
    ranks = RecalledRanks(Clock())
    # The first absence ended before the page was made, and the last one lasts until now.
    ranks.recall(KEY, EXPECTED, returned(written, (40 * S, 55 * S), (70 * S, 75 * S), (90 * S, 0)))
    found = ranks.progress(KEY)
    assert found is not None
    assert (found.initialised_at_s, found.heartbeat_at_s, found.heartbeats) == (65.0, 99.0, 7)
    assert (found.open_sections, found.read_at_s) == ((("b", 90.0),), 100.0)
    written.words[layout.WORD_HEARTBEAT_NS] = 95 * S  # it runs
    found = ranks.progress(KEY)
    assert found is not None
    assert found.heartbeat_at_s == 100.0
    ranks.forget_cycle("job", 4)
    assert ranks.progress(KEY) is not None
    ranks.forget_cycle("job", 3)
    assert ranks.progress(KEY) is None


@pytest.mark.parametrize("use", [layout.USE_UNKNOWN, layout.USE_LEFT])
def test_a_page_that_gets_no_stamps_judges_nobody(written: Written, use: int):
    ranks = RecalledRanks(Clock())
    ranks.recall(KEY, EXPECTED, returned(written, (90 * S, 0)))
    written.words[layout.WORD_USE] = use
    assert ranks.progress(KEY) == EXPECTED


def unsealed() -> int:
    fd = os.memfd_create("page")
    os.ftruncate(fd, layout.PAGE_BYTES)
    return fd


def small() -> int:
    fd = os.memfd_create("page", os.MFD_ALLOW_SEALING)
    fcntl.fcntl(fd, F_ADD_SEALS, SEALS)
    return fd


@pytest.mark.parametrize("make", [unsealed, small, lambda: os.pipe()[0]], ids=["unsealed", "small", "a pipe"])
def test_a_descriptor_of_something_else_is_no_page(make: Callable[[], int]):
    """The next read of a file that its writer can shrink would end this process."""
    ranks = RecalledRanks(Clock())
    note = PageNote(made_at_ns=0, sections=(), pid=0, stacks_signal=0, stacks_fd=-1)
    fd = make()
    ranks.recall(KEY, EXPECTED, ReturnedPage(fd, note, ()))
    assert ranks.progress(KEY) == EXPECTED
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_more_names_than_slots_are_not_read(written: Written):
    ranks = RecalledRanks(Clock())
    names = tuple(map(str, range(layout.PAGE_WORDS)))
    ranks.recall(KEY, EXPECTED, returned(written, sections=names))
    found = ranks.progress(KEY)
    assert found is not None
    assert found.open_sections == (("1", 80.0),)


async def test_nobody_is_asked_for_stacks_of_whom_nothing_is_known(written: Written):
    ranks = RecalledRanks(Clock())
    assert await ranks.ask_stacks(KEY, 0.1) is None
    ranks.recall(KEY, EXPECTED, None)
    assert await ranks.ask_stacks(KEY, 0.1) is None
    ranks.recall(KEY, EXPECTED, returned(written))
    assert await ranks.ask_stacks(KEY, 0.1) is None
