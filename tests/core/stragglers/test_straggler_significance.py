"""Does noise alone name nobody, and is a rank that is really slow named soon?"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

import pytest

from supervisor.core.stragglers.section_windows import WINDOW_TIMES
from supervisor.core.stragglers.straggler_significance import CHANCE_MAX, GONE_RATIO, SPANS, Excesses, lower_median


class _Noise:
    """How long ranks take: `sigma` from time to time, `apart` for good, and a share of spikes of five times."""

    def __init__(self, seed: int, ranks: int, *, sigma: float, apart: float = 0.0, spikes: float = 0.0) -> None:
        self._random = random.Random(seed)
        self._sigma, self._spikes = sigma, spikes
        self._own = [math.exp(self._random.gauss(0, apart)) for _ in range(ranks)]

    def round(self, slow: Mapping[int, float]) -> list[float]:
        return [0.1 * own * slow.get(rank, 1.0) * self._mean() for rank, own in enumerate(self._own)]

    def _mean(self) -> float:
        return sum(self._once() for _ in range(WINDOW_TIMES)) / WINDOW_TIMES

    def _once(self) -> float:
        spike = 5.0 if self._spikes and self._random.random() < self._spikes else 1.0
        return math.exp(self._random.gauss(0, self._sigma)) * spike


def _slow(excesses: Excesses) -> list[int]:
    return [rank for rank, judged in excesses.judge(excesses.candidates()).items() if judged.is_slow]


NOISES = [
    pytest.param({"sigma": 0.05}, id="quiet"),
    pytest.param({"sigma": 0.1, "apart": 0.02}, id="usual"),
    pytest.param({"sigma": 0.3, "apart": 0.02}, id="loud"),
    pytest.param({"sigma": 0.1, "apart": 0.05, "spikes": 0.02}, id="spikes"),
]


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 16, 64])
def test_noise_alone_names_nobody(ranks: int, noise: dict[str, float]):
    """The stated rate is CHANCE_MAX for each span of each round: of these rounds, less than one in all."""
    rounds, named = 1200 // ranks, 0
    for seed in range(2):
        source, excesses = _Noise(seed, ranks, **noise), Excesses()
        for _ in range(rounds):
            excesses.add(range(ranks), source.round({}))
            named += bool(_slow(excesses))
    expected = 2 * rounds * len(SPANS) * CHANCE_MAX
    assert named <= math.ceil(expected) + 1


@pytest.mark.parametrize(
    ("ranks", "noise", "within"),
    [
        (2, {"sigma": 0.05}, 8), (3, {"sigma": 0.05}, 5), (4, {"sigma": 0.1}, 5), (8, {"sigma": 0.1}, 5),
        (16, {"sigma": 0.1, "apart": 0.02}, 5), (64, {"sigma": 0.05, "apart": 0.02}, 3),
        (8, {"sigma": 0.2}, 8), (64, {"sigma": 0.1, "apart": 0.05, "spikes": 0.02}, 12),
    ],
)  # fmt: skip
def test_a_rank_that_takes_half_as_long_again_is_named_soon(ranks: int, noise: dict[str, float], within: int):
    """`within` so many rounds, in nine of ten runs, and nobody else is."""
    in_time = 0
    for seed in range(20):
        source, excesses = _Noise(seed, ranks, **noise), Excesses()
        for _ in range(within):
            excesses.add(range(ranks), source.round({1: 1.5}))
            if _slow(excesses) == [1]:
                in_time += 1
                break
    assert in_time >= 18


def test_a_rank_that_was_well_for_long_and_becomes_slow_is_named_and_let_go():
    source, excesses = _Noise(1, 8, sigma=0.05), Excesses()
    for _ in range(20):
        excesses.add(range(8), source.round({}))
    named: list[bool] = []
    for _ in range(5):
        excesses.add(range(8), source.round({3: 1.6}))
        named.append(_slow(excesses) == [3])
    assert named[-1]
    assert not any(named[: SPANS[0] - 1]), "one slow round is no verdict"
    for _ in range(SPANS[0]):
        excesses.add(range(8), source.round({}))
    judged = excesses.judge([3])[3]
    assert judged.is_well
    assert judged.ratio < GONE_RATIO


def test_half_of_the_ranks_may_be_slow():
    source, excesses = _Noise(1, 4, sigma=0.03), Excesses()
    for _ in range(8):
        excesses.add(range(4), source.round({2: 1.5, 3: 1.5}))
    assert _slow(excesses) == [2, 3]


def test_ranks_that_differ_for_good_are_not_named_for_it():
    source, excesses = _Noise(3, 64, sigma=0.02, apart=0.15), Excesses()
    for _ in range(12):
        excesses.add(range(64), source.round({}))
    assert len(_slow(excesses)) <= 1


def test_what_is_too_short_to_matter_names_nobody():
    excesses = Excesses()
    for _ in range(12):
        excesses.add(range(8), [1e-5] * 7 + [3e-5])
    assert _slow(excesses) == []


def test_a_rank_that_is_not_there_any_more_is_well():
    excesses = Excesses()
    for _ in range(8):
        excesses.add(range(8), [0.1] * 7 + [0.2])
    assert _slow(excesses) == [7]
    for _ in range(SPANS[0]):
        excesses.add(range(7), [0.1] * 7)
    assert excesses.judge([7])[7].is_well


def test_the_lower_median():
    assert [lower_median(each) for each in ([3.0], [4.0, 2.0], [3.0, 1.0, 2.0], [1.0, 4.0, 2.0, 3.0])] == [3, 2, 2, 2]
