"""What do nodes tell of their ranks' sections, and what is said of those that are slow?"""

from __future__ import annotations

import msgspec

from supervisor.core.facts import JobEvent


class RankSections(msgspec.Struct, frozen=True):
    """Since the rank's connection began. In the order of the names that come with it."""

    rank: int
    times: tuple[int, ...]  # how often each was closed
    total_s: tuple[float, ...]  # how long each was open in all, when it was closed


class SectionsTold(msgspec.Struct, frozen=True):
    """Ranks of one node; those of which nothing is new may be missing."""

    node: str
    cycle: int
    names: tuple[str, ...]
    ranks: tuple[RankSections, ...]


class Straggler(msgspec.Struct, frozen=True):
    """One rank, or all ranks that a node has, while they are slow in one section."""

    section: str
    node: str
    ranks: tuple[int, ...]
    is_node: bool  # all of the node's ranks that run the section are slow
    ratio: float  # to the median of all ranks; of several ranks, the lowest
    took_s: float  # each time
    median_s: float
    of_ranks: int  # so many were compared
    reason: str  # the sentence behind it


class Tell(msgspec.Struct, frozen=True):
    """For journal, log and watchers."""

    event: JobEvent


Event = SectionsTold
Action = Tell
