"""Lines wait for the log server within a bound, are resent over each new connection, and losses are reported."""

from __future__ import annotations

import socket
from collections.abc import Generator
from pathlib import Path

import pytest
from holdfast_wire import log_frames
from holdfast_wire.log_frames import Trouble
from holdfast_wire.log_pieces import Loss, Piece, Receipt

from worker_client.spawner.cycle_log import uplink
from worker_client.spawner.cycle_log.backlog import CycleFile
from worker_client.spawner.cycle_log.uplink import Uplink
from worker_client.spawner.event_loop import Events


class Sender:
    """The other side, which reads only on request."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "sender_socket")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen()
        self._accepted: socket.socket | None = None
        self._decoder = log_frames.decoder()

    def accept(self) -> None:
        self.close()
        self.listener.settimeout(5.0)
        self._accepted, _ = self.listener.accept()
        self._accepted.setblocking(False)
        self._decoder = log_frames.decoder()

    def read(self) -> list[Piece]:
        assert self._accepted is not None
        pieces: list[Piece] = []
        try:
            while data := self._accepted.recv(1 << 16):
                pieces += [each for each in map(log_frames.decode, self._decoder.feed(data)) if isinstance(each, Piece)]
        except BlockingIOError:
            pass
        return pieces

    def say(self, message: Receipt | Trouble) -> None:
        assert self._accepted is not None
        self._accepted.send(log_frames.framed(message))

    def close(self) -> None:
        if self._accepted is not None:
            self._accepted.close()


class Rig:
    def __init__(self, folder: Path) -> None:
        self.events = Events()
        self.sender = Sender(folder)
        self.closed: list[CycleFile] = []
        self.losses = 0
        self.uplink = Uplink(self.events, self.sender.path, self._on_loss, self.closed.append)
        self.file = CycleFile(3, "/logs/train_cycle3.log")

    def _on_loss(self, file: CycleFile) -> None:
        assert file is self.file
        self.losses += 1

    def put(self, *lines: bytes) -> None:
        for line in lines:
            self.uplink.put(self.file, (b"0: ", line))

    def end(self) -> None:
        self.sender.close()
        self.sender.listener.close()
        ours = self.uplink._socket  # pyright: ignore[reportPrivateUsage] - its process ends with it
        if ours is not None:
            ours.close()
        self.events.close()

    def turn(self) -> None:
        """Runs until nothing happens for a moment."""
        done: list[bool] = []
        self.events.set_timer("turn", 0.15, lambda: done.append(True))
        while not done:
            self.events.run_once()


@pytest.fixture
def rig(tmp_path: Path) -> Generator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.end()


def test_lines_are_kept_until_their_receipt_and_sent_again(rig: Rig) -> None:
    rig.put(b"one\n", b"two\n")
    rig.sender.accept()
    first = rig.sender.read()
    assert [(each.file, each.base, each.position, each.lines) for each in first] == [
        (4, 0, 0, b"0: one\n"), (4, 0, 7, b"0: two\n"),
    ]  # fmt: skip
    rig.sender.say(Receipt(first[0].stream, 7, False))
    rig.turn()
    assert rig.file.written_bytes == 7
    assert rig.uplink.late(rig.file) == Loss(1, 7, "the log server took them too slowly")
    rig.sender.close()
    rig.turn()  # it notices, and reconnects after a moment
    rig.turn()
    rig.uplink.close(rig.file)
    rig.sender.accept()
    again = rig.sender.read()
    assert [(each.base, each.position, each.lines, each.ends) for each in again] == [
        (7, 7, b"0: two\n", False), (7, 14, b"", True),
    ]  # fmt: skip
    assert {each.stream for each in again} == {first[0].stream}
    rig.sender.say(Receipt(first[0].stream, 14, True))
    rig.turn()
    assert rig.closed == [rig.file]
    assert rig.file.written_bytes == 14


def test_what_does_not_fit_is_told_and_counted_with_the_senders_reason(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uplink, "BACKLOG_BYTES_MAX", 4096)
        rig = Rig(tmp_path)
    rig.put(b"first\n")
    rig.sender.accept()
    rig.sender.say(Trouble("cannot write /logs/train_cycle3.log: No space left on device"))
    rig.turn()
    for number in range(100):
        rig.put(b"%d\n" % number * 20)
    assert rig.file.loss.lines > 0
    assert rig.file.loss.reason == "cannot write /logs/train_cycle3.log: No space left on device"
    assert rig.losses > 0
    rig.end()


def test_a_file_to_which_nothing_was_printed_closes_without_a_sender(rig: Rig) -> None:
    Path(rig.sender.path).unlink()
    rig.uplink.close(rig.file)
    assert rig.closed == [rig.file]
