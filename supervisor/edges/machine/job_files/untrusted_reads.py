"""How are small files that a job writes for its supervisor read, without trust and without waiting for long?"""

from __future__ import annotations

from functools import partial

import msgspec

from supervisor.edges.machine.job_files import checkpoint_file
from supervisor.edges.machine.own_process.own_descriptors import separately
from supervisor.edges.machine.own_process.side_threads import SideThreads

READ_TIMEOUT_S = 2.0


class JobFiles(msgspec.Struct, frozen=True):
    """Reads files of jobs; see ports.JobFiles."""

    read_timeout_s: float = READ_TIMEOUT_S
    threads: dict[str, SideThreads] = msgspec.field(default_factory=dict[str, SideThreads])  # by path, during a read

    async def read_iteration(self, path: str) -> int | None:
        """Reads the file in a thread. If its file system hangs, the thread is abandoned after the timeout.

        Until that thread returns, this file is not read again; other jobs' files are.
        """
        read = partial(checkpoint_file.read_iteration, path)
        threads = self.threads.setdefault(path, SideThreads(stuck_max=1))
        try:
            return await threads.call(lambda: separately(read), timeout_s=self.read_timeout_s, discard=bool)
        except OSError:  # stuck, or no thread available
            return None
        finally:
            if not threads.stuck:
                self.threads.pop(path, None)
