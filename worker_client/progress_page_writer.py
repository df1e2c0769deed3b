"""How does a rank record that it is alive, so that its supervisor can read it?

This module writes what a new connection learns about the past. The hot path's stamps are in heartbeat_intervals.py and
sections.py, which write the same words. Only the two constructors make system calls or block.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from dataclasses import dataclass
from typing import NamedTuple

from holdfast_wire import page_layout as layout


class PageUnusableError(ValueError):
    """Raised when a memfd can't serve as a page; progress is then sent in frames."""


@dataclass(frozen=True, slots=True)
class WatchSnapshot:
    """What a page says about a wrapped call, in the words of page_layout.py."""

    watch: int
    since_ns: int
    tick_ns: int
    pending_since_ns: int
    ping_ns: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The contents of a page. Times are CLOCK_MONOTONIC ns; 0 is never."""

    initialised_ns: int
    heartbeat_ns: int
    heartbeats: int
    out_of_section_since_ns: int
    first_step_seen: bool
    steps_since_first: int
    open_sections: tuple[tuple[int, int], ...]  # (slot, opened)
    call_watch: WatchSnapshot | None = None  # None: no wrapped call is watched


class Carried(NamedTuple):
    """How stamps move from the page of a lost connection to that of a new one. 0: there was no earlier one."""

    lost_ns: int
    now_ns: int

    def stamp(self, before_ns: int) -> int:
        """Returns when a silence that began at `before_ns` counts as begun: only the observed time counts."""
        return self.now_ns - max(self.lost_ns - before_ns, 0)


class ProgressPage:
    """The page of one connection: shared with the supervisor, or private and sent in frames."""

    __slots__ = ("is_shared", "words")

    def __init__(self, words: memoryview[int], *, is_shared: bool) -> None:
        self.words = words
        self.is_shared = is_shared

    @classmethod
    def private(cls) -> ProgressPage:
        return cls(memoryview(bytearray(layout.PAGE_BYTES)).cast("q"), is_shared=False)

    @classmethod
    def shared(cls, descriptor: int) -> ProgressPage:
        """Maps the memfd; the caller may close the descriptor. Raises PageUnusableError or OSError."""
        if os.fstat(descriptor).st_size < layout.PAGE_BYTES:
            raise PageUnusableError("cannot use the page: it is too small")
        # If another process could shrink the page, the next heartbeat would end this one with SIGBUS.
        if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise PageUnusableError("cannot use the page: it is not sealed against shrinking")
        words = memoryview(mmap.mmap(descriptor, layout.PAGE_BYTES)).cast("q")
        if words[layout.WORD_LAYOUT] != layout.LAYOUT_VERSION:
            version = words[layout.WORD_LAYOUT]
            raise PageUnusableError(f"cannot use the page: its layout is {version}, not {layout.LAYOUT_VERSION}")
        return cls(words, is_shared=True)

    def take_up(self) -> None:
        """Marks the page as the one that has the rank's stamps, for a supervisor that gets it from another one."""
        self.words[layout.WORD_USE] = layout.USE_CURRENT

    def leave(self) -> None:
        """Marks the page as one that gets no more stamps, so that nobody judges the rank by it."""
        self.words[layout.WORD_USE] = layout.USE_LEFT

    def begin(self, now_ns: int) -> None:
        """Marks the start of monitoring. The last store to a fresh page, so that a reader sees all or nothing."""
        self.words[layout.WORD_INITIALISED_NS] = now_ns

    def leave_sections(self, now_ns: int) -> None:
        self.words[layout.WORD_OUT_OF_SECTION_SINCE_NS] = now_ns

    def beat(self, now_ns: int, heartbeats: int) -> None:
        self.words[layout.WORD_HEARTBEAT_NS] = now_ns
        self.words[layout.WORD_HEARTBEATS] = heartbeats

    def take_step(self, steps_since_first: int) -> None:
        words = self.words
        words[layout.WORD_STEPS_SINCE_FIRST] = steps_since_first
        words[layout.WORD_FIRST_STEP_SEEN] = 1

    def snapshot(self) -> Snapshot:
        words = self.words
        start, end = layout.SECTION_SLOTS_START, layout.SECTION_SLOTS_START + layout.SECTION_SLOTS_MAX
        # Slots before the time outside: a section that closes in between is then seen open, never lost.
        slots = tuple((slot, opened) for slot, opened in enumerate(words[start:end].tolist()) if opened)
        return Snapshot(
            open_sections=slots,
            initialised_ns=words[layout.WORD_INITIALISED_NS],
            heartbeat_ns=words[layout.WORD_HEARTBEAT_NS],
            heartbeats=words[layout.WORD_HEARTBEATS],
            out_of_section_since_ns=words[layout.WORD_OUT_OF_SECTION_SINCE_NS],
            first_step_seen=bool(words[layout.WORD_FIRST_STEP_SEEN]),
            steps_since_first=words[layout.WORD_STEPS_SINCE_FIRST],
            call_watch=self._call_watch(),
        )

    @property
    def is_call_watched(self) -> bool:
        return self.words[layout.WORD_WATCH] != layout.WATCH_OFF

    def _call_watch(self) -> WatchSnapshot | None:
        words = self.words
        watch = words[layout.WORD_WATCH]
        if watch == layout.WATCH_OFF:
            return None
        return WatchSnapshot(
            watch=watch,
            since_ns=words[layout.WORD_WATCH_SINCE_NS],
            tick_ns=words[layout.WORD_TICK_NS],
            pending_since_ns=words[layout.WORD_PENDING_SINCE_NS],
            ping_ns=words[layout.WORD_PING_NS],
        )
