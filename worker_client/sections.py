"""Which sections of this rank are open, and what was the longest time in each?

This path is as hot as heartbeat_intervals.py and written like it: no lock, few objects, words by their numbers
(page_layout.py). One object holds all that a section needs and belongs to one page. If a new page arrives during a
call, the call notices at its end and repeats its stamp there; only that and rare cases take the lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from sys import modules
from time import monotonic_ns
from typing import NamedTuple

from holdfast_wire.page_layout import (
    SECTION_SLOTS_MAX,
    SECTION_SLOTS_START,
    SECTION_TALLIES_MAX,
    SECTION_TALLIES_START,
    TALLY_MASK,
    WORD_NO_TALLY,
)

from worker_client import training_iteration
from worker_client.errors import RankMonitorClientError
from worker_client.progress_page_writer import Carried, ProgressPage
from worker_client.training_iteration import MEGATRON_MODULE

STEP = "step"  # the section whose openings are counted
UNSETTLED_NAMES_MAX = 1024  # sections remembered before it is known which ones are monitored


class Section:
    """One monitored name in one page."""

    __slots__ = ("is_step", "longest_ns", "opened_ns", "owner", "tally", "tally_word", "word", "words")

    def __init__(self, name: str, slot: int, page: ProgressPage) -> None:
        self.is_step = name == STEP
        self.words = page.words
        self.word = SECTION_SLOTS_START + slot
        self.tally_word = SECTION_TALLIES_START + slot if slot < SECTION_TALLIES_MAX else WORD_NO_TALLY
        self.tally = 0
        self.opened_ns: int | None = None  # None: closed
        self.longest_ns = 0
        self.owner: object = None


class _Early(NamedTuple):
    """A section that opened before the monitored ones were known."""

    opened_ns: int
    owner: object


class Sections:
    """The sections of one rank. Any thread may call, and so may a signal handler during another call.

    Each section has an owner, a mark of the client that opened it last: one client's end need not close another's
    sections. It is not the client itself, which the script may drop.
    """

    __slots__ = (
        "_by_name", "_counts_openings", "_early", "_first_iteration", "_lock", "_open", "_steps", "_uncertain",
        "attends", "is_settled", "longest_outside_ns", "outside_since_ns", "rouse",
    )  # fmt: skip

    def __init__(self, rouse: Callable[[], None]) -> None:
        """The next stamp after `attends` is set calls `rouse`."""
        self._lock = threading.RLock()
        self._by_name: dict[str, Section] = {}
        self._open = 0  # how many of them are open
        self._early: dict[str, _Early] = {}
        self._uncertain: set[str] = set()  # monitored, but perhaps opened before that was known
        self._steps = -1
        self._counts_openings = False  # else the framework's own counter is used
        self._first_iteration: int | None = None
        self.is_settled = False  # whether it is known which sections are monitored
        self.attends = False
        self.rouse = rouse
        self.longest_outside_ns = 0
        self.outside_since_ns = monotonic_ns()

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the names of the monitored sections."""
        return tuple(self._by_name)

    # --- stamps ---

    def start(self, name: str, owner: object = None) -> None:
        """Opens a section. Raises RankMonitorClientError if it is open."""
        by_name = self._by_name
        if name not in by_name:
            if not self.is_settled:
                self._remember(name, owner)
            return
        section = by_name[name]
        if section.opened_ns is not None:
            raise RankMonitorClientError(
                f"cannot start section {name!r}: it is open already; call end_section({name!r}) first"
            )
        section.opened_ns = now_ns = monotonic_ns()
        section.owner = owner
        if not self._open:
            outside_ns = now_ns - self.outside_since_ns
            if outside_ns > self.longest_outside_ns:
                self.longest_outside_ns = outside_ns
        self._open += 1
        words = section.words
        if section.is_step:
            self._steps = steps = self._steps + 1 if self._counts_openings else self._next_step()
            words[6] = steps
            words[5] = 1
        words[section.word] = now_ns
        if self.attends or by_name is not self._by_name:
            self._attend(name, section)

    def end(self, name: str) -> None:
        """Closes a section. Raises RankMonitorClientError if it is not open."""
        by_name = self._by_name
        if name not in by_name:
            if not self.is_settled:
                self._forget(name)
            return
        section = by_name[name]
        opened_ns = section.opened_ns
        if opened_ns is None:
            self._close_unopened(name)
            return
        section.opened_ns = None
        self.outside_since_ns = now_ns = monotonic_ns()
        self._open -= 1
        open_ns = now_ns - opened_ns
        if open_ns > section.longest_ns:
            section.longest_ns = open_ns
        words = section.words
        words[4] = now_ns
        words[section.word] = 0
        section.tally = tally = section.tally + open_ns + 0x400000000000  # one more close (TALLY_ONE) and the open time
        try:
            words[section.tally_word] = tally
        except ValueError:  # It overflows its word, once every 131,072 times.
            words[section.tally_word] = section.tally = tally & TALLY_MASK
        if self.attends or by_name is not self._by_name:
            self._attend(name, section)

    def end_all(self, owner: object = None) -> None:
        """Closes the sections that `owner` has opened, or all open ones; it is not an error if there are none."""
        with self._lock:
            for name in self._opened_by(owner):
                self.end(name)
            self._early = {
                name: early for name, early in self._early.items() if owner is not None and early.owner is not owner
            }
            if owner is None:
                self._uncertain.clear()

    def drop(self, owner: object = None, *, since_ns: int = 0) -> None:
        """Closes what was left open, by `owner` or by anyone, since then; how long it was open says nothing."""
        with self._lock:
            for name in self._opened_by(owner, since_ns):
                section = self._by_name[name]
                longest_ns = section.longest_ns
                self.end(name)
                section.longest_ns = longest_ns
            self._early = {
                name: early
                for name, early in self._early.items()
                if early.opened_ns < since_ns or (owner is not None and early.owner is not owner)
            }

    def _opened_by(self, owner: object, since_ns: int = 0) -> list[str]:
        """Returns the open sections, the last name first; None: those of all owners."""
        return [
            name
            for name, section in reversed(self._by_name.items())
            if section.opened_ns is not None
            and section.opened_ns >= since_ns
            and (owner is None or section.owner is owner)
        ]

    def _attend(self, name: str, section: Section) -> None:
        """Does the rare extra work of a stamp."""
        with self._lock:
            if section.opened_ns is not None:
                self._uncertain.discard(name)
            self.attends = bool(self._uncertain)
            current = self._by_name.get(name)
            if current is not None and current is not section:
                self._repeat(section, current)
        self.rouse()

    def _repeat(self, section: Section, current: Section) -> None:
        """Repeats a stamp if a new page arrived meanwhile, which may have missed it."""
        current.opened_ns, current.owner = section.opened_ns, section.owner
        if current.is_step and self._steps >= 0:
            current.words[6] = self._steps
            current.words[5] = 1
        current.words[4] = self.outside_since_ns
        current.words[current.word] = current.opened_ns or 0
        self._count_open()

    def _remember(self, name: str, owner: object) -> None:
        with self._lock:
            if self.is_settled:
                self.start(name, owner)  # it has just become known
            elif len(self._early) < UNSETTLED_NAMES_MAX:
                self._early.setdefault(name, _Early(monotonic_ns(), owner))

    def _forget(self, name: str) -> None:
        with self._lock:
            if self.is_settled:
                self.end(name)
            elif self._early.pop(name, None) is not None:
                self.outside_since_ns = monotonic_ns()

    def _close_unopened(self, name: str) -> None:
        with self._lock:
            if name not in self._uncertain:
                raise RankMonitorClientError(
                    f"cannot end section {name!r}: it is not open; call start_section({name!r}) first"
                )
            self._uncertain.discard(name)

    def _count_open(self) -> None:
        self._open = sum(section.opened_ns is not None for section in self._by_name.values())

    def _next_step(self) -> int:
        """Returns the steps since the cycle's first, by the framework's own counter if it has one."""
        if MEGATRON_MODULE not in modules:
            self._counts_openings = True
            return self._steps + 1
        iteration = training_iteration.current()
        if iteration is None:
            return self._steps + 1
        if self._first_iteration is None:
            self._first_iteration = iteration - max(self._steps + 1, 0)
        return max(iteration - self._first_iteration, 0)  # a counter that is set back is not an error

    # --- the connection ---

    def move(self, page: ProgressPage, names: Sequence[str], carried: Carried) -> None:
        """Continues in a new page with these names. Called on the channel thread."""
        with self._lock:
            self.attends = True  # a stamp in progress waits for the lock, and repeats itself
            before, was_settled = self._by_name, self.is_settled
            after = {name: Section(name, slot, page) for slot, name in enumerate(names[:SECTION_SLOTS_MAX])}
            if not was_settled:
                self.outside_since_ns = carried.now_ns
            if was_settled or len(self._early) >= UNSETTLED_NAMES_MAX:
                self._uncertain |= after.keys() - before.keys()
            for name, section in after.items():
                self._carry(section, before.get(name), self._early.pop(name, None))
            self._early.clear()
            self._uncertain = {name for name in self._uncertain if name in after and after[name].opened_ns is None}
            self._write(page, after, carried)
            self._by_name = after
            self.is_settled = True
            self._count_open()

    def _carry(self, section: Section, before: Section | None, early: _Early | None) -> None:
        if before is not None:
            section.opened_ns, section.owner = before.opened_ns, before.owner
            section.longest_ns = before.longest_ns
        elif early is not None:
            section.opened_ns, section.owner = early
            if section.is_step:
                self._steps = self._next_step()

    def _write(self, page: ProgressPage, after: dict[str, Section], carried: Carried) -> None:
        page.leave_sections(carried.stamp(self.outside_since_ns))
        if self._steps >= 0:
            page.take_step(self._steps)
        for section in after.values():
            if section.opened_ns is not None:
                section.words[section.word] = carried.stamp(section.opened_ns)

    def detach(self, page: ProgressPage) -> None:
        """Keeps later stamps in `page`, and replaces a lock that a forked child's parent may hold."""
        self._lock = threading.RLock()
        self.attends = False
        for section in self._by_name.values():
            section.words = page.words

    # --- what was measured ---

    def begin(self, now_ns: int) -> None:
        """Starts the time outside sections."""
        if not self._open:
            self.outside_since_ns = now_ns

    def measure(self) -> tuple[int, dict[str, int]]:
        """Returns the longest time outside sections, including the current one, and in each closed section."""
        with self._lock:
            self._count_open()
            if self.is_settled and not self._open:
                running_ns = monotonic_ns() - self.outside_since_ns
                self.longest_outside_ns = max(self.longest_outside_ns, running_ns)
            return self.longest_outside_ns, {name: section.longest_ns for name, section in self._by_name.items()}
