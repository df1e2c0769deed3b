"""Are the bytes of a stream that comes again recognised, file by file, also after rotations?"""

from __future__ import annotations

from supervisor.edges.operators.log_follower import LogPiece
from supervisor.edges.operators.shown_output import ShownStream


def piece(file: int, offset: int, data: bytes) -> LogPiece:
    return LogPiece(0, 0, False, data, file, offset)


def test_only_what_is_beyond_the_known_end_of_a_file_is_new() -> None:
    stream = ShownStream()
    assert [stream.new(each) for each in (piece(7, 0, b"ab"), piece(8, 0, b"cd"))] == [b"ab", b"cd"]
    stream.comes_again()
    assert [stream.new(each) for each in (piece(8, 0, b"cde"), piece(9, 0, b"f"))] == [b"e", b"f"]  # 7 is gone
    stream.comes_again()
    again = (piece(8, 0, b"c"), piece(8, 1, b"de"), piece(9, 0, b"fg"))
    assert [stream.new(each) for each in again] == [b"", b"", b"g"]


def test_what_came_before_the_last_lines_is_not_new() -> None:
    stream = ShownStream(is_tail=True)
    assert stream.new(piece(7, 90, b"ab")) == b"ab"
    stream.comes_again()
    again = (piece(6, 0, b"x" * 50), piece(6, 50, b"x" * 50), piece(7, 0, b"y" * 90), piece(7, 90, b"abc"))
    assert [stream.new(each) for each in again] == [b"", b"", b"", b"c"]
    stream.comes_again()
    assert [stream.new(each) for each in (piece(7, 0, b"y" * 93), piece(8, 0, b"d"))] == [b"", b"d"]
    stream.comes_again()
    assert [stream.new(each) for each in (piece(8, 0, b"de"), piece(9, 0, b"f"))] == [b"e", b"f"]  # 7 is gone


def test_what_came_before_last_lines_that_begin_with_their_file_is_not_new() -> None:
    stream = ShownStream(is_tail=True)
    assert stream.new(piece(7, 0, b"ab")) == b"ab"
    stream.comes_again()
    assert [stream.new(each) for each in (piece(6, 0, b"x" * 90), piece(7, 0, b"abc"))] == [b"", b"c"]
    whole = ShownStream()
    assert whole.new(piece(7, 0, b"ab")) == b"ab"
    whole.comes_again()
    assert whole.new(piece(8, 0, b"c")) == b"c", "7 is gone"


def test_bytes_without_a_place_are_counted() -> None:
    stream = ShownStream()
    assert stream.new(piece(0, 0, b"abc")) == b"abc"
    stream.comes_again()
    assert [stream.new(each) for each in (piece(0, 0, b"ab"), piece(0, 0, b"cd"))] == [b"", b"d"]
