"""Do messages pass the spawner link whole, in order and without ever blocking the spawner? A real socket pair."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest
from holdfast_wire import framing, spawner_link
from holdfast_wire.spawner_link import Emptied, KillTree, Message, OutputDropped, SpawnerProtocolError

from worker_client.spawner import supervisor_link as module
from worker_client.spawner.supervisor_link import Link

LARGE = 200_000


class Ends:
    """The spawner's end and the supervisor's."""

    def __init__(self) -> None:
        ours, self.supervisor = socket.socketpair()
        self.link = Link(ours.detach())
        self._decoder = framing.Decoder(frame_bytes_max=framing.SPAWNER_FRAME_BYTES_MAX)

    def send(self, *messages: Message) -> None:
        self.supervisor.sendall(b"".join(map(frame, messages)))

    def read(self) -> list[Message]:
        return [spawner_link.decode(each) for each in self._decoder.feed(self.supervisor.recv(1 << 20))]

    def read_all(self, last: Message) -> list[Message]:
        """Returns what comes until `last`, while the spawner sends what the socket takes."""
        read: list[Message] = []
        while last not in read:
            self.link.flush()
            read += self.read()
        return read

    def close(self) -> None:
        os.close(self.link.fd)
        self.supervisor.close()


def frame(message: Message) -> bytes:
    return framing.encode(spawner_link.encode(message), frame_bytes_max=framing.SPAWNER_FRAME_BYTES_MAX)


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    made.supervisor.settimeout(20)
    yield made
    made.close()


def fill(ends: Ends) -> list[Message]:
    """Returns what was queued until the socket took no more."""
    sent: list[Message] = []
    while not ends.link.has_unsent:
        sent.append(Emptied(len(sent), 0, tuple(range(10_000))))
        ends.link.send(sent[-1])
    return sent


def test_messages_arrive_however_they_are_cut(ends: Ends) -> None:
    data = frame(KillTree(1)) + frame(KillTree(2))
    received: list[Message] = []
    for at in range(len(data)):
        ends.supervisor.sendall(data[at : at + 1])
        assert ends.link.is_readable
        received += ends.link.receive()
    assert received == [KillTree(1), KillTree(2)]
    assert ends.link.receive() == []
    assert not ends.link.is_readable
    assert not ends.link.lost


def test_a_supervisor_that_does_not_read_blocks_nobody_and_misses_nothing(ends: Ends) -> None:
    sent = fill(ends)
    ends.link.send(KillTree(99))
    assert ends.read_all(KillTree(99)) == [*sent, KillTree(99)]
    assert not ends.link.has_unsent


def test_what_may_be_lost_is_dropped_where_too_much_waits(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UNSENT_BYTES_SOFT_MAX", 10)
    dropped = OutputDropped(0, 1, "a disk is full")
    fill(ends)
    assert (ends.link.drops(dropped), ends.link.drops(KillTree(99))) == (True, False)
    ends.link.send(dropped)  # who has noted it sends it: the other end counts what it gets
    ends.link.send(KillTree(99))
    assert ends.read_all(KillTree(99))[-2:] == [dropped, KillTree(99)]
    assert not ends.link.drops(dropped)


def test_the_end_of_the_stream_is_the_loss_of_the_supervisor(ends: Ends) -> None:
    ends.send(KillTree(1))
    ends.supervisor.close()
    assert ends.link.receive() == [KillTree(1)], "its last words count"
    assert ends.link.receive() == []
    assert ends.link.lost
    ends.link.send(KillTree(2))
    assert not ends.link.has_unsent


def test_a_supervisor_that_takes_nothing_more_is_still_heard(ends: Ends) -> None:
    ends.send(KillTree(1))
    ends.supervisor.shutdown(socket.SHUT_RD)
    ends.link.send(Emptied(0, 0, ()))
    assert not ends.link.has_unsent
    assert not ends.link.lost
    assert ends.link.receive() == [KillTree(1)]


def test_garbage_is_told_apart(ends: Ends) -> None:
    ends.supervisor.sendall(framing.encode(b"{}", frame_bytes_max=100))
    with pytest.raises(SpawnerProtocolError):
        ends.link.receive()


def test_descriptors_come_and_go_with_their_message(ends: Ends) -> None:
    reader, writer = os.pipe()
    socket.send_fds(ends.supervisor, [frame(KillTree(1))], [writer])
    assert ends.link.receive() == [KillTree(1)]
    (received,) = ends.link.arrived
    os.write(received, b"x")
    assert os.read(reader, 1) == b"x"
    ends.link.send_with(KillTree(2), [reader])
    data, descriptors, _, _ = socket.recv_fds(ends.supervisor, 1 << 16, 4)
    assert data == frame(KillTree(2))
    assert os.fstat(descriptors[0]).st_ino == os.fstat(reader).st_ino
    for fd in (reader, writer, received, *descriptors):
        os.close(fd)


def test_more_is_asked_for_whenever_all_is_sent_until_there_is_none(ends: Ends) -> None:
    parts = [KillTree(number) for number in range(3)]

    def more() -> bool:
        if not parts:
            return False
        ends.link.send_with(parts.pop(0), [])
        return True

    ends.link.call_when_sent(more)
    assert ends.link.has_unsent
    ends.link.flush()
    assert ends.read() == [KillTree(0), KillTree(1), KillTree(2)]
    assert not ends.link.has_unsent
