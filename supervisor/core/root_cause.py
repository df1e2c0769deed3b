"""Which of several failed workers failed first, so that the others followed?"""

from __future__ import annotations

import signal as signals

from supervisor.core.facts import Cause, WorkerExit
from supervisor.core.worker_messages import Worker


def root_cause(workers: tuple[Worker, ...], first: int | None) -> Cause | None:
    """Returns the first failure in time; None if no worker failed by itself.

    `first` is the local rank whose exit was seen first. A rank that raised may take longer to exit than the peers that
    lost their connection to it. So if the first exit left an error file, or was an abort (the usual effect of a lost
    peer), the oldest error file wins. Other deaths without a file, such as SIGKILL when memory runs out, are the cause
    themselves: the others' files describe only the aftermath.
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
        # An error file written after our own signal may only report that signal.
        if each.exit is not None and not each.succeeded and (is_dated or not each.signalled)
    ]
    return _cause(min(dated, key=_written_at, default=shown.exit))


def first_cause(causes: tuple[Cause, ...], first_failure: str) -> Cause | None:
    """Returns the first failure on all nodes of a job, given each node's own; None: no more is known than was seen.

    `first_failure` is the sentence that was seen first. Another node's error file can only be older evidence if that
    failure left a file, too.
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
