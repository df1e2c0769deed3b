"""What does the connection to the other nodes of a job leave to its successor, and when may messages go out?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from supervisor.core.correspondence import Correspondence
from supervisor.ports.questions import PeersAndColleagues


class Archive(msgspec.Struct, frozen=True):
    """The archive of one job. Messages, and confirmations of received ones, wait until `keep` has had them kept."""

    # False: keeping is not possible now; the owner reads the letters later. None: no supervisor returns, nothing waits.
    keep: Callable[[], bool] | None = None
    kept: Correspondence | None = None  # the correspondence of the previous supervisor


class JobPeers(PeersAndColleagues, Protocol):
    """The connections of one job to its other nodes."""

    def letters(self, *, whole: bool = True) -> Correspondence:
        """Returns the current correspondence; all of it may go out from now on. Not `whole`: only the changes."""
        ...
