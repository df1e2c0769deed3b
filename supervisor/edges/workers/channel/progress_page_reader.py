"""What has a rank stamped so far? Reads its shared page and its progress frames with distrust.

A stamp that can't be true (from the future, older than the previous one, out of bounds) is ignored and counted: the
last true one stays. So a rank can harm only itself, and a broken one is found silent.
"""

from __future__ import annotations

import mmap
import os
import struct

import msgspec
from holdfast_wire import page_layout

from supervisor.core.facts import CallWatch, Progress, WatchMode
from supervisor.edges.workers import sealed_memory
from supervisor.edges.workers.channel import worker_frames as frames
from supervisor.ports.edges import Clock

NS_PER_S = 1_000_000_000
CLOCK_TOLERANCE_NS = NS_PER_S  # clocks that differ by more are not the same clock
COUNT_MAX = 1 << 53
TICK_INTERVAL_NS_MAX = 60 * NS_PER_S

_WATCH_MODES = {page_layout.WATCH_ON: WatchMode.ON, page_layout.WATCH_UNWINDING: WatchMode.UNWINDING}


def _check_handed(descriptor: int) -> None:
    """Raises OSError or ValueError unless it is a page as we make them: a descriptor may be anything."""
    if not sealed_memory.is_sealed(descriptor):
        raise ValueError("cannot use the page: it is not sealed")
    if os.fstat(descriptor).st_size != page_layout.PAGE_BYTES:
        raise ValueError("cannot use the page: it has another size")
    (version,) = struct.unpack("=q", os.pread(descriptor, 8, page_layout.WORD_LAYOUT * 8))
    if version != page_layout.LAYOUT_VERSION:
        raise ValueError(f"cannot use the page: its layout is {version}, not {page_layout.LAYOUT_VERSION}")


def now_ns(clock: Clock) -> int:
    """Returns the time on the clock of the stamps."""
    return int(clock.now_s() * NS_PER_S)


class RawWatch(msgspec.Struct, frozen=True):
    """The Wrapper's words of the page. 0 means never."""

    watch: int
    since_ns: int
    tick_ns: int
    tick_interval_ns: int
    pending_since_ns: int
    ping_ns: int


class RawStamps(msgspec.Struct, frozen=True):
    """The stamps as the rank sent them, unchecked, on this node's clock. 0 means never or closed."""

    initialised_ns: int
    heartbeat_ns: int
    heartbeats: int
    out_of_section_since_ns: int
    first_step_seen: bool
    steps_since_first: int
    slots: tuple[tuple[int, int], ...]  # (slot, opened_ns) of the open slots
    call_watch: RawWatch | None = None  # None: nothing is watched


class ProgressPage:
    """One memfd that a rank writes and we read; we write the lease. `close` closes it; the rank's mapping stays."""

    def __init__(self, handed_fd: int | None = None) -> None:
        """Makes the page, or takes over one that an earlier supervisor made; closes the descriptor if that fails.

        Raises OSError if no descriptor or memory is left, and ValueError if that other one is not such a page.
        """
        if handed_fd is None:
            self.fd = sealed_memory.create("holdfast-progress")
        else:
            self.fd = handed_fd
        try:
            if handed_fd is None:
                sealed_memory.seal(self.fd, page_layout.PAGE_BYTES)
                os.pwrite(self.fd, struct.pack("=q", page_layout.LAYOUT_VERSION), page_layout.WORD_LAYOUT * 8)
            else:
                _check_handed(self.fd)
            self._map = mmap.mmap(self.fd, page_layout.PAGE_BYTES, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        except BaseException:  # whatever went wrong, the descriptor must not leak; raised again
            os.close(self.fd)
            raise
        self._words = memoryview(self._map).cast("q")

    @property
    def is_current(self) -> bool:
        """Whether the rank says that its stamps go to this page; older clients never say so."""
        return self._words[page_layout.WORD_USE] == page_layout.USE_CURRENT

    def set_lease(self, until_ns: int) -> None:
        """Writes until when the lease holds (CLOCK_BOOTTIME), or one of the page's LEASE_ values."""
        self._words[page_layout.WORD_LEASE_UNTIL_NS] = until_ns

    def close_descriptor(self) -> None:
        """Closes our descriptor: the rank has its own by now, and ours would only count against the limit.

        The mapping keeps another one, as mmap does before Python 3.13.
        """
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def close(self) -> None:
        """Unmaps the page. `read` must not be called afterwards."""
        self.close_descriptor()
        self._words.release()
        self._map.close()

    def read(self, slots_used: int) -> RawStamps:
        # Slots first: the rank stamps OUT_OF_SECTION_SINCE before it clears a slot, so the words read after a closed
        # slot contain its closing time.
        words = self._words
        start = page_layout.SECTION_SLOTS_START
        slots = tuple((slot, words[start + slot]) for slot in range(slots_used))
        return RawStamps(
            initialised_ns=words[page_layout.WORD_INITIALISED_NS],
            heartbeat_ns=words[page_layout.WORD_HEARTBEAT_NS],
            heartbeats=words[page_layout.WORD_HEARTBEATS],
            out_of_section_since_ns=words[page_layout.WORD_OUT_OF_SECTION_SINCE_NS],
            first_step_seen=words[page_layout.WORD_FIRST_STEP_SEEN] != 0,
            steps_since_first=words[page_layout.WORD_STEPS_SINCE_FIRST],
            slots=tuple((slot, opened_ns) for slot, opened_ns in slots if opened_ns != 0),
            call_watch=self._read_watch(),
        )

    def read_tallies(self, slots: int) -> list[int]:
        start = page_layout.SECTION_TALLIES_START
        return self._words[start : start + slots].tolist()

    def _read_watch(self) -> RawWatch | None:
        """Reads in the order that makes a rank look younger, never older, if it writes in between."""
        words = self._words
        watch = words[page_layout.WORD_WATCH]
        if watch == page_layout.WATCH_OFF:
            return None
        since_ns, ping_ns = words[page_layout.WORD_WATCH_SINCE_NS], words[page_layout.WORD_PING_NS]
        tick_ns = words[page_layout.WORD_TICK_NS]
        pending_since_ns = words[page_layout.WORD_PENDING_SINCE_NS]
        return RawWatch(watch, since_ns, tick_ns, words[page_layout.WORD_TICK_INTERVAL_NS], pending_since_ns, ping_ns)


def stamps_from_frame(told: frames.Progress, *, now_ns: int) -> RawStamps:
    """Converts ages to stamps at receipt: a delay of the frame makes a rank look younger, never older."""
    heartbeat_ns = 0 if told.heartbeat_age_ns is None else now_ns - told.heartbeat_age_ns
    return RawStamps(
        initialised_ns=0 if told.initialised_age_ns is None else now_ns - told.initialised_age_ns,
        heartbeat_ns=heartbeat_ns,
        heartbeats=told.heartbeats,
        out_of_section_since_ns=now_ns - told.out_of_section_age_ns,
        first_step_seen=told.first_step_seen,
        steps_since_first=told.steps_since_first,
        slots=tuple((slot, now_ns - age_ns) for slot, age_ns in told.open_sections),
        call_watch=_watch_from_frame(told.call_watch, now_ns) if told.call_watch is not None else None,
    )


def _watch_from_frame(told: frames.CallWatch, now_ns: int) -> RawWatch:
    return RawWatch(
        watch=told.watch,
        since_ns=now_ns - told.watch_since_age_ns,
        tick_ns=now_ns - told.tick_age_ns,
        tick_interval_ns=0,
        pending_since_ns=0 if told.pending_age_ns is None else now_ns - told.pending_age_ns,
        ping_ns=0 if told.ping_age_ns is None else now_ns - told.ping_age_ns,
    )


class TrueStamps(msgspec.Struct):
    """The last believable stamps of one connection. `ignored` counts the others."""

    section_names: tuple[str, ...]
    exact: bool  # stamps of a page never go back; those from ages jitter with the frame's delay
    ignored: int = 0
    initialised_ns: int = 0
    heartbeat_ns: int = 0
    heartbeats: int = 0
    out_of_section_since_ns: int = 0
    first_step_seen: bool = False
    steps_since_first: int = 0
    open_slots: dict[int, int] = msgspec.field(default_factory=dict[int, int])
    last_opened_ns: dict[int, int] = msgspec.field(default_factory=dict[int, int])
    call_watch: CallWatch | None = None

    def take(self, raw: RawStamps, *, now_ns: int) -> None:
        """Takes new stamps; the caller must read `now_ns` after them."""
        self.initialised_ns = self._newer(raw.initialised_ns, self.initialised_ns, now_ns)
        self.out_of_section_since_ns = self._newer(raw.out_of_section_since_ns, self.out_of_section_since_ns, now_ns)
        self.heartbeat_ns = self._newer(raw.heartbeat_ns, self.heartbeat_ns, now_ns)
        if self.heartbeats <= raw.heartbeats <= COUNT_MAX:
            self.heartbeats = raw.heartbeats
        else:
            self.ignored += 1
        self.first_step_seen = self.first_step_seen or raw.first_step_seen
        if abs(raw.steps_since_first) <= COUNT_MAX:
            self.steps_since_first = raw.steps_since_first
        else:
            self.ignored += 1
        self._take_slots(dict(raw.slots), now_ns)
        self._take_watch(raw.call_watch, now_ns)

    def _take_watch(self, raw: RawWatch | None, now_ns: int) -> None:
        if raw is None or raw.watch == page_layout.WATCH_OFF:
            self.call_watch = None
            return
        stamps = (raw.since_ns, raw.tick_ns, raw.pending_since_ns, raw.ping_ns)
        is_true = all(0 <= stamp_ns <= now_ns + CLOCK_TOLERANCE_NS for stamp_ns in stamps) and raw.since_ns > 0
        if not is_true or raw.watch not in _WATCH_MODES or not 0 <= raw.tick_interval_ns <= TICK_INTERVAL_NS_MAX:
            self.ignored += 1
            return
        # Until the next tick is due, the main thread may have made progress that was not checked yet.
        progressed_ns = raw.pending_since_ns or raw.tick_ns + raw.tick_interval_ns
        self.call_watch = CallWatch(
            mode=_WATCH_MODES[raw.watch],
            since_s=raw.since_ns / NS_PER_S,
            progressed_at_s=progressed_ns / NS_PER_S,
            ping_at_s=raw.ping_ns / NS_PER_S if raw.ping_ns else None,
        )

    def _take_slots(self, raw: dict[int, int], now_ns: int) -> None:
        for slot in list(self.open_slots):
            if slot not in raw:
                del self.open_slots[slot]
        for slot, opened_ns in raw.items():
            if slot >= len(self.section_names):
                self.ignored += 1
                continue
            if self._believes(opened_ns, self.last_opened_ns.get(slot, 0), now_ns):
                self.open_slots[slot] = self.last_opened_ns[slot] = min(opened_ns, now_ns)
            else:
                self.ignored += 1

    def _newer(self, stamp_ns: int, before_ns: int, now_ns: int) -> int:
        if stamp_ns == 0 and before_ns == 0:
            return 0
        if not self._believes(stamp_ns, before_ns, now_ns):
            self.ignored += 1
            return before_ns
        return min(stamp_ns, now_ns)

    def _believes(self, stamp_ns: int, before_ns: int, now_ns: int) -> bool:
        earliest_ns = before_ns if self.exact else before_ns - CLOCK_TOLERANCE_NS
        return stamp_ns > 0 and earliest_ns <= stamp_ns <= now_ns + CLOCK_TOLERANCE_NS

    def progress(self, *, read_at_s: float) -> Progress:
        # A rank that is only in a wrapped call has promised no heartbeats or sections: its silence has not begun.
        initialised_at_s = self.initialised_ns / NS_PER_S if self.initialised_ns else read_at_s
        out_of_section_ns = self.out_of_section_since_ns if self.initialised_ns else 0
        return Progress(
            initialised_at_s=initialised_at_s,
            out_of_section_since_s=out_of_section_ns / NS_PER_S if out_of_section_ns else initialised_at_s,
            heartbeat_at_s=self.heartbeat_ns / NS_PER_S if self.heartbeat_ns else None,
            heartbeats=self.heartbeats,
            open_sections=tuple(
                (self.section_names[slot], opened_ns / NS_PER_S)
                for slot, opened_ns in sorted(self.open_slots.items(), key=lambda entry: entry[1])
            ),
            first_step_seen=self.first_step_seen,
            steps_since_first=self.steps_since_first,
            read_at_s=read_at_s,
            call_watch=self.call_watch,
        )
