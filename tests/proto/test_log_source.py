"""What a source sends, over one connection after the other; a twin that keeps everything says what must arrive."""

from __future__ import annotations

import random

import pytest
from holdfast_wire import log_frames, log_source
from holdfast_wire.log_frames import Alive, Trouble
from holdfast_wire.log_pieces import Piece, Receipt
from holdfast_wire.log_source import CHUNK_BYTES, LogSource

ALL = 1 << 30
PIECE_BYTES = log_frames.PIECE_BYTES


def said(data: bytes) -> list[Piece]:
    pieces = [log_frames.decode(payload) for payload in log_frames.decoder().feed(data)]
    return [each for each in pieces if isinstance(each, Piece)]


def test_lines_are_kept_until_their_receipt_and_sent_again_over_a_new_connection() -> None:
    source = LogSource(10_000)
    stream = source.open(4)
    source.put(stream, (b"0: ", b"one\n"))
    (one,) = said(source.unsent(ALL))
    assert one == Piece(stream.number, 4, 0, 0, b"0: one\n")
    source.put(stream, (b"0: two\n",))
    assert [each.position for each in said(source.unsent(ALL))] == [7]
    assert source.unsent(ALL) == b""
    assert source.receive(log_frames.framed(Receipt(stream.number, 7))) == [stream]
    assert stream.late("why") == (1, 7, "why")
    source.begin_connection()
    source.close(stream)
    assert said(source.unsent(ALL)) == [
        Piece(stream.number, 4, 7, 7, b"0: two\n"), Piece(stream.number, 4, 7, 14, b"", ends=True),
    ]  # fmt: skip
    source.receive(log_frames.framed(Receipt(stream.number, 14, ended=True)))
    assert (stream.has_ended, stream.written) == (True, 14)
    source.begin_connection()
    assert source.unsent(ALL) == b""


def test_what_does_not_fit_is_lost_as_a_whole_and_noted_at_its_place() -> None:
    source = LogSource(3 * (100 + CHUNK_BYTES))
    stream = source.open(1)
    line = b"x" * 99 + b"\n"
    assert source.put(stream, (line,))
    source.unsent(ALL)
    source.receive(log_frames.framed(Trouble("no space left on device")))
    for _ in range(2):
        assert source.put(stream, (line,))
        source.unsent(ALL)
    assert not source.put(stream, (line, line))
    assert not source.put(stream, (line,))
    assert stream.loss == (3, 300, "no space left on device")
    source.receive(log_frames.framed(Receipt(stream.number, 100)))
    assert not source.put(stream, (line,))  # Only once half of the room is free: else each second line were lost.
    source.receive(log_frames.framed(Receipt(stream.number, 200)))
    assert source.put(stream, (b"on\n",))
    (piece,) = said(source.unsent(ALL))
    assert piece.lines == b"[holdfast: 4 lines (400 bytes) were lost here: the log server took them too slowly]\non\n"


def test_small_pieces_that_wait_become_large_ones() -> None:
    source = LogSource(1 << 20)
    stream = source.open(1)
    lines = [b"%d\n" % number for number in range(10_000)]
    for each in lines:
        source.put(stream, (each,))
    pieces = said(source.unsent(ALL))
    assert len(pieces) < 3
    assert b"".join(each.lines for each in pieces) == b"".join(lines)


def test_it_is_told_later_and_later_to_connect_again_until_a_connection_works() -> None:
    source = LogSource(1000)
    waits = [source.lose_connection() for _ in range(7)]
    assert waits == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    source.receive(log_frames.framed(Trouble("")))
    assert source.reason == log_source.SLOW
    assert source.lose_connection() == 0.05
    assert source.reason == log_source.AWAY


def test_nonsense_is_refused_and_messages_for_others_are_skipped() -> None:
    source = LogSource(1000)
    stream = source.open(1)
    for other in (Alive(), Receipt(stream.number ^ 1, 5), Piece(1, 1, 0, 0, b"")):
        assert source.receive(log_frames.framed(other)) == []
    with pytest.raises(ValueError, match="can't be read"):
        source.receive(b"\0\0\0\1?")


@pytest.mark.parametrize("seed", range(30))
def test_whatever_breaks_a_writer_that_takes_each_byte_once_gets_each_line_once(seed: int) -> None:
    draw = random.Random(seed)
    source = LogSource(1 << 20)
    streams = [source.open(number) for number in range(3)]
    printed = {each.number: b"" for each in streams}
    written = {each.number: b"" for each in streams}
    for _ in range(200):
        match draw.randrange(4):
            case 0:
                stream = draw.choice(streams)
                lines = draw.randbytes(draw.randrange(2 * PIECE_BYTES)).replace(b"\n", b" ") + b"\n"
                assert source.put(stream, (lines,))
                printed[stream.number] += lines
            case 1:
                _write(said(source.unsent(draw.randrange(1, PIECE_BYTES * 4))), written, draw, source)
            case 2:
                source.lose_connection()
                source.begin_connection()
            case _:
                pass
    for stream in streams:
        source.close(stream)
    source.begin_connection()
    while frames := source.unsent(PIECE_BYTES):
        _write(said(frames), written, random.Random(0), source, is_lossless=True)
    assert written == printed
    assert all(each.has_ended for each in streams)


def _write(
    pieces: list[Piece], written: dict[int, bytes], draw: random.Random, source: LogSource, *, is_lossless: bool = False
) -> None:
    """Writes like the root; some receipts get lost."""
    for piece in pieces:
        known = written[piece.stream]
        assert piece.base <= piece.position <= len(known)
        written[piece.stream] = known + piece.lines[len(known) - piece.position :]
        if is_lossless or draw.random() < 0.7:
            source.receive(log_frames.framed(Receipt(piece.stream, len(written[piece.stream]), piece.ends)))
