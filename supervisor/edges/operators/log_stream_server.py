"""How does this node serve the output of its ranks to another node of the job, as fast as that node reads it?

A reader reads a few pieces ahead and then waits; an unused reader is closed.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

import anyio
import msgspec
from anyio.abc import TaskGroup, TaskStatus
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from supervisor.edges.operators import log_follower
from supervisor.edges.operators.log_follower import LogChoice, LogPiece
from supervisor.edges.operators.log_reader_limit import check_another_may_read
from supervisor.errors import ExhaustedError, NotFoundError
from supervisor.ports.questions import Answer, CloseLogs, Logs, ReadLogs
from supervisor.ports.reports import JobReport, LogBytes, RecordedEvent

AHEAD_PIECES = 4
ANSWER_BYTES = 128 * 1024  # an answer of about this size is sent
IDLE_S = 60.0
PATIENCE_S = 3.0  # how long a reader that does not follow waits for a disk
WAIT_MAX_S = 60.0
CLOSED = "cannot show more output: its reader was closed; ask again from the start"
WARNINGS_KEPT = 1000  # which of them were given

_log = logging.getLogger("holdfast")


class _Reader:
    def __init__(self, pieces: MemoryObjectReceiveStream[LogPiece]) -> None:
        self.pieces = pieces
        self.scope = anyio.CancelScope()
        self.step = 0
        self.answer = Logs(())
        self.failure = ""  # why the output can't be read any further
        self.asked = anyio.Event()


class OwnJobs(Protocol):
    """This node's jobs; see ports.JobRequests."""

    def job(self, job_id: str) -> JobReport | None: ...

    def subscribe(self, job_id: str) -> contextlib.AbstractAsyncContextManager[AsyncIterator[RecordedEvent]]: ...


class LogStreamServer:
    """Answers ReadLogs and CloseLogs. `run` must be started first."""

    def __init__(self, job_service: OwnJobs) -> None:
        self._job_service = job_service
        self._readers: dict[tuple[str, str], _Reader] = {}
        self._warned: dict[tuple[str, str], str] = {}  # job and asker -> why it could not be shown the last time
        self._tasks: TaskGroup | None = None

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Runs the readers until cancelled."""
        async with anyio.create_task_group() as self._tasks:
            task_status.started()
            await anyio.sleep_forever()

    async def answer(self, by: str, part: JobReport, question: ReadLogs | CloseLogs) -> Answer:
        key = (by, question.reader)
        reader = self._readers.get(key)
        if isinstance(question, CloseLogs):
            if reader is not None:
                del self._readers[key]
                reader.scope.cancel()
            return Logs((), is_last=True)
        if reader is None:
            reader = self._open(key, part, question)
        elif question.step == reader.step:
            return reader.answer
        reader.asked.set()
        reader.step, reader.answer = question.step, await _next(reader, min(question.wait_s, WAIT_MAX_S) or PATIENCE_S)
        return reader.answer

    def _open(self, key: tuple[str, str], part: JobReport, question: ReadLogs) -> _Reader:
        if question.step != 1 or self._tasks is None:
            raise NotFoundError(CLOSED)
        check_another_may_read(len(self._readers))
        send, receive = anyio.create_memory_object_stream[LogPiece](AHEAD_PIECES)
        reader = self._readers[key] = _Reader(receive)
        self._tasks.start_soon(self._serve, key, reader, send, part, question)
        return reader

    async def _serve(
        self,
        key: tuple[str, str],
        reader: _Reader,
        send: MemoryObjectSendStream[LogPiece],
        part: JobReport,
        question: ReadLogs,
    ) -> None:
        ended = anyio.Event()
        try:
            with reader.scope, send, reader.pieces:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_close_when_idle, reader)
                    if question.follow and not part.state.has_ended:
                        tasks.start_soon(set_at_end, self._job_service, part.job_id, ended)
                    else:
                        ended.set()
                    choice = LogChoice(question.rank, question.cycle, question.tail_lines, question.first_cycle)
                    pieces = log_follower.follow(Path(part.log_dir), choice, ended, shows_progress=not question.follow)
                    try:
                        async with contextlib.aclosing(pieces):
                            async for piece in pieces:
                                await send.send(piece)
                    except* OSError as errors:  # the disk, or no inotify instance is left
                        reader.failure = str(errors.exceptions[0])
                        self._warn(part.job_id, key[0], reader.failure)
                    send.close()
                    await anyio.sleep_forever()  # The rest may be read until nobody asks any more.
        finally:
            if self._readers.get(key) is reader:
                del self._readers[key]

    def _warn(self, job_id: str, by: str, failure: str) -> None:
        """Says it once: the asker comes again and again."""
        if self._warned.get((job_id, by)) == failure:
            return
        self._warned[job_id, by] = failure
        if len(self._warned) > WARNINGS_KEPT:
            del self._warned[next(iter(self._warned))]
        _log.warning("cannot show output of job %s to node %s: %s", job_id, by, failure)


async def set_at_end(jobs: OwnJobs, job_id: str, ended: anyio.Event) -> None:
    """Sets `ended` once the job's part on this node has ended, or is not there."""
    async with jobs.subscribe(job_id) as coming:
        report = jobs.job(job_id)
        if report is not None and report.ended_at_ns is None:
            async for _ in coming:
                pass  # only the end counts
    ended.set()


async def _next(reader: _Reader, wait_s: float) -> Logs:
    pieces: list[LogBytes] = []
    size = 0
    try:
        with anyio.move_on_after(wait_s):
            piece = await reader.pieces.receive()
            while True:
                pieces.append(LogBytes(*msgspec.structs.astuple(piece)))
                size += len(piece.data)
                if size >= ANSWER_BYTES:
                    break
                piece = reader.pieces.receive_nowait()
    except anyio.WouldBlock:
        pass  # nothing more is there at this moment
    except (anyio.EndOfStream, anyio.ClosedResourceError):
        if not pieces:
            if reader.scope.cancel_called:  # while this waited; there may be more output
                raise NotFoundError(CLOSED) from None
            reader.scope.cancel()
            if reader.failure:
                raise ExhaustedError(
                    f"cannot show output: {reader.failure}; see the log of that node's supervisor"
                ) from None
            return Logs((), is_last=True)
    return Logs(tuple(pieces))


async def _close_when_idle(reader: _Reader) -> None:
    while True:
        with anyio.move_on_after(IDLE_S) as idle:
            await reader.asked.wait()
        if idle.cancelled_caught:
            reader.scope.cancel()
            return
        reader.asked = anyio.Event()
