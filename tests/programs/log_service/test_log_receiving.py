"""The service takes what callers send, and reads nothing from one that sends too much until there is room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
from holdfast_wire import log_frames
from holdfast_wire.log_frames import Message, Parting
from holdfast_wire.log_pieces import Piece

from supervisor.programs.log_service.log_receiving import LogReceiver
from supervisor.programs.log_service.replies_to_senders import Callers
from supervisor.programs.log_service.wakeup import Wakeup
from tests.edges.peers.relays.test_multiplexer import wired
from tests.edges.peers.transport.test_cluster_line import line_and_peer, until

LIMIT_S = 30.0


class Taken:
    """Takes so many pieces."""

    def __init__(self) -> None:
        self.pieces: list[tuple[int, Piece]] = []
        self.lost: list[int] = []
        self.room = 1000
        self.has_room = Wakeup()

    @property
    def is_full(self) -> bool:
        return len(self.pieces) >= self.room

    def take(self, link: int, piece: Piece) -> None:
        self.pieces.append((link, piece))

    def lose(self, link: int) -> None:
        self.lost.append(link)

    async def until_room(self) -> None:
        while self.is_full:
            await self.has_room.wait()


class Caller:
    """The other side of a link, in this process."""

    def __init__(self, receiver: LogReceiver, name: str) -> None:
        self.line, self._far, _ = wired()
        self.heard: list[Message] = []
        self.line.listen(lambda payload: self.heard.append(log_frames.decode(payload)), lambda _: None, lambda: None)
        receiver.hold(self._far, name)

    def say(self, *messages: Message) -> None:
        self.line.send(*map(log_frames.encode, messages))

    def of(self, kind: type[Message]) -> list[Message]:
        return [each for each in self.heard if type(each) is kind]


@asynccontextmanager
async def running(taken: Taken, callers: Callers) -> AsyncGenerator[LogReceiver]:
    receiver = LogReceiver(taken, callers)
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(receiver.run)
            yield receiver
            tasks.cancel_scope.cancel()


def piece(position: int = 0, lines: bytes = b"x\n") -> Piece:
    return Piece(1, 1, 0, position, lines)


async def test_pieces_are_taken_with_the_number_of_their_link():
    taken = Taken()
    async with running(taken, Callers()) as receiver:
        Caller(receiver, "node 1").say(piece(), piece(2))
        await until(lambda: len(taken.pieces) == 2)
        assert taken.pieces == [(1, piece()), (1, piece(2))]


async def test_who_has_nothing_more_to_send_is_distinguished_from_who_lost_the_connection():
    taken, callers = Taken(), Callers()
    async with running(taken, callers) as receiver:
        parting, broken = Caller(receiver, "node 1"), Caller(receiver, "node 2")
        parting.say(Parting())
        broken.line.end("a cable was pulled")
        await until(lambda: not callers.count)
        assert (receiver.parted, receiver.unparted, taken.lost) == ({"node 1"}, 1, [1, 2])


async def test_nonsense_ends_that_connection_alone():
    taken, callers = Taken(), Callers()
    async with running(taken, callers) as receiver:
        wrong, right = Caller(receiver, "node 1"), Caller(receiver, "node 2")
        wrong.line.send(b"?")
        await until(lambda: callers.count == 1)
        right.say(piece())
        await until(lambda: taken.pieces)
        assert taken.pieces == [(2, piece())]


async def test_from_a_caller_that_sends_too_much_nothing_is_read_until_there_is_room():
    taken = Taken()
    taken.room = 1
    pieces, turns = 500, 2000
    async with (
        running(taken, Callers()) as receiver,
        line_and_peer() as (line, peer),
        anyio.create_task_group() as tasks,
    ):
        receiver.hold(line, "node 1")
        said = log_frames.framed(piece(lines=b"x" * 65535 + b"\n")) * pieces
        tasks.start_soon(asyncio.get_running_loop().sock_sendall, peer, said)
        await until(lambda: taken.pieces)
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        assert len(taken.pieces) <= 16  # What came at once with the first.
        taken.room = pieces + 1
        taken.has_room.wake()
        await until(lambda: len(taken.pieces) == pieces)
