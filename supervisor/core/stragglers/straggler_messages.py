"""What do nodes report about their ranks' sections, and what is reported about slow ranks?"""

from __future__ import annotations

import msgspec

from supervisor.core.facts import JobEvent


class RankSections(msgspec.Struct, frozen=True):
    """Counts since the rank connected, in the order of the names that come with them."""

    rank: int
    times: tuple[int, ...]  # how often each was closed
    total_s: tuple[float, ...]  # how long each was open in all, when it was closed


class SectionsTold(msgspec.Struct, frozen=True):
    """The sections of one node's ranks; ranks without news may be missing."""

    node: str
    cycle: int
    names: tuple[str, ...]
    ranks: tuple[RankSections, ...]


class Straggler(msgspec.Struct, frozen=True):
    """One rank, or all ranks of one node, that are currently slow in one section."""

    section: str
    node: str
    ranks: tuple[int, ...]
    is_node: bool  # all of the node's ranks that run the section are slow
    ratio: float  # to the median of all ranks; for several ranks, the lowest
    took_s: float  # each time
    median_s: float
    of_ranks: int  # how many were compared
    reason: str  # the sentence behind it


class Tell(msgspec.Struct, frozen=True):
    """Reports a straggler to the journal, the log and watchers."""

    event: JobEvent


Event = SectionsTold
Action = Tell
