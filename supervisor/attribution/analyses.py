"""Which logs were submitted, what was found in each, and how did the cycles before it end?

A thread reads the logs one by one, only as far as they have grown since the last look. The signatures of a job's cycles
are kept in order, so that cycles that end alike are recognised.
"""

from __future__ import annotations

import os
import re
import stat
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import anyio
import msgspec

from supervisor.attribution.waiting_line import WaitingLine
from supervisor.core.attribution.analysis import Analysis, Judgement
from supervisor.edges.machine.own_process.side_threads import SideThreads, StuckError
from supervisor.errors import ExhaustedError, InvalidRequestError

LOGS_MAX = 1_000  # remembered at once; the oldest are forgotten
QUEUE_LOGS_MAX = 64
READ_BYTES = 1 << 20
READ_TIMEOUT_S = 600.0  # for one look at a log
STUCK_MAX = 8  # looks at a disk that never answered
LOG_BYTES_MAX = 4 << 30  # read of one log in all
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


class _Log:
    """One log file, as far as it has been read."""

    def __init__(self) -> None:
        self.analysis = Analysis()
        self.offset = 0
        self.rest = b""
        self.tail: list[str] = []
        self.result: Result | None = None
        self.problem = ""
        self.changed = anyio.Event()
        self.is_due = False


class Analyses:
    """The analyses of all logs, for one event loop. No log outside `folder` is read."""

    def __init__(self, folder: Path, opinion: Opinion | None = None) -> None:
        self.folder = folder.resolve()
        self.logs: OrderedDict[str, _Log] = OrderedDict()
        self.on_result: Callable[[Result], Awaitable[None]] | None = None
        self._opinion = opinion
        self._signatures: dict[tuple[str, str], dict[int, str]] = {}
        self._line: WaitingLine[Asked] = WaitingLine(most=QUEUE_LOGS_MAX)
        self._threads = SideThreads(stuck_max=STUCK_MAX)

    def submit(self, asked: Asked) -> None:
        """Queues a log. Raises InvalidRequestError for a path outside the folder, ExhaustedError if too many wait."""
        path = self.place(asked.path)
        if self._line.is_full:
            raise ExhaustedError(f"cannot analyse {path}: {QUEUE_LOGS_MAX} logs are already waiting; ask again later")
        log = self.logs.setdefault(path, _Log())
        log.is_due = True
        self.logs.move_to_end(path)
        while len(self.logs) > LOGS_MAX:
            self.logs.popitem(last=False)
        self._line.put(msgspec.structs.replace(asked, path=path))

    def place(self, path: str) -> str:
        """Returns the real path. Raises InvalidRequestError if it is outside the folder."""
        real = Path(os.path.realpath(path))
        if not os.path.isabs(path) or not real.is_relative_to(self.folder):
            raise InvalidRequestError(
                f"cannot analyse {path}: it is not below {self.folder}, the folder of this service"
            )
        return str(real)

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
            del self.logs[asked.path]  # The stuck thread still uses it.
        except OSError as error:
            log.problem = f"cannot read {asked.path}: {error.strerror or error}"
        log.is_due = False
        log.changed.set()
        log.changed = anyio.Event()

    async def _analyse(self, log: _Log, asked: Asked) -> None:
        read = partial(_read_on, log, asked.path, to_the_end=asked.is_terminal)
        await self._threads.call(read, timeout_s=READ_TIMEOUT_S, discard=_nothing)
        series, cycle = _series(asked)
        signatures = self._signatures.setdefault(series, {})
        earlier = [signatures[each] for each in sorted(signatures) if each < cycle]
        judgement = log.analysis.judgement(earlier=earlier, has_ended=asked.is_terminal)
        source = RULES
        if asked.is_terminal:
            signatures[cycle] = judgement.signature
            if self._opinion is not None:
                judgement, source = await self._opinion(judgement, "\n".join(log.tail))
        log.result = Result(asked, judgement, source)
        if asked.is_terminal and self.on_result is not None:
            await self.on_result(log.result)


def _nothing(_: None) -> None:
    """Ignores a look that came back too late."""


def _series(asked: Asked) -> tuple[tuple[str, str], int]:
    """Returns the key that the logs of one job's cycles share, and the cycle."""
    found = CYCLE.search(asked.path)
    return (asked.job_id, CYCLE.sub("", asked.path)), int(found[1]) if found else 0


def _read_on(log: _Log, path: str, *, to_the_end: bool) -> None:
    """Reads the added lines; an unfinished last one only if `to_the_end`. Raises OSError. Blocks."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(None, "it is no file")
        while log.offset < LOG_BYTES_MAX and (data := os.pread(descriptor, READ_BYTES, log.offset)):
            log.offset += len(data)
            *lines, log.rest = (log.rest + data).split(b"\n")
            _take(log, lines)
    finally:
        os.close(descriptor)
    if log.rest and to_the_end:
        _take(log, [log.rest])
        log.rest = b""


def _take(log: _Log, lines: list[bytes]) -> None:
    texts = [line.decode(errors="replace") for line in lines]
    for text in texts:
        log.analysis.take(text)
    log.tail = [*log.tail, *texts[-TAIL_LINES:]][-TAIL_LINES:]
