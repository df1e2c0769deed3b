"""What is known of a rank that has not connected to this supervisor, but had connected to the one before?

The page that the earlier supervisor made still shows the rank's stamps. Without it, each silence counts from the moment
by which the rank should have connected.
"""

from __future__ import annotations

import anyio
import msgspec
from holdfast_wire.page_layout import SECTION_SLOTS_MAX

from supervisor.core.facts import Progress
from supervisor.core.rank_silence import without_absences
from supervisor.edges.workers.channel.progress_page_reader import NS_PER_S, ProgressPage, TrueStamps, now_ns
from supervisor.edges.workers.channel.rank_client import CLIENT_SHARE
from supervisor.edges.workers.page_hand_over import PageNote, ReturnedPage
from supervisor.edges.workers.stacks.stack_text import main_thread_first
from supervisor.edges.workers.stacks.stacks_signal import ask_by_signal
from supervisor.ports.edges import Clock
from supervisor.ports.timed_waits import pause

Key = tuple[str, int, int]  # job, cycle, local rank


class _Page(msgspec.Struct):
    page: ProgressPage
    note: PageNote
    stamps: TrueStamps
    absences: tuple[tuple[float, float], ...]


class _Rank(msgspec.Struct):
    expected: Progress  # counts without a current page
    page: _Page | None


class RecalledRanks:
    """The ranks that have not connected again yet."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ranks: dict[Key, _Rank] = {}

    def recall(self, key: Key, expected: Progress, page: ReturnedPage | None) -> None:
        self.forget(key)
        self._ranks[key] = _Rank(expected, self._taken_over(page) if page is not None else None)

    def forget(self, key: Key) -> None:
        """Forgets the rank: its client is back, or its cycle is over."""
        rank = self._ranks.pop(key, None)
        if rank is not None and rank.page is not None:
            rank.page.page.close()

    def forget_cycle(self, job_id: str, cycle: int) -> None:
        for key in [key for key in self._ranks if key[:2] == (job_id, cycle)]:
            self.forget(key)

    def progress(self, key: Key) -> Progress | None:
        """Returns the page as it is now. None if the rank is not known here."""
        rank = self._ranks.get(key)
        if rank is None or rank.page is None or not rank.page.page.is_current:
            return rank.expected if rank is not None else None
        read_at_s, found = self._clock.now_s(), rank.page
        found.stamps.take(found.page.read(len(found.stamps.section_names)), now_ns=now_ns(self._clock))
        return without_absences(found.stamps.progress(read_at_s=read_at_s), found.absences)

    async def ask_stacks(self, key: Key, timeout_s: float) -> str | None:
        """Returns what faulthandler prints in the worker, main thread first; None if that takes too long.

        As with a client, which is asked first: py-spy has that time, since it also says who holds the GIL.
        """
        rank = self._ranks.get(key)
        if rank is None or rank.page is None:
            return None
        note = rank.page.note
        with anyio.move_on_after(timeout_s):
            await pause(CLIENT_SHARE * timeout_s, why="py-spy's answer says more, and ends this wait")
            text = await ask_by_signal(note.pid, note.stacks_signal, note.stacks_fd)
            return None if text is None else main_thread_first(text)
        return None

    def _taken_over(self, returned: ReturnedPage) -> _Page | None:
        """Returns None if it can't be used. Owns the descriptor."""
        try:
            page = ProgressPage(returned.fd)
        except (OSError, ValueError):
            return None
        page.close_descriptor()
        note, back_ns = returned.note, now_ns(self._clock)
        # Earlier absences are in the stamps already: with each new page, the client moves them.
        absences = tuple(
            (lost_ns / NS_PER_S, (until_ns or back_ns) / NS_PER_S)
            for lost_ns, until_ns in returned.absences
            if lost_ns >= note.made_at_ns
        )
        stamps = TrueStamps(note.sections[:SECTION_SLOTS_MAX], exact=True)
        return _Page(page, note, stamps, absences)
