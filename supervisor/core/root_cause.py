"""Which of several failed workers was the one that the others followed?"""

from __future__ import annotations

import signal as signals

from supervisor.core.facts import WorkerExit
from supervisor.core.workers import Worker


def root_cause(workers: tuple[Worker, ...], first: int | None) -> str:
    """The sentence of the failure that came first in time; "" if no worker failed by itself.

    `first` is the local rank whose exit was seen first. A rank that raised may take longer to exit than the peers that
    lost their connection to it: where the first exit left an error file, or was an abort (which is how a lost peer
    shows itself), the oldest error file wins. Other deaths without a file, such as SIGKILL for want of memory, stand
    for themselves: the files of others only tell the echo.
    """
    shown = next((each for each in workers if each.local_rank == first), None)
    if shown is None or shown.succeeded:
        return ""
    if shown.exit is None:
        return shown.not_started
    is_dated = shown.exit.error_at_unix_s is not None
    if not is_dated and shown.exit.signal != signals.SIGABRT:
        return shown.exit.describe()
    dated = [
        each.exit
        for each in workers
        # What a worker wrote after our own signal may only say that it was signalled.
        if each.exit is not None and not each.succeeded and (is_dated or not each.signalled)
    ]
    return min(dated, key=_written_at, default=shown.exit).describe()


def _written_at(exit_: WorkerExit) -> tuple[float, float]:
    return (float("inf") if exit_.error_at_unix_s is None else exit_.error_at_unix_s, exit_.at_s)
