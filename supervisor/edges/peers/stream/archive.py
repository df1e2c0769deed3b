"""What does the connection to the other nodes of a job leave to its successor, and when may messages go out?"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from supervisor.core.correspondence import Correspondence


class Archive(msgspec.Struct):
    """The archive of one job. Messages, and confirmations of received ones, wait until `keep` has had them kept."""

    # False: keeping is not possible now; the owner calls `read` later. None: no supervisor returns, and nothing waits.
    keep: Callable[[], bool] | None = None
    kept: Correspondence | None = None  # the correspondence of the previous supervisor
    read: Callable[[], Correspondence] | None = None  # reads the current state; all of it may go out from then on
    read_changed: Callable[[], Correspondence] | None = None  # the same, without what was read before; None: `read`
