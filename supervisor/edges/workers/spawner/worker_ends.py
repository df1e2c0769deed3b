"""Which workers have ended although their spawner has not reported it?

The supervisor holds a pidfd of each worker from its start until the spawner reports its end. Normally that report comes
at once, and nothing is reported here. If no descriptors are left, a worker is not watched.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable

import anyio

REPORT_GRACE_S = 0.25  # a healthy spawner reports an end within milliseconds

OnEndSeen = Callable[[int, int], None]  # cycle, local rank


class WorkerEnds:
    """The workers of one spawner. Use it only from the event loop's thread."""

    def __init__(self, on_end_seen: OnEndSeen) -> None:
        self._on_end_seen = on_end_seen
        self._epoll: select.epoll | None = None  # one descriptor for the event loop, for any number of workers
        self._opened = anyio.Event()
        self._pidfds: dict[tuple[int, int], int] = {}
        self._workers: dict[int, tuple[int, int]] = {}  # pidfd -> worker
        self._unreported: dict[tuple[int, int], int] = {}  # just ended, and not reported yet
        self._reported = anyio.Event()  # set when all of those are reported

    def note(self, cycle: int, local_rank: int, pid: int) -> None:
        """Watches a worker that the spawner has started."""
        self.forget(cycle, local_rank)
        try:
            if self._epoll is None:
                self._epoll = select.epoll()
                self._opened.set()
            pidfd = os.pidfd_open(pid)
        except OSError:
            return
        try:
            self._epoll.register(pidfd, select.EPOLLIN)
        except OSError:
            os.close(pidfd)
            return
        self._pidfds[cycle, local_rank] = pidfd
        self._workers[pidfd] = (cycle, local_rank)

    def forget(self, cycle: int, local_rank: int) -> None:
        """Forgets a worker whose end the spawner reported."""
        pidfd = self._pidfds.pop((cycle, local_rank), None)
        if pidfd is None:
            return
        if self._unreported.pop((cycle, local_rank), None) is None and self._epoll is not None:
            self._epoll.unregister(pidfd)
        os.close(pidfd)
        if not self._unreported:
            self._reported.set()

    async def run(self) -> None:
        """Reports ends that the spawner did not report in time, until cancelled."""
        await self._opened.wait()
        while self._epoll is not None:
            await anyio.wait_readable(self._epoll.fileno())
            self._reported = anyio.Event()
            self._take_ended(self._epoll)
            with anyio.move_on_after(REPORT_GRACE_S):
                await self._reported.wait()
            for worker in list(self._unreported):
                self.forget(*worker)
                self._on_end_seen(*worker)

    def close(self) -> None:
        for cycle, local_rank in list(self._pidfds):
            self.forget(cycle, local_rank)
        if self._epoll is not None:
            self._epoll.close()
            self._epoll = None

    def _take_ended(self, epoll: select.epoll) -> None:
        """Notes workers that have just ended, each once."""
        for pidfd, _ in epoll.poll(0):
            epoll.unregister(pidfd)
            self._unreported[self._workers[pidfd]] = pidfd
