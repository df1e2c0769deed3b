"""How does the output of ranks on another node get here: piece by piece, never faster than it is read?"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import suppress

import anyio

from supervisor.errors import HoldfastError, NoAnswerError
from supervisor.ports.questions import CloseLogs, Logs, NodeRequests, ReadLogs
from supervisor.ports.reports import LogBytes

WAIT_S = 10.0  # a reader that follows gets an answer at least this often
MARGIN_S = 5.0
CLOSE_TIMEOUT_S = 1.0
EMPTY_MAX = 2  # answers in a row without a piece, for a reader that does not follow: each has waited for the disk


async def pieces(
    node_requests: NodeRequests,
    job_id: str,
    node: str,
    *,
    rank: int | None,
    cycle: int | None,
    tail_lines: int,
    first_cycle: int,
    follow: bool,
) -> AsyncGenerator[LogBytes]:
    """Yields the pieces. Raises NoAnswerError, or the error with which the node refuses."""
    reader, step, is_last, empty = os.urandom(8).hex(), 0, False, 0
    wait_s = WAIT_S if follow else 0.0
    try:
        while not is_last:
            step += 1
            question = ReadLogs(reader, step, rank, cycle, tail_lines, follow, wait_s, first_cycle)
            answer = await node_requests.ask(job_id, node, question, timeout_s=wait_s + MARGIN_S)
            assert isinstance(answer, Logs), "the codec lets nothing else through as an answer to ReadLogs"
            for piece in answer.pieces:
                if piece.output:  # An empty one says that the node has read its disk and found none yet.
                    yield piece
            is_last = answer.is_last
            empty = 0 if answer.pieces else empty + 1
            if empty == EMPTY_MAX and not (is_last or follow):
                raise NoAnswerError(f"cannot read the output of node {node}: its disk does not answer")
    finally:
        if step and not is_last:
            # Otherwise the node closes an unused reader by itself.
            with anyio.move_on_after(CLOSE_TIMEOUT_S, shield=True), suppress(HoldfastError):
                await node_requests.ask(job_id, node, CloseLogs(reader), timeout_s=CLOSE_TIMEOUT_S)
