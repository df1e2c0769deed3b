"""Lines wait for the log server within a bound, are resent over each new connection, and losses are reported."""

from __future__ import annotations

import socket
from collections.abc import Generator
from pathlib import Path

import pytest
from holdfast_wire import framing, log_door
from holdfast_wire.log_door import DoorPiece, DoorReceipt, DoorTrouble

from worker_client.spawner.cycle_log import uplink
from worker_client.spawner.cycle_log.backlog import CycleFile, Loss
from worker_client.spawner.cycle_log.uplink import Uplink
from worker_client.spawner.events import Events


class Sender:
    """The other side, which reads only on request."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "door")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen()
        self._accepted: socket.socket | None = None
        self._decoder = framing.Decoder(frame_bytes_max=log_door.FRAME_BYTES_MAX)

    def accept(self) -> None:
        self.close()
        self.listener.settimeout(5.0)
        self._accepted, _ = self.listener.accept()
        self._accepted.setblocking(False)
        self._decoder = framing.Decoder(frame_bytes_max=log_door.FRAME_BYTES_MAX)

    def read(self) -> list[DoorPiece]:
        assert self._accepted is not None
        pieces: list[DoorPiece] = []
        try:
            while data := self._accepted.recv(1 << 16):
                pieces += [
                    each for each in map(log_door.decode, self._decoder.feed(data)) if isinstance(each, DoorPiece)
                ]
        except BlockingIOError:
            pass
        return pieces

    def say(self, message: DoorReceipt | DoorTrouble) -> None:
        assert self._accepted is not None
        self._accepted.send(framing.encode(log_door.encode(message), frame_bytes_max=log_door.FRAME_BYTES_MAX))

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
    made.sender.close()
    made.sender.listener.close()
    ours = made.uplink._socket  # pyright: ignore[reportPrivateUsage] - its process ends with it
    if ours is not None:
        ours.close()
    made.events.close()


def test_lines_are_kept_until_their_receipt_and_sent_again(rig: Rig) -> None:
    rig.put(b"one\n", b"two\n")
    rig.sender.accept()
    first = rig.sender.read()
    assert [(each.file, each.base, each.position, each.lines) for each in first] == [
        (4, 0, 0, b"0: one\n"), (4, 0, 7, b"0: two\n"),
    ]  # fmt: skip
    rig.sender.say(DoorReceipt(first[0].stream, 7, False))
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
    rig.sender.say(DoorReceipt(first[0].stream, 14, True))
    rig.turn()
    assert rig.closed == [rig.file]
    assert rig.file.written_bytes == 14


def test_what_does_not_fit_is_lost_counted_and_told_at_its_place(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uplink, "BACKLOG_BYTES_MAX", 4096)
    rig.put(b"first\n")
    rig.sender.accept()
    rig.sender.say(DoorTrouble("cannot write /logs/train_cycle3.log: No space left on device"))
    rig.turn()
    for number in range(100):
        rig.put(b"%d\n" % number * 20)
    lost = rig.file.loss
    assert lost.lines > 0
    assert lost.reason == "cannot write /logs/train_cycle3.log: No space left on device"
    assert rig.losses > 0
    pieces = rig.sender.read()
    end = pieces[-1].position + len(pieces[-1].lines)
    rig.sender.say(DoorReceipt(pieces[0].stream, end, False))
    rig.turn()
    rig.put(b"after\n")
    said = b"".join(each.lines for each in rig.sender.read())
    assert said.startswith(b"[holdfast: %d lines (" % lost.lines)
    assert said.endswith(b"were lost here: cannot write /logs/train_cycle3.log: No space left on device]\n0: after\n")


def test_small_pieces_that_wait_become_large_ones(rig: Rig) -> None:
    rig.sender.close()
    Path(rig.sender.path).unlink()
    rig.put(*[b"%d\n" % number for number in range(10_000)])
    stream = next(iter(rig.uplink._streams.values()))  # pyright: ignore[reportPrivateUsage]
    assert len(stream.chunks) < 10
    assert b"".join(lines for _, lines in stream.chunks) == b"".join(b"0: %d\n" % number for number in range(10_000))


def test_a_file_to_which_nothing_was_printed_closes_without_a_sender(rig: Rig) -> None:
    Path(rig.sender.path).unlink()
    rig.uplink.close(rig.file)
    assert rig.closed == [rig.file]
