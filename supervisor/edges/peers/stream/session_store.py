"""What does the connection to the other nodes of a job leave to its successor, and when may messages go out?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from supervisor.core.session_state import JobSessions
from supervisor.ports.questions import PeersAndNodeRequests


class SessionStore(msgspec.Struct, frozen=True):
    """Where the state of one job's sessions is kept. Messages, and confirmations of received ones, wait until `keep`
    has had them kept."""

    # False: keeping is not possible now; the owner reads the state of the sessions later. None: no supervisor returns,
    # nothing waits.
    keep: Callable[[], bool] | None = None
    kept: JobSessions | None = None  # what the previous supervisor left


class JobPeers(PeersAndNodeRequests, Protocol):
    """The connections of one job to its other nodes."""

    def session_state(self, *, whole: bool = True) -> JobSessions:
        """Returns the current state of the sessions; all of it may go out from now on. Not `whole`: only the
        changes."""
        ...
