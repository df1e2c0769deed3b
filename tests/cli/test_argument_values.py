"""Are durations, moments and numbers read as people write them, and all other texts refused?"""

from __future__ import annotations

import time
from argparse import ArgumentTypeError

import pytest
from holdfast_wire.v1 import control_pb2 as wire

from supervisor.cli.argument_values import cycle_number, duration_s, moment, positive, rank_number


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("85ms", 0.085), ("30s", 30), ("1h30m", 5400), ("2d12h5m1.5s", 216_301.5), ("1w", 604_800), (" 0.5h ", 1800)],
)
def test_a_duration_has_one_unit_or_several(text: str, seconds: float) -> None:
    assert duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "3", "h", "30m1h", "1h1h", "1h 30m", "1h30", "-5m", "1y", "1e3s", "٣s"])
def test_other_texts_are_not_durations(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="is not a duration; write numbers with units"):
        duration_s(text)


@pytest.mark.parametrize("text", ["1h30m", "-1h30m", "90m"])
def test_an_age_is_counted_from_now(text: str) -> None:
    assert moment(text) / 1e9 == pytest.approx(time.time() - 5400, abs=60)


def test_a_moment_may_be_a_time() -> None:
    assert moment("2026-01-31T14:05+00:00") == 1_769_868_300 * 10**9


def test_no_number_is_above_what_travels_to_a_supervisor() -> None:
    choice = wire.StreamLogsRequest(tail_lines=positive("5000000000"))
    assert (positive("7"), rank_number("2147483647"), cycle_number("0")) == (7, 2**31 - 1, 0)
    assert choice.tail_lines == 2**31 - 1
    for read, what in ((rank_number, "rank"), (cycle_number, "cycle")):
        for text in ("5000000000", "2147483648", "9" * 5_000, "-1", "x"):
            with pytest.raises(ArgumentTypeError, match=f"is not a {what}; {what}s are numbers from 0"):
                read(text)
