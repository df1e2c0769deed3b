"""Which jobs wait for one reader, each of them once?

Whatever adds a job is made before the reader, and never waits for it.
"""

from __future__ import annotations

import anyio


class WaitingJobs:
    """Job ids in the order in which they were added. Only for the event loop's thread."""

    def __init__(self) -> None:
        self._waiting: dict[str, None] = {}
        self._arrived = anyio.Event()

    def add(self, job_id: str) -> None:
        """Adds the job, if it does not wait already. Never blocks."""
        self._waiting[job_id] = None
        self._arrived.set()

    async def take(self) -> str:
        while not self._waiting:
            self._arrived = anyio.Event()
            await self._arrived.wait()
        job_id = next(iter(self._waiting))
        del self._waiting[job_id]
        return job_id
