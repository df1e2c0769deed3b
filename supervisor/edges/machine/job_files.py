"""Small files that a job writes for its supervisor, read without trust and without waiting for long."""

from __future__ import annotations

import anyio
import anyio.to_thread

from supervisor.edges.machine import checkpoint_file, error_file

READ_TIMEOUT_S = 2.0
THREADS_MAX = 4  # reads that hang in a dead network file system at the same time


class JobFiles:
    """See ports.JobFiles."""

    def __init__(self, *, read_timeout_s: float = READ_TIMEOUT_S) -> None:
        self._read_timeout_s = read_timeout_s
        self._limiter = anyio.CapacityLimiter(THREADS_MAX)

    async def read_iteration(self, path: str) -> int | None:
        """The file may lie on a file system that hangs: after the timeout the thread is left to itself."""
        with anyio.move_on_after(self._read_timeout_s):
            return await anyio.to_thread.run_sync(
                checkpoint_file.read_iteration, path, abandon_on_cancel=True, limiter=self._limiter
            )
        return None

    def read_error(self, path: str) -> tuple[str, float | None] | None:
        """Reads at once: the file is in our own log directory."""
        return error_file.read(path)
