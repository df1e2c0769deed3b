"""What does a writer accept? Each byte once, whatever came before, even after the death of its predecessor."""

from __future__ import annotations

import random

import pytest
from holdfast_wire.log_pieces import Piece, Receipt

from supervisor.core.log_funnel.written_positions import FILES_KEPT_MAX, Entry, Part, Positions


def piece(position: int, lines: bytes, *, stream: int = 1, base: int = 0, file: int = 1, ends: bool = False) -> Piece:
    return Piece(stream, file, base, position, lines, ends)


def entry(*pieces: Piece, at: int = 0) -> Entry:
    return Entry(pieces[0].file, at, [Part(each.stream, each.position, len(each.lines), each.ends) for each in pieces])


def test_what_comes_again_is_taken_once():
    positions = Positions()
    first = positions.admit(piece(0, b"one\n"))
    assert first == piece(0, b"one\n")
    assert positions.admit(piece(0, b"one\n")) is None  # it is on its way to the file
    assert positions.admit(piece(0, b"one\ntwo\n")) == piece(4, b"two\n")
    assert positions.note_written(entry(piece(0, b"one\n"))) == [Receipt(1, 4)]
    assert positions.admit(piece(0, b"one\n")) == Receipt(1, 4)
    assert positions.note_written(entry(piece(4, b"two\n", ends=True))) == [Receipt(1, 8, True)]
    assert positions.admit(piece(8, b"", ends=True)) == Receipt(1, 8, True)
    assert positions.skipped_bytes == 0


def test_a_note_that_was_lost_skips_what_had_its_receipt():
    positions = Positions()
    positions.admit(piece(0, b"one\n"))
    assert positions.admit(piece(100, b"two\n", base=100)) == piece(100, b"two\n", base=100)
    assert positions.skipped_bytes == 96


def test_a_stream_of_an_old_file_that_has_ended_is_forgotten_and_not_written_again():
    positions = Positions()
    for file in range(1, FILES_KEPT_MAX + 3):
        positions.note_written(entry(piece(0, b"one\n", file=file, ends=True)))
    positions.thin_out()
    again = Positions()
    for each in positions.entries():
        again.restore(each)
    for known in (positions, again):
        assert known.admit(piece(4, b"", base=2, file=1, ends=True)) == Receipt(1, 4, True)
        assert known.admit(piece(0, b"one\n", file=2, stream=9)) == piece(0, b"one\n", file=2, stream=9)
        assert known.admit(piece(4, b"two\n", file=FILES_KEPT_MAX)) is not None


@pytest.mark.parametrize("seed", range(200))
def test_whenever_the_writer_dies_the_next_one_completes_the_file(seed: int):
    """Streams of lines, a writer that dies at any byte of an append, and sources that send again from their base."""
    draw = random.Random(seed)
    texts = {
        stream: b"".join(b"%d: line %d %s\n" % (stream, n, b"x" * draw.randrange(9)) for n in range(12))
        for stream in range(1, 4)
    }
    bases = dict.fromkeys(texts, 0)
    has_end = dict.fromkeys(texts, False)
    file, positions = bytearray(), Positions()
    notes: list[Entry] = []
    for _ in range(400):
        if all(has_end.values()):
            break
        batch: list[Piece] = []
        for stream, text in texts.items():
            start = bases[stream]
            stop = text.find(b"\n", min(len(text) - 1, start + draw.randrange(60))) + 1
            stop = max(stop, start)
            offered = piece(start, text[start:stop], stream=stream, base=start, ends=stop == len(text))
            match positions.admit(offered):
                case Receipt() as receipt:
                    bases[stream], has_end[stream] = receipt.position, receipt.ended
                case Piece() as admitted:
                    batch.append(admitted)
                case None:
                    pass
        if not batch:
            positions = _next_writer(notes, file)
            continue
        note = entry(*batch, at=len(file))
        notes.append(note)
        data = b"".join(each.lines for each in batch)
        if draw.random() < 0.4:
            file += data[: draw.randrange(len(data) + 1)]
            positions = _next_writer(notes, file)
            continue
        file += data
        for receipt in positions.note_written(note):
            if draw.random() < 0.8:  # others are lost on their way
                bases[receipt.stream], has_end[receipt.stream] = receipt.position, receipt.ended
    assert all(has_end.values())
    lines = bytes(file).splitlines(keepends=True)
    for stream, text in texts.items():
        assert b"".join(line for line in lines if line.startswith(b"%d:" % stream)) == text


def _next_writer(notes: list[Entry], file: bytearray) -> Positions:
    positions = Positions()
    for each in notes:
        positions.restore(each)
    if notes:
        last = notes[-1]
        torn = positions.take_back(last, len(file) - last.at)
        if torn is not None:
            kept = file.rfind(b"\n", torn.at) + 1 - torn.at if b"\n" in file[torn.at :] else 0
            del file[torn.at + kept :]
            positions.keep_torn(torn, kept)
        notes[:] = positions.entries()
    return positions
