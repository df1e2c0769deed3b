"""How do a job's reports stay in order if some of them wait for a file?

A report of a start or a fault carries the training iteration from the job's checkpoint file, which may be on a slow
disk. A thread reads it in bounded time; later reports wait, so that none overtakes another.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable

import msgspec

from supervisor.core.cluster.cluster_messages import Event as Report
from supervisor.core.cluster.cluster_messages import JobOpened, NodeFailed, NodeJoined, NodeStopped
from supervisor.ports.edges import Clock

_log = logging.getLogger("holdfast")


class ReportQueue:
    """The reports of one job. Use it only from the event loop's thread."""

    def __init__(
        self,
        *,
        read_iteration: Callable[[], Awaitable[int | None]] | None,
        leave: Callable[[Report], None],
        clock: Clock,
    ) -> None:
        """`read_iteration` None: no file is configured, and every report is sent at once."""
        self._read_iteration = read_iteration
        self._leave = leave
        self._clock = clock
        self._waiting: deque[tuple[Report, float]] = deque()  # since when

    @property
    def waiting(self) -> tuple[Report, ...]:
        """Returns the reports that were not sent yet."""
        return tuple(self._now(*each) for each in self._waiting)

    def put(self, report: Report) -> bool:
        """Sends the report if possible. Returns True if the caller must run `drain` for it and those behind it."""
        if self._read_iteration is None or (not self._waiting and not isinstance(report, JobOpened | NodeFailed)):
            self._leave(report)
            return False
        self._waiting.append((report, self._clock.now_s()))
        return len(self._waiting) == 1

    async def drain(self) -> None:
        """Sends all waiting reports; without its iteration if that can't be read."""
        while self._waiting:
            report, since_s = self._waiting[0]
            if isinstance(report, JobOpened | NodeFailed) and self._read_iteration is not None:
                try:
                    iteration = await self._read_iteration()
                except Exception as error:  # noqa: BLE001 - whatever is wrong with the file, the report is sent
                    _log.warning("cannot read the checkpoint iteration: %s", error)
                    iteration = None
                report = msgspec.structs.replace(report, training_iteration=iteration)
            self._waiting.popleft()
            self._leave(self._now(report, since_s))

    def _now(self, report: Report, since_s: float) -> Report:
        if not isinstance(report, NodeJoined | NodeStopped) or report.cause is None:
            return report
        return msgspec.structs.replace(report, cause=report.cause.later(self._clock.now_s() - since_s))
