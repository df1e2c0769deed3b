"""How many descriptors may this supervisor hold, and how many those that it starts?"""

from __future__ import annotations

import resource
from contextlib import suppress


class RaisedLimit:
    """From construction until `restore()` this process may open as many files as the kernel lets it.

    gRPC and asyncio do not survive it when descriptors run out, and every rank costs some. `before_and_now` holds the
    soft limit as it was and as it is, for those that are started meanwhile and must find the first; () where it is one.
    """

    def __init__(self) -> None:
        self.before_and_now: tuple[int, ...] = ()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            with suppress(OSError, ValueError):  # A hard limit above fs.nr_open, which was lowered since.
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
                self.before_and_now = (soft, hard)

    def restore(self) -> None:
        if self.before_and_now:
            resource.setrlimit(resource.RLIMIT_NOFILE, self.before_and_now)  # pyright: ignore[reportArgumentType]
            self.before_and_now = ()
