"""What does the way to the other nodes of one job leave to a supervisor that comes back, and when may words go out?"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from supervisor.core.correspondence import Correspondence


class Archive(msgspec.Struct):
    """Of one job. What is said waits for `keep`, which has it kept; what has come is confirmed after that, too."""

    # False: it can't do that just now, and asks by `read` later. None: no supervisor comes back, and nothing waits.
    keep: Callable[[], bool] | None = None
    kept: Correspondence | None = None  # that of the supervisor before this one
    read: Callable[[], Correspondence] | None = None  # how it stands; all of that may go out from now on
