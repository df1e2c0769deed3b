"""How often has a rank closed each section since it connected, and for how long was each open? Reads with distrust."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast_wire import page_layout

from supervisor.edges.workers.channel.progress_page_reader import NS_PER_S

_TIME_MASK = page_layout.TALLY_ONE - 1


class SectionTallies:
    """The tallies of one connection. They wrap around, so they must be read regularly (holdfast_wire.page_layout)."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names[: page_layout.SECTION_TALLIES_MAX])
        self.times = [0] * len(self.names)
        self._open_ns = [0] * len(self.names)
        self._tallies = [0] * len(self.names)

    def take(self, tallies: Sequence[int]) -> None:
        """Adds new tallies. A rank that writes nonsense makes only itself look slow or fast."""
        for slot, (tally, before) in enumerate(zip(tallies, self._tallies, strict=True)):
            if tally == before or tally < 0:
                continue
            more = (tally - before) & page_layout.TALLY_MASK
            self._tallies[slot] = tally
            self.times[slot] += more >> page_layout.TALLY_TIME_BITS
            self._open_ns[slot] += more & _TIME_MASK

    @property
    def total_s(self) -> list[float]:
        return [each / NS_PER_S for each in self._open_ns]
