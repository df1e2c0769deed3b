"""A process on the way keeps unacknowledged data, in order, and within its bounds."""

from __future__ import annotations

import random

from holdfast_wire.log_pieces import Piece, Receipt

from supervisor.core.log_funnel.log_relay import PAUSE_MOST_S, PIECE_BYTES, Relay, pause_s, window_bytes

MIB = 1024 * 1024


def relay(bytes_max: int = MIB, pieces_max: int = 100) -> Relay:
    made = Relay(bytes_max=bytes_max, pieces_max=pieces_max)
    made.window_bytes = MIB
    return made


def piece(position: int, lines: bytes, *, stream: int = 1, ends: bool = False) -> Piece:
    return Piece(stream, 1, 0, position, lines, ends)


def test_pieces_go_on_in_order_and_their_receipts_go_back_to_where_they_came_from():
    queue = relay()
    queue.take(7, piece(0, b"one\n"))
    queue.take(8, piece(0, b"other\n", stream=2))
    queue.take(7, piece(4, b"two\n"))
    assert [each.lines for each in queue.next(MIB)] == [b"one\n", b"other\n", b"two\n"]
    assert queue.next(MIB) == []
    assert queue.receive(Receipt(1, 4)) == 7
    assert (queue.kept_pieces, queue.kept_bytes) == (2, 6 + 4 + 2 * PIECE_BYTES)
    assert queue.receive(Receipt(2, 6)) == 8
    assert queue.receive(Receipt(1, 8)) == 7
    assert queue.is_empty
    assert (queue.kept_bytes, queue.unsent_bytes) == (0, 0)


def test_over_a_new_connection_all_that_has_no_receipt_goes_out_again():
    queue = relay()
    for position in (0, 4, 8):
        queue.take(1, piece(position, b"abc\n"))
    assert len(queue.next(1)) == 1
    queue.begin_again()
    queue.receive(Receipt(1, 4))  # from the next process, which knows what the dead one wrote
    assert [each.position for each in queue.next(MIB)] == [4, 8]
    assert queue.unsent_bytes == 0


def test_what_a_source_sends_again_is_kept_once():
    queue = relay()
    queue.take(1, piece(0, b"one\n"))
    queue.take(2, piece(0, b"one\ntwo\n"))
    queue.take(1, piece(4, b"two\n"))
    queue.take(2, piece(8, b"", ends=True))
    queue.take(2, piece(8, b"", ends=True))
    assert [(each.position, each.lines, each.ends) for each in queue.next(MIB)] == [
        (0, b"one\n", False), (4, b"two\n", False), (8, b"", True),
    ]  # fmt: skip
    assert queue.receive(Receipt(1, 8)) == 2
    assert not queue.is_empty  # the end is not acknowledged yet
    assert queue.receive(Receipt(1, 8, True)) == 2
    assert queue.is_empty


def test_what_a_lost_link_has_sent_still_goes_on():
    queue = relay()
    queue.take(1, piece(0, b"one\n"))
    queue.lose(1)
    assert len(queue.next(MIB)) == 1
    assert queue.receive(Receipt(1, 4)) is None
    assert queue.is_empty


def test_the_window_of_the_next_process_is_kept():
    queue = relay()
    queue.window_bytes = 2 * PIECE_BYTES + 10
    for position in range(0, 40, 4):
        queue.take(1, piece(position, b"abc\n"))
    assert len(queue.next(MIB)) == 2
    assert queue.next(MIB) == []
    queue.receive(Receipt(1, 4))
    assert len(queue.next(MIB)) == 1
    queue.window_bytes = 1
    queue.receive(Receipt(1, 12))
    assert len(queue.next(MIB)) == 1  # one piece is always sent, whatever its length


def test_a_full_queue_says_so_by_bytes_and_by_pieces():
    queue = relay(bytes_max=2 * PIECE_BYTES, pieces_max=3)
    queue.take(1, piece(0, b"one\n"))
    assert not queue.is_full
    queue.take(1, piece(4, b"two\n"))
    assert queue.is_full
    few = relay(pieces_max=1)
    few.take(1, piece(0, b"one\n"))
    assert few.is_full


def test_all_links_together_fit_and_many_links_gather_lines():
    assert window_bytes(64 * MIB, 1) == 8 * MIB
    assert 1536 * window_bytes(64 * MIB, 1536) <= 64 * MIB
    assert pause_s(2) == 0.0
    assert 0.1 < pause_s(1536) <= PAUSE_MOST_S


def test_random_deaths_lose_and_double_nothing():
    """Two relays in a row and a writer; each process on the way may die at any moment."""
    for seed in range(100):
        draw = random.Random(seed)
        text = [b"%d\n" % number for number in range(60)]
        ends = [sum(map(len, text[: number + 1])) for number in range(60)]
        relays = [relay(), relay()]
        taken, base, written = 0, 0, bytearray()
        link = 0
        for _ in range(5000):
            if base == ends[-1]:
                break
            match draw.randrange(12):
                case 0:  # the first relay dies: the source sends again from its base
                    relays[0], taken, link = relay(), base, link + 1
                case 1:
                    relays[1] = relay()
                    relays[0].begin_again()
                case 2:  # the writer dies, its file and positions do not
                    relays[1].begin_again()
                case 3 | 4 | 5 if taken < ends[-1]:
                    number = ends.index(taken) + 1 if taken else 0
                    relays[0].take(link, Piece(1, 1, base, taken, text[number]))
                    taken = ends[number]
                case 6 | 7:
                    for each in relays[0].next(draw.randrange(2000)):
                        relays[1].take(link, each)
                case _:
                    for each in relays[1].next(draw.randrange(2000)):
                        assert each.position <= len(written)
                        written += each.after(len(written)).lines if each.end > len(written) else b""
                        receipt = Receipt(1, len(written))
                        if relays[1].receive(receipt) is not None and relays[0].receive(receipt) == link:
                            base = max(base, receipt.position)
        assert bytes(written) == b"".join(text), seed
