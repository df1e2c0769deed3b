"""Which rank was interrupted by what, and how is that reported in one line?"""

from __future__ import annotations

import enum
import os
from collections.abc import Iterable
from dataclasses import dataclass

RANKS_SHOWN_MAX = 8  # if there are more, half from the start and half from the end


class Interruption(enum.Enum):
    EXCEPTION = enum.auto()
    BASE_EXCEPTION = enum.auto()
    SOFT_TIMEOUT = enum.auto()
    HARD_TIMEOUT = enum.auto()
    TERMINATED = enum.auto()  # its process was found dead
    UNRESPONSIVE = enum.auto()  # its node did not answer
    MONITOR_PROCESS_EXCEPTION = enum.auto()  # for scripts that use the name; no monitor process exists here


@dataclass(frozen=True)
class InterruptionRecord:
    """One rank's interruption. `rank` is its number in the interrupted iteration."""

    rank: int
    interruption: Interruption

    def __str__(self) -> str:
        return f"{self.rank}:{self.interruption.name}"

    @classmethod
    def from_str(cls, text: str) -> InterruptionRecord:
        """Parses the output of str(). Raises ValueError."""
        rank, colon, name = text.partition(":")
        if not colon or not rank.isdecimal() or name not in Interruption.__members__:
            raise ValueError(
                f"cannot read the interruption record {text!r}: it is not <rank>:<interruption>; "
                f"write one of {', '.join(Interruption.__members__)} behind the colon"
            )
        return cls(int(rank), Interruption[name])


def describe(records: Iterable[InterruptionRecord]) -> str:
    """Returns a text like "Interruption.EXCEPTION affecting ranks {1}", with kinds in order of arrival.

    With NVRX_LOG_RANK_FORMAT_VERBOSE=1, all ranks are listed, consecutive ones as ranges.
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
