"""Are durations, shares, ranks and hostile ranks' words formatted so that people can read them?"""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.report import formatting


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"), (0.00012, "0.12 ms"), (0.00712, "7.1 ms"),
        (0.0849, "85 ms"), (0.9996, "1 s"), (1.234, "1.23 s"), (59.94, "59.9 s"), (59.96, "1 min 00 s"),
        (185, "3 min 05 s"), (3599.7, "1 h 00 min"), (8040, "2 h 14 min"), (442_800, "5 d 03 h"), (-1, "0 ms"),
    ],
)  # fmt: skip
def test_durations(seconds: float, text: str):
    assert formatting.duration(seconds) == text


@pytest.mark.parametrize(("share", "text"), [(None, "-"), (1, "100.0 %"), (0.99999, "99.9 %"), (0.628, "62.8 %")])
def test_shares(share: float | None, text: str):
    assert formatting.percent(share) == text


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((), ""), ((3,), "rank 3"), ((5, 3), "ranks 3, 5"), ((0, 1, 2, 9), "ranks 0-2, 9"),
        (tuple(range(0, 20, 2)), "ranks 0, 2, 4, 6, 8, 10 and 4 more"),
    ],
)  # fmt: skip
def test_ranks(numbers: tuple[int, ...], text: str):
    assert formatting.ranks(numbers) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"), ("\x1b]0;title\x07x", "x"), ("a\x00b", "a\\x00b"), ("two\nlines", "two lines"),
        ("\x1b", "\\x1b"), ("caf\u00e9 \u2028x", "caf\u00e9 \\x2028x"), ("\u202eevil", "\\x202eevil"),
    ],
)  # fmt: skip
def test_what_steers_a_terminal_is_taken_out(text: str, shown: str):
    assert formatting.plain(text) == shown


@given(st.text())
def test_any_text_becomes_one_printable_line(text: str):
    assert all(each.isprintable() or unicodedata.category(each) == "Zs" for each in formatting.plain(text))


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0"), (0.5, "0.5 s"), (30, "30 s"), (300, "5 min"), (172_800, "2 d")]
)
def test_ticks(seconds: float, text: str):
    assert formatting.tick(seconds) == text
