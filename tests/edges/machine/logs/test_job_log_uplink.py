"""The supervisor's words reach its node's sender, once each, whatever happens to the sender; nobody waits for it."""

from __future__ import annotations

import socket
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from holdfast_wire import log_frames
from holdfast_wire.log_pieces import Piece, Receipt

from supervisor.edges.machine.logs import job_log_uplink
from supervisor.edges.machine.logs.job_log_uplink import JobLogUplink

LIMIT_S = 20.0


class Sender:
    """One connection: received pieces by position; receipts as the test requests."""

    def __init__(self, listener: socket.socket) -> None:
        self._link, _ = listener.accept()
        self._link.settimeout(LIMIT_S)
        self._decoder = log_frames.decoder()
        self.pieces: list[Piece] = []

    def until(self, text: bytes) -> Piece:
        """Waits for the piece that contains the text."""
        while not (found := [each for each in self.pieces if text in each.lines]):
            assert self._receive()
        return found[-1]

    def until_end(self) -> Piece:
        while not self.pieces or not self.pieces[-1].ends:
            assert self._receive()
        return self.pieces[-1]

    def write(self, piece: Piece) -> None:
        receipt = Receipt(piece.stream, piece.position + len(piece.lines), piece.ends)
        self._link.sendall(log_frames.framed(receipt))

    def until_closed(self) -> None:
        while self._receive():
            continue
        self._link.close()

    def die(self) -> None:
        self._link.close()

    def _receive(self) -> bool:
        data = self._link.recv(65536)
        for payload in self._decoder.feed(data):
            piece = log_frames.decode(payload)
            assert isinstance(piece, Piece)
            self.pieces.append(piece)
        return bool(data)


@pytest.fixture
def listener(tmp_path: Path) -> Generator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as made:
        made.settimeout(LIMIT_S)
        made.bind(str(tmp_path / "sender_socket"))
        made.listen()
        yield made


def test_what_has_no_receipt_goes_to_the_next_sender_and_to_no_file_but_that_of_words(
    listener: socket.socket, tmp_path: Path
) -> None:
    uplink = JobLogUplink(str(tmp_path / "sender_socket"))
    uplink.say(b"one\n")
    first = Sender(listener)
    first.write(first.until(b"one\n"))
    uplink.say(b"two\n")
    assert first.until(b"two\n").position == 4
    first.die()
    second = Sender(listener)
    again = second.until(b"two\n")
    assert again.file == 0
    assert again.position in (0, 4)  # 0: the receipt was still in transit
    uplink.finish()
    uplink.say(b"too late\n")
    end = second.until_end()
    assert b"".join(each.lines for each in second.pieces).endswith(b"two\n")
    second.write(end)
    second.until_closed()
    uplink.join(LIMIT_S)


def test_a_sender_that_takes_nothing_costs_lines_which_are_counted_and_no_time(
    listener: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_log_uplink, "ENDS_IN_S", LIMIT_S)
    uplink = JobLogUplink(str(tmp_path / "sender_socket"))  # nobody accepts
    line, count = b"x" * 999 + b"\n", 3000
    from_s = time.monotonic()
    for _ in range(count):
        uplink.say(line)
    assert time.monotonic() - from_s < LIMIT_S / 4
    uplink.finish()
    sender = Sender(listener)
    sender.write(sender.until_end())
    sender.until_closed()
    lines = b"".join(each.lines for each in sender.pieces).splitlines()
    kept = lines.count(line[:-1])
    assert 0 < kept <= job_log_uplink.KEPT_BYTES_MAX // 1000
    told = b"[holdfast: %d lines (%d bytes) were lost here: the log server could not be reached]"
    assert lines[-1] == told % (count - kept, (count - kept) * len(line))
    assert len(lines) == kept + 1


def test_without_any_sender_the_end_is_bounded_and_what_is_missing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(job_log_uplink, "ENDS_IN_S", 0.2)
    uplink = JobLogUplink(str(tmp_path / "sender_socket"))
    uplink.say(b"one\n")
    uplink.say(b"two\n")
    uplink.finish()
    uplink.join(LIMIT_S)
    assert [record.getMessage() for record in caplog.records] == [
        "2 lines of the supervisor's words may be missing in the file of --ft-nvrx-logfile: the log server could not "
        "be reached; this node's supervisor.log has them"
    ]
    uplink.say(b"too late\n")
    uplink.finish()


def test_a_line_beyond_a_frame_is_cut(listener: socket.socket, tmp_path: Path) -> None:
    uplink = JobLogUplink(str(tmp_path / "sender_socket"))
    uplink.say("ä".encode() * 1_000_000 + b"\n")
    uplink.say(b"next\n")
    sender = Sender(listener)
    sender.until(b"next\n")
    uplink.finish()
    sender.write(sender.until_end())
    sender.until_closed()
    first, second = b"".join(each.lines for each in sender.pieces).splitlines()
    assert (len(first), second) == (job_log_uplink.LINE_BYTES_MAX, b"next")
