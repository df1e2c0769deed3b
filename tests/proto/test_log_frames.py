"""Messages about logs arrive as they were sent; what is out of bounds, or of another version, is refused."""

from __future__ import annotations

import struct

import pytest
from holdfast_wire import log_frames
from holdfast_wire.log_frames import (
    Alive,
    Greeting,
    Hello,
    LogFrameError,
    Message,
    Parting,
    Refusal,
    Terms,
    Trouble,
    Welcome,
    decode,
    encode,
)
from holdfast_wire.log_pieces import Piece, Receipt


@pytest.mark.parametrize(
    "message",
    [
        Piece(2**64 - 1, 7, 2, 3, b"a\nb\n"),
        Piece(5, 0, 0, 0, b"", ends=True),
        Receipt(5, 9, ended=True),
        Trouble("cannot write F: no space left"),
        Trouble(""),
        Terms(4096, 25),
        Greeting(),
        Hello(log_frames.VERSION, "job", "node 1", b"proof"),
        Welcome(b"proof"),
        Refusal("why"),
        Parting(),
        Alive(),
    ],
)
def test_a_message_arrives_as_it_was_sent(message: Message) -> None:
    (payload,) = log_frames.decoder().feed(log_frames.framed(message))
    decoded = decode(payload)
    assert decoded == message
    assert type(decoded) is type(message)


def test_the_longest_piece_fits_into_a_frame() -> None:
    piece = Piece(1, 1, 0, 0, b"x" * (log_frames.LINES_BYTES_MAX - 1) + b"\n")
    assert log_frames.decoder().feed(log_frames.framed(piece)) == [encode(piece)]


def test_a_log_process_of_an_earlier_version_is_understood() -> None:
    """It outlives its supervisor, whose successor may be newer."""
    assert decode(struct.pack(">cQIQQ?", b"p", 1, 2, 3, 4, True) + b"x\n") == Piece(1, 2, 3, 4, b"x\n", ends=True)
    assert encode(Receipt(1, 2, ended=True)) == struct.pack(">cQQ?", b"r", 1, 2, True)
    assert encode(Trouble("away")) == b"taway"


@pytest.mark.parametrize(
    "piece",
    [
        Piece(1, log_frames.FILE_MAX + 1, 0, 0, b"a\n"),
        Piece(1, 1, 9, 0, b"a\n"),
        Piece(1, 1, 0, 2**63, b"a\n"),
        Piece(1, 1, 0, 0, b"half a line"),
    ],
)
def test_a_piece_out_of_bounds_is_refused(piece: Piece) -> None:
    with pytest.raises(LogFrameError):
        decode(encode(piece))


def test_a_hello_out_of_bounds_is_refused_and_one_of_another_version_has_that_alone() -> None:
    hello = encode(Hello(log_frames.VERSION, "job", "node 1", b"proof"))
    for wrong in (hello[:-1], hello + b"x", hello[:5], encode(Hello(log_frames.VERSION, "j" * 300, "n"))):
        with pytest.raises(LogFrameError):
            decode(wrong)
    assert decode(encode(Hello(9, "job", "node 1"))) == Hello(9, "", "")


@pytest.mark.parametrize("noise", [b"", b"?", b"p", b"r1", b"axx", b"h", b"\xff" * 40])
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(LogFrameError):
        decode(noise)
