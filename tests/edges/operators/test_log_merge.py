"""Is the output of several nodes in one order, and does a missing node not hold back the others?"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

import pytest

from supervisor.edges.operators.log_follower import LogPiece
from supervisor.edges.operators.log_merge import as_pieces, merge
from supervisor.errors import NoAnswerError
from supervisor.ports.reports import LogBytes


async def source(places: Sequence[tuple[int, int]], *, breaks: bool = False) -> AsyncGenerator[LogBytes]:
    for cycle, rank in places:
        yield LogBytes(rank, cycle, False, f"{cycle}.{rank}".encode())
    if breaks:
        raise NoAnswerError("cannot ask node b: no answer within 5 s")


@pytest.mark.parametrize("in_order", [True, False])
async def test_all_comes_and_what_is_missing_is_told(in_order: bool):
    sources = {
        "": as_pieces(source([(0, 0), (0, 1), (1, 2)])),
        "b": as_pieces(source([(0, 2)], breaks=True)),
        "c": as_pieces(source([(1, 0), (1, 1)])),
    }
    seen: list[str] = []
    missing: list[str] = []

    async def send(piece: LogPiece) -> None:
        seen.append(piece.data.decode())

    await merge(sources, send, missing.append, in_order=in_order)
    assert sorted(seen) == ["0.0", "0.1", "0.2", "1.0", "1.1", "1.2"]
    assert seen == sorted(seen) or not in_order
    assert missing == ["the output of node b is not complete: cannot ask node b: no answer within 5 s"]
