"""Are the numbers that a client writes at the end of a section read correctly, even after they wrap around?"""

from __future__ import annotations

import mmap

from holdfast_wire import page_layout
from hypothesis import given
from hypothesis import strategies as st

from supervisor.edges.workers.channel.progress_page_reader import ProgressPage
from supervisor.edges.workers.channel.section_tallies import SectionTallies

TAKEN = st.lists(
    st.lists(st.integers(0, 10**11), max_size=5), max_size=8
)  # of one section: the time of each use, between two readings


def _tally(tally: int, open_ns: int) -> int:
    """Adds to the tally as the client does."""
    return (tally + open_ns + page_layout.TALLY_ONE) & page_layout.TALLY_MASK


@given(
    TAKEN,
    st.sampled_from(
        [0, page_layout.TALLY_MASK, page_layout.TALLY_MASK - page_layout.TALLY_ONE, page_layout.TALLY_ONE - 5]
    ),
)
def test_what_is_written_is_read(taken: list[list[int]], start: int):
    tallies = SectionTallies(("step",))
    tallies.take([start])
    before = tallies.times[0], tallies.total_s[0]
    word = start
    for each in taken:
        for open_ns in each:
            word = _tally(word, open_ns)
        tallies.take([word])
    assert tallies.times[0] - before[0] == sum(map(len, taken))
    expected_s = sum(map(sum, taken)) / 1e9
    assert abs(tallies.total_s[0] - before[1] - expected_s) < 1e-6 * max(1.0, tallies.total_s[0])


def test_a_client_of_an_older_version_says_nothing():
    tallies = SectionTallies(("step", "eval"))
    tallies.take([0, 0])
    assert (tallies.times, tallies.total_s) == ([0, 0], [0.0, 0.0])


def test_nonsense_is_left_alone():
    tallies = SectionTallies(("step",))
    tallies.take([-5])
    assert tallies.times == [0]


def test_the_pages_last_words_are_tallies():
    mine = ProgressPage()
    theirs = mmap.mmap(mine.fd, page_layout.PAGE_BYTES)
    words = memoryview(theirs).cast("q")
    words[page_layout.SECTION_TALLIES_START + 1] = 7
    words[page_layout.PAGE_WORDS - 1] = 9
    tallies = mine.read_tallies(page_layout.SECTION_TALLIES_MAX)
    assert (tallies[0], tallies[1], tallies[-1], len(tallies)) == (0, 7, 9, page_layout.SECTION_TALLIES_MAX)
    assert len(SectionTallies([str(each) for each in range(256)]).names) == page_layout.SECTION_TALLIES_MAX
    words.release()
    theirs.close()
    mine.close()
