"""When did the main thread of each rank last execute bytecode, if its script need not say anything?

Each spawner of such a job has a memory file with a page for each worker (holdfast_wire.auto_heartbeat_slots). As with
the pages of clients, a stamp that can't be true is not believed, nor a page of another layout: nobody judges that rank.
"""

from __future__ import annotations

import mmap
import os

from holdfast_wire import auto_heartbeat_slots as layout
from holdfast_wire import page_layout

from supervisor.edges.workers import sealed_memory

NS_PER_S = 1_000_000_000
CLOCK_TOLERANCE_NS = NS_PER_S
TICK_INTERVAL_NS_MAX = 60 * NS_PER_S
TICK_LATE_NS = NS_PER_S // 12  # a busy machine lets a thread wait


class AutoHeartbeatPages:
    """The memory file of one spawner."""

    def __init__(self, workers: int = 0, *, descriptor: int = -1) -> None:
        """Makes the file for so many workers, or takes over that of an earlier supervisor; owns the descriptor.

        Raises OSError if there is no descriptor or memory left, and ValueError if that other one is not such a file.
        """
        made = descriptor < 0
        self.fd = sealed_memory.create("holdfast-main-threads") if made else descriptor
        try:
            if made:
                sealed_memory.seal(self.fd, layout.file_bytes(workers))
            elif not sealed_memory.is_sealed(self.fd):
                raise ValueError("cannot use the memory file of main threads: it is not sealed")
            size_bytes = os.fstat(self.fd).st_size
            self._map = mmap.mmap(self.fd, size_bytes, mmap.MAP_SHARED, mmap.PROT_READ)
        except BaseException:  # whatever went wrong, the descriptor must not leak; raised again
            os.close(self.fd)
            raise
        self._words = memoryview(self._map).cast("q")
        self._workers = layout.workers_in(size_bytes)

    def close(self) -> None:
        """Closes it. Idempotent; the spawner has its own descriptor."""
        if self.fd >= 0:
            self._words.release()
            self._map.close()
            os.close(self.fd)
            self.fd = -1

    def executed_at_s(self, local_rank: int, now_s: float) -> float | None:
        """Returns when the main thread may have executed bytecode last; None: the rank is not watched."""
        if self.fd < 0 or not 0 <= local_rank < self._workers or not self._is_held(local_rank):
            return None
        words, at = self._words, layout.page_offset(local_rank) // 8
        if (words[at + page_layout.WORD_LAYOUT] or page_layout.LAYOUT_UNSTATED) != page_layout.LAYOUT_VERSION:
            return None  # of a worker of another version
        if words[at + page_layout.WORD_WATCH] != page_layout.WATCH_ON:
            return None
        # The tick first: a worker that stamps in between looks younger, never older.
        tick_ns, silent_since_ns = words[at + page_layout.WORD_TICK_NS], words[at + page_layout.WORD_PENDING_SINCE_NS]
        interval_ns = words[at + page_layout.WORD_TICK_INTERVAL_NS]
        latest_ns = int(now_s * NS_PER_S) + CLOCK_TOLERANCE_NS
        if not 0 < tick_ns <= latest_ns or not 0 <= silent_since_ns <= latest_ns:
            return None
        if not 0 <= interval_ns <= TICK_INTERVAL_NS_MAX:
            return None
        # Until the next tick, which may be late, the main thread may have made progress that was not checked yet.
        return (silent_since_ns or tick_ns + interval_ns + TICK_LATE_NS) / NS_PER_S

    def _is_held(self, local_rank: int) -> bool:
        try:
            return layout.is_held(self.fd, local_rank)
        except OSError:
            return False


class MainThreads:
    """The pages of all workers that run, whichever spawner of their job has started them."""

    def __init__(self) -> None:
        self._pages: dict[tuple[str, int, int], AutoHeartbeatPages] = {}

    def note(self, job_id: str, cycle: int, local_rank: int, pages: AutoHeartbeatPages) -> None:
        """Notes that the worker was started with a page in this file. A later worker takes an earlier one's place."""
        self._pages[job_id, cycle, local_rank] = pages

    def forget(self, job_id: str, cycle: int, local_rank: int) -> None:
        self._pages.pop((job_id, cycle, local_rank), None)

    def forget_all(self, pages: AutoHeartbeatPages) -> None:
        """Forgets the workers of a spawner that is gone."""
        for key in [key for key, each in self._pages.items() if each is pages]:
            del self._pages[key]

    def executed_at_s(self, job_id: str, cycle: int, local_rank: int, now_s: float) -> float | None:
        """Returns when the rank's main thread may have executed bytecode last; None: the rank is not watched."""
        pages = self._pages.get((job_id, cycle, local_rank))
        return pages.executed_at_s(local_rank, now_s) if pages is not None else None
