"""What does a list of samples say? Median, spread, percentiles, and ratios taken pair by pair."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Summary:
    """Summarizes at least one sample."""

    count: int
    median: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Summary:
        return cls(len(samples), statistics.median(samples), min(samples), max(samples))


def percentile(samples: Sequence[float], percent: float) -> float:
    """Returns the smallest sample not below `percent` of all (nearest rank); the largest if there are few."""
    ordered = sorted(samples)
    return ordered[max(1, math.ceil(len(ordered) * percent / 100)) - 1]


def ratios(ours: Sequence[float | None], peers: Sequence[float | None]) -> list[float]:
    """Divides our samples by the peer's: each peer run is paired with our run nearest to it in time.

    Both ran interleaved, so the j-th of n runs stands at (j + ½) / n of the whole. Failed runs (None) have no ratio.
    """
    found: list[float] = []
    for number, peer in enumerate(peers):
        mine = ours[int((number + 0.5) / len(peers) * len(ours))] if ours else None
        if mine is not None and peer:
            found.append(mine / peer)
    return found


def interleave(runs: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Yields every run of every subject, A B C A B C; spreads a subject that runs less often evenly over the whole."""
    order = {key: place for place, key in enumerate(runs)}
    turns = [
        ((number + 0.5) / count, order[key], key, number) for key, count in runs.items() for number in range(count)
    ]
    for _, _, key, number in sorted(turns):
        yield key, number
