"""How long may ranks take to end after a Ctrl-C at a terminal, where somebody looks on?"""

from __future__ import annotations

import signal

from supervisor.config.resolve import RunRequest

INTERRUPTED_S = 30.0  # as torchrun waits


def interrupted_grace_s(request: RunRequest, number: int) -> float | None:
    """Returns the time after this signal from a terminal; None: as configured. What a user has written holds."""
    if number != signal.SIGINT or {"term_timeout", "shutdown_timeout"} & set(request.sources):
        return None
    return min(INTERRUPTED_S, request.spec.term_timeout_s)
