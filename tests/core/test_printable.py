"""Does no character of a stranger's text control a terminal, and does all other text stay as it is?"""

from __future__ import annotations

import json

import pytest

from supervisor.core import printable

HOSTILE = {
    "\x1b]0;title\x07": r"\x1b]0;title\x07",  # OSC
    "\x1b[2J": r"\x1b[2J",  # CSI
    "\x9b31m": r"\x9b31m",  # CSI as one character
    "a\u202eb": r"a\x202eb",  # from right to left
    "\u2066a\u2069": r"\x2066a\x2069",
    "a\u2028b": r"a\x2028b",
    "\x7f\x00": r"\x7f\x00",
    "\udcff": r"\xdcff",  # a lone surrogate
}


@pytest.mark.parametrize("text", HOSTILE)
def test_controls_become_visible(text: str):
    assert printable.one_line(text) == HOSTILE[text]
    assert printable.lines(text) == HOSTILE[text]


@pytest.mark.parametrize("text", ["", "train-7", "Größe 日本語 \U0001f600", "a\u00a0b"])
def test_other_text_stays_as_it_is(text: str):
    assert printable.one_line(text) == text
    assert printable.lines(text) == text


def test_lines_stay_where_lines_are_meant():
    assert printable.one_line("a\n\tb\r") == "a  b "
    assert printable.lines("a\n\tb\rc") == "a\n\tb\\x0dc"


@pytest.mark.parametrize("text", HOSTILE)
def test_json_means_the_same_and_controls_nothing(text: str):
    told = printable.json_text(json.dumps([text], ensure_ascii=False))
    assert json.loads(told) == [text]
    assert all(each.isprintable() for each in told.replace("\udcff", ""))
