"""In which order do a job's reports leave, even if some wait for a file?

A report of a start or a fault carries the training iteration of the job's checkpoint file, which may lie on a slow
disk. It is read beside the loop, in a bounded time; reports that follow wait, so that none overtakes another.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable

import msgspec

from supervisor.core.cluster.messages import Event as Report
from supervisor.core.cluster.messages import JobOpened, NodeFailed

_log = logging.getLogger("holdfast")


class ReportQueue:
    """The reports of one job. All methods are for the event loop's thread."""

    def __init__(
        self, *, read_iteration: Callable[[], Awaitable[int | None]] | None, leave: Callable[[Report], None]
    ) -> None:
        """`read_iteration` None: no file is configured, and every report leaves at once."""
        self._read_iteration = read_iteration
        self._leave = leave
        self._waiting: deque[Report] = deque()

    @property
    def waiting(self) -> tuple[Report, ...]:
        """Those that have not left."""
        return tuple(self._waiting)

    def put(self, report: Report) -> bool:
        """Lets the report leave, now if it may. True: `drain` has to be run for it and those behind it."""
        if self._read_iteration is None or (not self._waiting and not isinstance(report, JobOpened | NodeFailed)):
            self._leave(report)
            return False
        self._waiting.append(report)
        return len(self._waiting) == 1

    async def drain(self) -> None:
        """Lets all leave that wait. One that can't be read for leaves without its iteration."""
        while self._waiting:
            report = self._waiting[0]
            if isinstance(report, JobOpened | NodeFailed) and self._read_iteration is not None:
                try:
                    iteration = await self._read_iteration()
                except Exception as error:  # noqa: BLE001 - whatever is wrong with the file, the report leaves
                    _log.warning("cannot read the checkpoint iteration: %s", error)
                    iteration = None
                report = msgspec.structs.replace(report, training_iteration=iteration)
            self._waiting.popleft()
            self._leave(report)
