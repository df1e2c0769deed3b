"""Which rank was interrupted by what, and how is that reported in one line?"""

from __future__ import annotations

import enum
import os
from collections.abc import Iterable
from dataclasses import dataclass

RANKS_SHOWN_MAX = 8  # beyond that, the first and the last half of them


class Interruption(enum.Enum):
    EXCEPTION = enum.auto()
    BASE_EXCEPTION = enum.auto()
    SOFT_TIMEOUT = enum.auto()
    HARD_TIMEOUT = enum.auto()
    TERMINATED = enum.auto()  # its process was found dead
    UNRESPONSIVE = enum.auto()  # its node was not heard
    MONITOR_PROCESS_EXCEPTION = enum.auto()  # kept for scripts that name it: here no monitor process can fail


@dataclass(frozen=True)
class InterruptionRecord:
    """`rank` is the number that it had in the interrupted iteration."""

    rank: int
    interruption: Interruption

    def __str__(self) -> str:
        return f"{self.rank}:{self.interruption.name}"

    @classmethod
    def from_str(cls, text: str) -> InterruptionRecord:
        """Reads what str() has written. Raises ValueError."""
        rank, colon, name = text.partition(":")
        if not colon or not rank.isdecimal() or name not in Interruption.__members__:
            raise ValueError(f"cannot read the interruption record {text!r}: expected <rank>:<interruption>")
        return cls(int(rank), Interruption[name])


def describe(records: Iterable[InterruptionRecord]) -> str:
    """Returns a text like "Interruption.EXCEPTION affecting ranks {1}", the kinds in the order in which they came.

    With NVRX_LOG_RANK_FORMAT_VERBOSE=1 no rank is left out, and neighbours are shown as ranges.
    """
    ranks: dict[Interruption, set[int]] = {}
    for record in records:
        ranks.setdefault(record.interruption, set()).add(record.rank)
    show = _ranges if os.environ.get("NVRX_LOG_RANK_FORMAT_VERBOSE") == "1" else _abridged
    return ", ".join(f"{kind} affecting ranks {show(sorted(affected))}" for kind, affected in ranks.items())


def _abridged(ranks: list[int]) -> str:
    if len(ranks) <= RANKS_SHOWN_MAX:
        return f"{{{', '.join(map(str, ranks))}}}"
    half = RANKS_SHOWN_MAX // 2
    shown = [*map(str, ranks[:half]), "...", *map(str, ranks[-half:])]
    return f"{{{', '.join(shown)}}} (total: {len(ranks)})"


def _ranges(ranks: list[int]) -> str:
    spans: list[tuple[int, int]] = []
    for rank in ranks:
        if spans and spans[-1][1] == rank - 1:
            spans[-1] = (spans[-1][0], rank)
        else:
            spans.append((rank, rank))
    return f"{{{', '.join(str(first) if first == last else f'{first}-{last}' for first, last in spans)}}}"
