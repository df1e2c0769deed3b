"""Is a long sentence or command line cut with a mark, and no secret shown by the cut?"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from supervisor.config.truncation import TEXT_CHARACTERS_MAX, shown_command, shown_text

KEY = "sk-" + "a1B2c3D4" * 6


@given(st.lists(st.text("ab ", max_size=9_000), max_size=8))
def test_a_long_command_line_says_how_much_is_not_shown(words: list[str]) -> None:
    shown = shown_command(words)
    if len(" ".join([*words, ""])) <= TEXT_CHARACTERS_MAX:
        assert list(shown) == words
        return
    *whole, last = shown
    kept, _, rest = last.rpartition(" … (")
    assert whole == words[: len(whole)]
    assert words[len(whole)].startswith(kept)
    hidden = len(" ".join([*words, ""])) - len(" ".join([*whole, kept]))
    assert rest == f"{hidden:,} more characters)"
    assert len(" ".join(shown)) <= TEXT_CHARACTERS_MAX
    assert shown_command(shown) == shown


def test_one_word_alone_is_cut_too() -> None:
    (shown,) = shown_command(["x" * 1_000_000])
    assert len(shown) <= TEXT_CHARACTERS_MAX
    assert shown.endswith("x … (983,681 more characters)")


@given(st.integers(0, 80))
def test_a_cut_shows_no_part_of_a_secret(before_the_cut: int) -> None:
    """Half of a key has no form by which it is known."""
    filling = "x" * (TEXT_CHARACTERS_MAX - before_the_cut)
    shown = (shown_text(f"{filling} {KEY} and more " + "y" * 99), *shown_command([filling, KEY, "y" * 99]))
    for text in (*shown, *shown_command([f"{filling} {KEY}", "--token", "abc"])):
        assert KEY[3:7] not in text


def test_a_long_sentence_is_cut_with_a_mark() -> None:
    shown = shown_text("word " * 10_000)
    assert shown.endswith("… (33,680 more characters)")
    assert len(shown) <= TEXT_CHARACTERS_MAX
    assert shown_text(shown) == shown
