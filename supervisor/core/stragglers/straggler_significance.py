"""Which ranks stand out from the noise in one section?

For each round, a rank's excess is the logarithm of its mean over the median of all ranks. A rank is slow if the median
of its last excesses is large, also compared with the lasting differences between ranks, and if it was slow in more of
these rounds than chance explains. How often chance makes a rank slow for one round is counted in the same rounds over
all ranks. So the distribution of the noise does not matter: more noise only takes more rounds.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Sequence

import msgspec

FOUND_RATIO = 1.2  # to the median; a smaller excess is not reported
PAIR_FOUND_RATIO = 1.35  # with two ranks, since it is unknown which one is normal
GONE_RATIO = 1.1
SPANS = (3, 5, 8)  # rounds over which a rank is judged: few with little noise, else more
CHANCE_MAX = 1e-4  # probability that noise alone gets any rank of a job named in a round
SPREAD_FACTOR = 4.0  # multiple of the ranks' lasting spread (median deviation as a standard deviation)
SPREAD_RANKS_MIN = 4  # fewer ranks show no spread
EXCESS_MIN_S = 0.0005  # per pass; less is timer noise
SAMPLE_MAX = 256  # ranks from which the noise is estimated

_SIGMA = 1.4826  # converts a median deviation to the standard deviation of a normal distribution


def lower_median(values: Sequence[float]) -> float:
    """Returns the median, or the lower middle value, since half of the ranks may be slow. `values` is not empty."""
    return sorted(values)[(len(values) - 1) // 2]


class Judged(msgspec.Struct, frozen=True):
    ratio: float  # to the median of all ranks, over the last rounds
    is_slow: bool
    is_well: bool  # no longer slow, if it was


class _Noise(msgspec.Struct, frozen=True):
    chance: float  # probability that a normal rank seems slow in one round
    spread: float  # of the ranks' own medians


class Excesses:
    """The last excesses of all ranks, by rank. Changes in place."""

    def __init__(self) -> None:
        self._rounds: deque[array[float]] = deque(maxlen=max(SPANS))
        self._ranks: list[int] = []  # of the last round
        self.median_s = 0.0  # of the last round

    def add(self, ranks: Sequence[int], means_s: Sequence[float]) -> None:
        """Adds one round. `ranks` ascend."""
        median_s = self.median_s = max(lower_median(means_s), 1e-9)
        excesses = array("f", [math.nan]) * (ranks[-1] + 1)
        for rank, mean_s in zip(ranks, means_s, strict=True):
            excesses[rank] = math.log(max(mean_s, 1e-9) / median_s)
        self._rounds.append(excesses)
        self._ranks = list(ranks)

    @property
    def ranks(self) -> Sequence[int]:
        """The ranks of the last round."""
        return self._ranks

    def candidates(self) -> list[int]:
        """Returns ranks that may have to be reported; the others are not slow in this round."""
        newest, least = self._rounds[-1], math.log(GONE_RATIO)
        return [rank for rank in self._ranks if newest[rank] >= least]

    def judge(self, ranks: Sequence[int]) -> dict[int, Judged]:
        if not ranks:
            return {}
        noise = self._noise()
        return {rank: self._judge_one(rank, noise) for rank in ranks}

    def _judge_one(self, rank: int, noise: _Noise) -> Judged:
        last = self._of(rank, SPANS[0])
        if not last:
            return Judged(1.0, is_slow=False, is_well=True)
        found = self._found()
        for span in SPANS:
            own = self._of(rank, span)
            if len(own) < span:
                break
            excess = lower_median(own)
            slow_rounds = sum(each >= found for each in own)
            chance = len(self._ranks) * _chance_of(slow_rounds, span, noise.chance)
            is_large = excess >= max(found, SPREAD_FACTOR * noise.spread)
            if is_large and chance <= CHANCE_MAX and self.median_s * math.expm1(excess) >= EXCESS_MIN_S:
                return Judged(math.exp(excess), is_slow=True, is_well=False)
        newest = lower_median(last)
        return Judged(math.exp(newest), is_slow=False, is_well=len(last) == SPANS[0] and newest < math.log(GONE_RATIO))

    def _found(self) -> float:
        return math.log(FOUND_RATIO if len(self._ranks) > 2 else PAIR_FOUND_RATIO)

    def _of(self, rank: int, span: int) -> list[float]:
        """Returns the rank's excesses in the last rounds in which it took part."""
        rounds = list(self._rounds)[-span:]
        return [each[rank] for each in rounds if rank < len(each) and not math.isnan(each[rank])]

    def _noise(self) -> _Noise:
        """Estimates the noise, without ranks that were slow in all rounds, which say nothing about chance."""
        found = self._found()
        medians: list[float] = []
        slow, all_rounds = 0, 0
        for rank in self._ranks[:: max(1, len(self._ranks) // SAMPLE_MAX)]:
            own = self._of(rank, max(SPANS))
            medians.append(lower_median(own))
            slow_rounds = sum(each >= found for each in own)
            if slow_rounds < len(own):
                slow += slow_rounds
                all_rounds += len(own)
        spread = 0.0
        if len(medians) >= SPREAD_RANKS_MIN:
            middle = lower_median(medians)
            spread = _SIGMA * lower_median([abs(each - middle) for each in medians])
        return _Noise((slow + 1) / (all_rounds + 1), spread)


def _chance_of(slow_rounds: int, rounds: int, chance: float) -> float:
    """Returns the probability that so many rounds or more are slow by chance."""
    return sum(
        math.comb(rounds, each) * chance**each * (1.0 - chance) ** (rounds - each)
        for each in range(slow_rounds, rounds + 1)
    )
