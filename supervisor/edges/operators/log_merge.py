"""How does the output of ranks on several nodes become one stream?"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

import anyio

from supervisor.edges.operators.log_follower import LogPiece
from supervisor.errors import HoldfastError
from supervisor.ports.reports import LogBytes

Pieces = AsyncGenerator[LogPiece]


async def as_pieces(source: AsyncGenerator[LogBytes]) -> Pieces:
    async with contextlib.aclosing(source):
        async for each in source:
            yield LogPiece(each.rank, each.cycle, each.is_stderr, each.output, each.file, each.offset)


async def merge(
    sources: Mapping[str, Pieces],
    send: Callable[[LogPiece], Awaitable[None]],
    miss: Callable[[str], None],
    *,
    in_order: bool,
) -> None:
    """Yields pieces by cycle, rank and stream if each source has that order itself; else as they come.

    Calls `miss` for a source whose node does not answer; the others continue.
    """
    async with contextlib.AsyncExitStack() as closing:
        for pieces in sources.values():
            await closing.enter_async_context(contextlib.aclosing(pieces))
        if in_order:
            await _merge_in_order(sources, send, miss)
        else:
            await _merge_as_they_come(sources, send, miss)


async def _merge_in_order(
    sources: Mapping[str, Pieces], send: Callable[[LogPiece], Awaitable[None]], miss: Callable[[str], None]
) -> None:
    heads: dict[str, LogPiece] = {}

    async def advance(name: str) -> None:
        heads.pop(name, None)
        try:
            heads[name] = await anext(sources[name])
        except StopAsyncIteration:
            return
        except HoldfastError as error:
            miss(_missing(name, error))

    async with anyio.create_task_group() as tasks:
        for name in sources:
            tasks.start_soon(advance, name)
    while heads:
        name = min(heads, key=lambda each: (heads[each].cycle, heads[each].rank, heads[each].is_stderr))
        await send(heads[name])
        await advance(name)


async def _merge_as_they_come(
    sources: Mapping[str, Pieces], send: Callable[[LogPiece], Awaitable[None]], miss: Callable[[str], None]
) -> None:
    turn = anyio.Lock()

    async def carry(name: str, pieces: Pieces) -> None:
        try:
            async for piece in pieces:
                async with turn:
                    await send(piece)
        except HoldfastError as error:
            miss(_missing(name, error))

    async with anyio.create_task_group() as tasks:
        for name, pieces in sources.items():
            tasks.start_soon(carry, name, pieces)


def _missing(node: str, error: HoldfastError) -> str:
    return f"the output of node {node} is not complete: {error}" if node else str(error)
