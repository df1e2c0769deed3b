"""Lines of one rank: complete, each with the rank in front, whatever bytes they have and however they are cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker_client.spawner.cycle_log.rank_lines import LINE_BYTES_MAX, RankLines


def fed(*pieces: bytes, prefix: bytes = b"7: ") -> bytes:
    lines = RankLines(prefix)
    written = [part for piece in pieces for part in lines.feed(piece)]
    return b"".join([*written, *lines.finish()])


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ((b"one\ntwo\n",), b"7: one\n7: two\n"),
        ((b"on", b"e\ntw", b"o"), b"7: one\n7: two\n"),
        ((b"\n\nx",), b"7: \n7: \n7: x\n"),
        ((b"a\0b\n",), b"7: a<NUL>b\n"),
        ((b"gr\xc3", b"\xbcn\n"), "7: grün\n".encode()),
        ((b"gr\xc3", b"n\xff\n"), "7: gr\N{REPLACEMENT CHARACTER}n\N{REPLACEMENT CHARACTER}\n".encode()),
        ((b"\xc3",), "7: \N{REPLACEMENT CHARACTER}\n".encode()),
        ((b"1/2\r2/2\r", b"\nend\r\n"), b"7: 1/2\n7: 2/2\n7: end\n"),
        ((b"1/2\r", b"\n", b"\nend\n"), b"7: 1/2\n7: \n7: end\n"),
        ((), b""),
        ((b"",), b""),
    ],
)
def test_what_is_written(pieces: tuple[bytes, ...], expected: bytes) -> None:
    assert fed(*pieces) == expected


def test_only_whole_lines_are_written_before_the_end() -> None:
    lines = RankLines(b"0: ")
    assert lines.feed(b"half") == ()
    assert b"".join(lines.feed(b" a line\nnext")) == b"0: half a line\n"
    assert b"".join(lines.finish()) == b"0: next\n"
    assert lines.finish() == ()


def test_a_line_without_an_end_is_cut_between_characters_and_takes_no_more_memory() -> None:
    text = "x" + "ü" * (2 * LINE_BYTES_MAX)
    lines = RankLines(b"")
    written = b"".join(part for at in range(0, len(text), 999) for part in lines.feed(text[at : at + 999].encode()))
    rest = b"".join(lines.finish())
    assert len(rest) <= LINE_BYTES_MAX + 1
    assert (written + rest).decode().replace("\n", "") == text


@given(st.lists(st.text("ab\n\r\0ü", max_size=9), max_size=8), st.sampled_from([b"", b"7: ", b"[0]:"]))
def test_plain_text_and_what_has_to_be_put_right_take_turns(pieces: list[str], prefix: bytes) -> None:
    text = "".join(pieces).replace("\r\n", "\n").replace("\r", "\n").replace("\0", "<NUL>")
    lines = text.split("\n")
    expected = "".join(f"{prefix.decode()}{line}\n" for line in (lines if lines[-1] else lines[:-1]))
    assert fed(*(piece.encode() for piece in pieces), prefix=prefix).decode() == expected


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=8))
def test_how_the_bytes_are_cut_makes_no_difference(data: bytes, cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(data)]
    assert fed(*(data[a:b] for a, b in itertools.pairwise(places))) == fed(data)


@given(st.binary(max_size=300))
def test_what_is_written_is_text_in_whole_lines_with_the_rank_before_each(data: bytes) -> None:
    written = fed(data).decode()
    assert "\0" not in written
    assert not written or written.endswith("\n")
    assert all(line.startswith("7: ") for line in written.split("\n")[:-1])
