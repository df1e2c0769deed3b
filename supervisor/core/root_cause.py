"""Which of several failed workers was the one that the others followed?"""

from __future__ import annotations

import signal as signals

from supervisor.core.facts import Cause, WorkerExit
from supervisor.core.workers import Worker


def root_cause(workers: tuple[Worker, ...], first: int | None) -> Cause | None:
    """The failure that came first in time; None if no worker failed by itself.

    `first` is the local rank whose exit was seen first. A rank that raised may take longer to exit than the peers that
    lost their connection to it: where the first exit left an error file, or was an abort (which is how a lost peer
    shows itself), the oldest error file wins. Other deaths without a file, such as SIGKILL for want of memory, stand
    for themselves: the files of others only tell the echo.
    """
    shown = next((each for each in workers if each.local_rank == first), None)
    if shown is None or shown.succeeded:
        return None
    if shown.exit is None:
        return Cause(shown.not_started)
    is_dated = shown.exit.error_at_unix_s is not None
    if not is_dated and shown.exit.signal != signals.SIGABRT:
        return _cause(shown.exit)
    dated = [
        each.exit
        for each in workers
        # What a worker wrote after our own signal may only say that it was signalled.
        if each.exit is not None and not each.succeeded and (is_dated or not each.signalled)
    ]
    return _cause(min(dated, key=_written_at, default=shown.exit))


def first_cause(causes: tuple[Cause, ...], first_failure: str) -> Cause | None:
    """The same over all nodes of a job, each of which has named its own. None: nothing is known beyond what was seen.

    `first_failure` is the sentence that was seen first. An error file of another node is older evidence only where
    that one left a file, too.
    """
    shown = next((each for each in causes if each.sentence == first_failure), None)
    if shown is not None and shown.written_at_unix_s is None:
        return shown
    dated = [each for each in causes if each.written_at_unix_s is not None]
    if dated:
        return min(dated, key=lambda cause: cause.written_at_unix_s or 0.0)
    return shown or (causes[0] if causes else None)


def _cause(exit_: WorkerExit) -> Cause:
    return Cause(exit_.describe(), exit_.error_at_unix_s)


def _written_at(exit_: WorkerExit) -> tuple[float, float]:
    return (float("inf") if exit_.error_at_unix_s is None else exit_.error_at_unix_s, exit_.at_s)
