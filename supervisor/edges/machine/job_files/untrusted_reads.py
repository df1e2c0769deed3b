"""Small files that a job writes for its supervisor, read without trust and without waiting for long."""

from __future__ import annotations

from functools import partial

import msgspec

from supervisor.edges.machine.job_files import checkpoint_file
from supervisor.edges.machine.own_process.own_descriptors import separately
from supervisor.edges.machine.own_process.side_threads import SideThreads

READ_TIMEOUT_S = 2.0


class JobFiles(msgspec.Struct, frozen=True):
    """See ports.JobFiles."""

    read_timeout_s: float = READ_TIMEOUT_S
    threads: dict[str, SideThreads] = msgspec.field(
        default_factory=dict[str, SideThreads]
    )  # by path, while one is read

    async def read_iteration(self, path: str) -> int | None:
        """The file may lie on a file system that hangs: after the timeout the thread is left to itself.

        Until it comes back, that file is not read again; those of other jobs are.
        """
        read = partial(checkpoint_file.read_iteration, path)
        threads = self.threads.setdefault(path, SideThreads(stuck_max=1))
        try:
            return await threads.call(lambda: separately(read), timeout_s=self.read_timeout_s, discard=bool)
        except OSError:  # stuck, or no thread
            return None
        finally:
            if not threads.stuck:
                self.threads.pop(path, None)
