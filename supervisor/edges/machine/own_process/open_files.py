"""How many descriptors may this supervisor hold, and how many may its child processes hold?"""

from __future__ import annotations

import resource
from contextlib import suppress


class RaisedLimit:
    """Lets this process open as many files as the kernel allows, from construction to `restore()`.

    gRPC and asyncio fail if descriptors run out, and every rank costs some. `before_and_now` holds the old and the new
    soft limit, for child processes, which must get the old one; () if both are equal.
    """

    def __init__(self) -> None:
        self.before_and_now: tuple[int, ...] = ()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            with suppress(OSError, ValueError):  # The hard limit may exceed fs.nr_open, which was lowered since.
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
                self.before_and_now = (soft, hard)

    def restore(self) -> None:
        if self.before_and_now:
            resource.setrlimit(resource.RLIMIT_NOFILE, self.before_and_now)  # pyright: ignore[reportArgumentType]
            self.before_and_now = ()
