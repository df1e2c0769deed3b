"""Which logs were submitted, what was found in each, and how did the cycles before it end?

Threads read the logs of some jobs at the same time, of each job one, only as far as it has grown since the last look,
and for a bounded time: a log that is huge, or on a disk that does not answer, holds one place and delays no other job.
The signatures of a job's cycles are kept in order, so that cycles that end alike are recognised.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import anyio
import msgspec

from supervisor.core.attribution.log_verdict import Judgement
from supervisor.edges.machine.clock import Clock
from supervisor.edges.machine.own_process.side_threads import SideThreads, StuckError
from supervisor.errors import ExhaustedError, InvalidRequestError
from supervisor.programs.attribution.log_file import LogFile
from supervisor.programs.attribution.work_queue import WorkQueue

LOGS_MAX = 1_000  # remembered at once; the oldest are forgotten
QUEUE_LOGS_MAX = 64
LOGS_AT_ONCE = 4
READ_TIMEOUT_S = 45.0  # for one look at a log, which ends by itself before, unless its disk does not answer
PLACE_TIMEOUT_S = 5.0  # to find a path's real place
STUCK_MAX = 8  # looks at a disk that never answered
SERIES_MAX, CYCLES_MAX = 1_000, 64  # jobs whose cycles are compared, and cycles of one job
TAIL_LINES = 200  # kept for a model
CYCLE = re.compile(r"_cycle(\d+)(?=\.[^.]*$|$)")

RULES = "rules"
Opinion = Callable[[Judgement, str], Awaitable[tuple[Judgement, str]]]  # with the log's last lines → judgement, source


class Asked(msgspec.Struct, frozen=True):
    """A submitted log. `is_terminal`: the cycle has ended; its log will not grow."""

    path: str
    is_terminal: bool
    user: str = ""
    job_id: str = ""


class Result(msgspec.Struct, frozen=True):
    asked: Asked
    judgement: Judgement
    source: str


Take = Callable[[Result], Awaitable[None]]


class _Log:
    """What is known of one log."""

    def __init__(self, file: LogFile) -> None:
        self.file = file
        self.result: Result | None = None
        self.problem = ""
        self.changed = anyio.Event()
        self.due = 0  # submissions that are not analysed yet

    @property
    def is_due(self) -> bool:
        return self.due > 0


class Analyses:
    """The analyses of all logs, for one event loop. No log outside `folder` is read."""

    def __init__(self, folder: Path, opinion: Opinion | None = None, take: Take | None = None) -> None:
        """`take` gets the result of each cycle that has ended."""
        self.folder = folder.resolve()
        self.logs: OrderedDict[str, _Log] = OrderedDict()
        self._opinion = opinion
        self._take_result = take
        self._signatures: OrderedDict[tuple[str, str], dict[int, str]] = OrderedDict()
        self._line: WorkQueue[Asked] = WorkQueue(
            most=QUEUE_LOGS_MAX, places=LOGS_AT_ONCE, key=lambda asked: CYCLE.sub("", asked.path)
        )
        self._threads = SideThreads(stuck_max=STUCK_MAX)
        self._place_threads = SideThreads(stuck_max=STUCK_MAX)
        self._clock = Clock()

    async def submit(self, asked: Asked) -> None:
        """Queues a log. Raises InvalidRequestError for a path outside the folder, ExhaustedError if too many wait."""
        path = await self.place(asked.path)
        if self._line.is_full:
            raise ExhaustedError(f"cannot analyse {path}: {QUEUE_LOGS_MAX} logs are already waiting; ask again later")
        log = self.logs.setdefault(path, self._log(path))
        log.due += 1
        self.logs.move_to_end(path)
        while len(self.logs) > LOGS_MAX:
            self.logs.popitem(last=False)
        self._line.put(msgspec.structs.replace(asked, path=path))

    async def place(self, path: str) -> str:
        """Returns the real path. Raises InvalidRequestError if it is outside the folder.

        Raises ExhaustedError if its disk does not answer.
        """
        try:
            real = await self._place_threads.call(
                lambda: Path(os.path.realpath(path)), timeout_s=PLACE_TIMEOUT_S, discard=bool, key=path
            )
        except OSError as error:
            raise ExhaustedError(f"cannot look for {path}: {error}; check its disk") from error
        if not os.path.isabs(path) or not real.is_relative_to(self.folder):
            raise InvalidRequestError(
                f"cannot analyse {path}: it is not below {self.folder}, the folder of this service; name a log there"
            )
        return str(real)

    def _log(self, path: str) -> _Log:
        return _Log(LogFile(path, tail_lines=TAIL_LINES if self._opinion else 0))

    @property
    def waiting(self) -> int:
        return sum(log.is_due for log in self.logs.values())

    async def run(self) -> None:
        """Analyses submitted logs until cancelled."""
        await self._line.serve(self._take)

    async def idle(self) -> None:
        """Returns once all submitted logs are analysed."""
        await self._line.emptied()

    async def _take(self, asked: Asked) -> None:
        log = self.logs.get(asked.path)
        if log is None:
            return  # forgotten meanwhile
        try:
            await self._analyse(log, asked)
            log.problem = ""
        except StuckError as error:
            log.problem = f"cannot read {asked.path}: {error}; check its disk"
            fresh = self.logs[asked.path] = self._log(asked.path)  # The stuck thread still uses the other one.
            fresh.problem, fresh.due = log.problem, max(0, log.due - 1)
        except OSError as error:
            log.problem = f"cannot read {asked.path}: {error.strerror or error}"
            log.result = None  # what was found before the log grew does not answer for the whole of it
        log.due = max(0, log.due - 1)
        if not log.is_due:
            log.changed.set()
            log.changed = anyio.Event()

    async def _analyse(self, log: _Log, asked: Asked) -> None:
        read = partial(log.file.read_on, self._clock.now_s, to_the_end=asked.is_terminal)
        await self._threads.call(read, timeout_s=READ_TIMEOUT_S, discard=bool, key=asked.path)
        series, cycle = _series(asked)
        signatures = self._signatures.setdefault(series, {})
        self._signatures.move_to_end(series)
        if len(self._signatures) > SERIES_MAX:
            self._signatures.popitem(last=False)
        earlier = [signatures[each] for each in sorted(signatures) if each < cycle]
        judgement = log.file.analysis.judgement(earlier=earlier, has_ended=asked.is_terminal)
        if skipped := log.file.skipped_bytes:
            left_out = f"{skipped} of the log's {log.file.size_bytes} bytes were not examined"
            judgement = msgspec.structs.replace(judgement, reason=f"{judgement.reason} ({left_out})")
        source = RULES
        if asked.is_terminal:
            signatures[cycle] = judgement.signature
            if len(signatures) > CYCLES_MAX:
                del signatures[min(signatures)]
            if self._opinion is not None:
                judgement, source = await self._opinion(judgement, "\n".join(log.file.tail))
        log.result = Result(asked, judgement, source)
        if asked.is_terminal and self._take_result is not None:
            await self._take_result(log.result)


def _series(asked: Asked) -> tuple[tuple[str, str], int]:
    """Returns the key that the logs of one job's cycles share, and the cycle."""
    found = CYCLE.search(asked.path)
    return (asked.job_id, CYCLE.sub("", asked.path)), int(found[1]) if found else 0
