"""How does the output of ranks on several nodes become one stream, though nodes join or do not answer for a moment?"""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Protocol

import anyio
import msgspec

from supervisor.edges.operators.log_follower import LogChoice, LogPiece
from supervisor.edges.operators.shown_output import ShownOutput
from supervisor.errors import ExhaustedError, HoldfastError, NoAnswerError, NotFoundError
from supervisor.ports.reports import LogBytes

LOOK_S = 5.0  # between two looks at a live job: for nodes that have joined, and for those that have not answered
LOOKS_APART_MAX = 12  # of a node that can't read its files: each time, all that it can read comes again
LAST_OUTPUT_S = 3.0  # that a reader waits for the last output of other nodes once the job has ended

Pieces = AsyncGenerator[LogPiece]
Send = Callable[[LogPiece], Awaitable[None]]
Note = Callable[[str], Awaitable[None]]


class OpenPieces(Protocol):
    def __call__(
        self, *, rank: int | None, cycle: int | None, tail_lines: int, first_cycle: int
    ) -> AsyncGenerator[LogBytes]: ...


class NodeOutput(msgspec.Struct, frozen=True):
    """The output of another node, of which some was chosen."""

    log_dir: str  # on that node: it differs between the node's runs of the job
    choice: LogChoice
    open: OpenPieces

    def pieces(self, choice: LogChoice) -> Pieces:
        return as_pieces(self.open(**msgspec.structs.asdict(choice)))


Look = Callable[[], Awaitable[Mapping[str, NodeOutput]]]  # by node


async def as_pieces(source: AsyncGenerator[LogBytes]) -> Pieces:
    async with contextlib.aclosing(source):
        async for each in source:
            yield LogPiece(each.rank, each.cycle, each.is_stderr, each.output, each.file, each.offset)


# --- output of a job that has ended ----------------------------------------------------------------------------------


async def merge_in_order(
    own: Pieces, others: Mapping[str, NodeOutput], send: Send, miss: Callable[[str], None]
) -> None:
    """Sends pieces by cycle, rank and stream, which is the order of each source itself.

    `others`: by node. Calls `miss` for a node that does not answer; the rest continues.
    """
    sources = {"": own} | {name: _to_its_end(output) for name, output in others.items()}
    heads: dict[str, LogPiece] = {}

    async def advance(name: str) -> None:
        heads.pop(name, None)
        try:
            heads[name] = await anext(sources[name])
        except StopAsyncIteration:
            return
        except HoldfastError as error:
            miss(_missing(name, error))

    async with contextlib.AsyncExitStack() as closing:
        for pieces in sources.values():
            await closing.enter_async_context(contextlib.aclosing(pieces))
        async with anyio.create_task_group() as tasks:
            for name in sources:
                tasks.start_soon(advance, name)
        while heads:
            name = min(heads, key=lambda each: _place(heads[each]))
            await send(heads[name])
            await advance(name)


async def _to_its_end(output: NodeOutput) -> Pieces:
    """Yields the pieces of a node, each byte once, although it closes a reader that waits long for its turn."""
    choice, is_whole = output.choice, False
    shown, pieces = ShownOutput(are_tails=choice.tail_lines > 0), output.pieces(choice)
    while not is_whole:
        last: LogPiece | None = None
        try:
            async with contextlib.aclosing(pieces):
                async for piece in pieces:
                    if (new := shown.new(piece)) is not None:
                        last = piece
                        yield new
            is_whole = True
        except NotFoundError:
            if last is None:
                raise
            again = msgspec.structs.replace(choice, first_cycle=last.cycle)
            pieces = _rest(last, output) if choice.tail_lines else output.pieces(again)
            shown.comes_again()


async def _rest(last: LogPiece, output: NodeOutput) -> Pieces:
    """Yields the stream of the last piece from its beginning, then the last lines of its cycle's streams after it."""
    whole = output.pieces(LogChoice(last.rank, last.cycle))
    async with contextlib.aclosing(whole):
        async for piece in whole:
            if _place(piece) > _place(last):
                break
            if _place(piece) == _place(last):
                yield piece
    tails = output.pieces(msgspec.structs.replace(output.choice, cycle=last.cycle))
    async with contextlib.aclosing(tails):
        async for piece in tails:
            if _place(piece) > _place(last):
                yield piece


def _place(piece: LogPiece) -> tuple[int, int, bool]:
    return piece.cycle, piece.rank, piece.is_stderr


# --- output of a live job --------------------------------------------------------------------------------------------


class _Node:
    """How much of one node's output was sent. The node sends it cycle by cycle, each time that it is read."""

    def __init__(self, output: NodeOutput) -> None:
        self.output = output  # as the last look has found it
        self.is_read = False
        self.is_silent = False  # since it was asked last, too
        self.is_noted = False
        self._log_dir = ""  # read last
        self._ended_in: str | None = None  # the folder whose output was sent to its end
        self._looks_left = 0  # until it is read again
        self._looks_apart = 1
        self._cycle = -1
        self._shown = ShownOutput()  # of that cycle
        self._reading = anyio.CancelScope()
        self._until_s = math.inf

    @property
    def is_put_off(self) -> bool:
        """Returns whether it could not read its files, and waits for a later look."""
        return not self.is_read and self._looks_left > 0

    def is_due(self) -> bool:
        """Returns whether this look is to read it."""
        self._looks_left = max(0, self._looks_left - 1)
        return not (self.is_read or self._ended_in == self.output.log_dir or self._looks_left)

    def wait_longer(self) -> None:
        """Lets more looks pass each time, until some output is new."""
        self._looks_left, self._looks_apart = self._looks_apart, min(2 * self._looks_apart, LOOKS_APART_MAX)

    def begin(self) -> Pieces:
        """Returns what is to be read now: what was chosen, and once some of it was sent, all from that cycle on."""
        self.is_read, self._log_dir = True, self.output.log_dir
        self._shown.comes_again()
        choice = self.output.choice
        if self._cycle >= 0:
            choice = msgspec.structs.replace(choice, tail_lines=0, first_cycle=self._cycle)
        return self.output.pieces(choice)

    def end(self) -> None:
        """Notes that all of it was sent."""
        self._ended_in = self._log_dir

    async def read(self, pieces: Pieces) -> Pieces:
        """Yields the pieces. Raises NoAnswerError if `end_by` ends that; it never cuts a piece that is being sent."""
        async with contextlib.aclosing(pieces):
            while True:
                piece: LogPiece | None = None
                reading = self._reading = anyio.CancelScope(deadline=self._until_s)
                with contextlib.suppress(StopAsyncIteration), reading:
                    piece = await anext(pieces)
                if reading.cancelled_caught:
                    late = f"it has not come within {LAST_OUTPUT_S:g} s of the job's end"
                    raise NoAnswerError(f"cannot read the rest: {late}")
                if piece is None:
                    return
                yield piece

    def end_by(self, at_s: float) -> None:
        self._until_s = self._reading.deadline = at_s

    def new(self, piece: LogPiece) -> LogPiece | None:
        """Returns the part of the piece that was not sent yet; None: there is none."""
        self.is_silent = False
        if piece.cycle < self._cycle:
            return None
        if piece.cycle > self._cycle:
            are_tails = self._cycle < 0 < self.output.choice.tail_lines  # A later cycle is read from its beginning.
            self._cycle, self._shown = piece.cycle, ShownOutput(are_tails=are_tails)
        new = self._shown.new(piece)
        if new is not None:
            self.is_noted, self._looks_apart = False, 1
        return new


class _Outlet:
    """Sends what several sources have, one piece or note at a time."""

    def __init__(self, send: Send, note: Note, ended: anyio.Event) -> None:
        self._send = send
        self._note = note
        self._ended = ended
        self._turn = anyio.Lock()

    async def carry_own(self, own: Pieces) -> None:
        try:
            await self._carry(own, lambda piece: piece)
        except HoldfastError as error:
            await self._say(_missing("", error))

    async def carry_node(self, name: str, node: _Node, pieces: Pieces) -> None:
        try:
            await self._carry(node.read(pieces), node.new)
        except (NoAnswerError, NotFoundError, ExhaustedError) as error:
            node.is_silent = not isinstance(error, ExhaustedError)
            times = f"every {LOOK_S:g} s"
            if not node.is_silent:
                times = f"at least every {LOOK_S * LOOKS_APART_MAX:g} s"
                node.wait_longer()
            if not node.is_noted:
                node.is_noted = True
                again = "" if self._ended.is_set() else f"; the node is asked again {times}"
                await self._say(f"{_missing(name, error)}{again}")
        except HoldfastError as error:
            await self._say(_missing(name, error))
            return  # It would refuse again.
        else:
            node.end()
        node.is_read = False

    async def _carry(self, pieces: Pieces, new: Callable[[LogPiece], LogPiece | None]) -> None:
        async with contextlib.aclosing(pieces):
            async for piece in pieces:
                if (rest := new(piece)) is not None:
                    async with self._turn:
                        await self._send(rest)

    async def _say(self, text: str) -> None:
        async with self._turn:
            await self._note(text)


async def follow(own: Pieces, look: Look | None, send: Send, note: Note, *, ended: anyio.Event) -> None:
    """Sends pieces as they come, each byte once, until the job has `ended` and each source, too.

    `look` returns the output of the job's other nodes now; None: they are not asked for. `note` gets what is missing,
    at once. A node that does not answer is asked again, until the job has ended; then no node is waited for long. One
    that could not read its files is asked once more then: it may have the last words of a rank that has failed.
    """
    outlet = _Outlet(send, note, ended)
    nodes: dict[str, _Node] = {}
    is_over = False
    async with anyio.create_task_group() as tasks:

        async def read(name: str, node: _Node, pieces: Pieces) -> None:
            await outlet.carry_node(name, node, pieces)
            if is_over and node.is_put_off:
                await outlet.carry_node(name, node, node.begin())

        tasks.start_soon(outlet.carry_own, own)
        while look is not None and not ended.is_set():
            for name, output in (await look()).items():
                node = nodes.setdefault(name, _Node(output))
                node.output = output
                if node.is_due():
                    tasks.start_soon(read, name, node, node.begin())
            with anyio.move_on_after(LOOK_S):
                await ended.wait()
        is_over = True  # No look finds the nodes of a job that has ended.
        for name, node in nodes.items():
            node.end_by(anyio.current_time() + (0.0 if node.is_silent else LAST_OUTPUT_S))
            if node.is_put_off:
                tasks.start_soon(outlet.carry_node, name, node, node.begin())


def _missing(node: str, error: HoldfastError) -> str:
    return f"the output of node {node} is not complete: {error}" if node else str(error)
