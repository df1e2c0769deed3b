"""A new connection's page may come at any moment, even during a stamp: none is lost or left behind."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker_client import heartbeat_intervals, sections
from worker_client.errors import RankMonitorClientError
from worker_client.progress_page_writer import ProgressPage, Snapshot
from worker_client.rank_progress import Progress

NAMES = ("step", "setup", "checkpointing")
ROUNDS = 300
MONOTONIC_NS = sections.monotonic_ns

calls = st.lists(
    st.one_of(
        st.tuples(st.just("beat"), st.just("")),
        st.tuples(st.sampled_from(("start", "end")), st.sampled_from((*NAMES, "not monitored"))),
        st.tuples(st.just("end all"), st.just("")),
    ),
    max_size=12,
)


class Overtaking:
    """Words of a page, and a clock; at the n-th use, another page comes."""

    def __init__(self, page: ProgressPage, use: Callable[[], None]) -> None:
        self._words = page.words
        self._use = use

    def __setitem__(self, word: int, value: int) -> None:
        self._use()
        self._words[word] = value
        self._use()

    def __getitem__(self, word: int | slice) -> object:
        return self._words[word]


class Rank:
    """Progress under a connection that is replaced at the given uses, and its expected values."""

    def __init__(self, replaced_at: set[int], names_after: tuple[str, ...]) -> None:
        self.progress = Progress()
        self.progress.begin()
        self._replaced_at = replaced_at
        self._names_after = names_after
        self._uses = 0
        self._is_replacing = False
        self.beats = self.steps = 0
        self.names = NAMES
        self.open: set[str] = set()
        self._adopt()

    def clock(self) -> int:
        self._use()
        now_ns = MONOTONIC_NS()
        self._use()
        return now_ns

    def _use(self) -> None:
        if self._is_replacing:
            return
        self._uses += 1
        if self._uses in self._replaced_at:
            self.names = self._names_after
            self._adopt()

    def _adopt(self) -> None:
        self._is_replacing = True
        self.page = ProgressPage.private()
        overtaking = Overtaking(self.page, self._use)
        self.progress.adopt(ProgressPage(overtaking, is_shared=True), self.names)  # pyright: ignore[reportArgumentType]
        self._is_replacing = False

    def call(self, kind: str, name: str) -> None:
        match kind:
            case "beat":
                self.progress.heartbeats.beat()
                self.beats += 1
            case "start" if name not in self.open:
                self.progress.sections.start(name)
                self.open.add(name)
                self.steps += name == "step"
            case "end" if name in self.open:
                self.progress.sections.end(name)
                self.open.discard(name)
            case "end all":
                self.progress.sections.end_all()
                self.open.clear()
            case _:
                pass

    def snapshot(self) -> Snapshot:
        return self.page.snapshot()


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Makes the interpreter switch threads as often as possible."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before_s)


@given(
    made=calls,
    replaced_at=st.sets(st.integers(1, 60), max_size=3),
    names_after=st.permutations(NAMES),
)
def test_the_last_page_shows_what_was_called(
    made: list[tuple[str, str]], replaced_at: set[int], names_after: list[str]
):
    rank = Rank(replaced_at, tuple(names_after))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sections, "monotonic_ns", rank.clock)
        patched.setattr(heartbeat_intervals, "monotonic_ns", rank.clock)
        for kind, name in made:
            rank.call(kind, name)
    shown = rank.snapshot()
    opened = {rank.names[slot] for slot, _ in shown.open_sections}
    assert opened == rank.open & set(NAMES)
    assert shown.heartbeats == rank.beats
    assert bool(shown.heartbeat_ns) == bool(rank.beats)
    assert shown.first_step_seen == (rank.steps > 0)
    assert shown.steps_since_first == max(rank.steps - 1, 0)
    for name in rank.open & set(NAMES):
        with pytest.raises(RankMonitorClientError, match="open already"):
            rank.progress.sections.start(name)
        rank.progress.sections.end(name)
    assert rank.snapshot().open_sections == ()
    assert rank.snapshot().out_of_section_since_ns >= rank.snapshot().initialised_ns


@pytest.mark.usefixtures("hasty_threads")
def test_pages_that_come_while_another_thread_stamps():
    """The same with real threads; the interpreter chooses the moments."""
    progress = Progress()
    progress.begin()
    page = ProgressPage.private()
    progress.adopt(page, NAMES)
    is_over = threading.Event()
    rounds = 0

    def stamp() -> None:
        nonlocal rounds
        while not is_over.is_set():
            progress.heartbeats.beat()
            progress.sections.start("step")
            progress.sections.start("setup")
            progress.sections.end("step")
            progress.sections.end("setup")
            rounds += 1

    stamping = threading.Thread(target=stamp)
    stamping.start()
    until_s = time.monotonic() + 20
    names = NAMES
    while rounds < ROUNDS and time.monotonic() < until_s:
        page, names = ProgressPage.private(), names[::-1]
        progress.adopt(page, names)
    is_over.set()
    stamping.join(20)
    assert not stamping.is_alive()
    assert rounds >= ROUNDS
    progress.heartbeats.beat()
    shown = page.snapshot()
    assert shown.open_sections == ()
    assert shown.heartbeats == rounds + 1
    assert (shown.first_step_seen, shown.steps_since_first) == (True, rounds - 1)
    progress.sections.start("step")
    assert [names[slot] for slot, _ in page.snapshot().open_sections] == ["step"]
