"""Which of several failed workers failed first, so that the others followed?"""

from __future__ import annotations

import signal as signals
from collections.abc import Iterable

from supervisor.core.facts import Cause, WorkerExit
from supervisor.core.worker_messages import Worker

APART_S = 0.1  # closer failures on two nodes have no known order: a report is on its way for a moment

# A failure, and when it left its error file, by the clock of the leader; None: unknown.
Dated = tuple[Cause, float | None]


def root_cause(workers: tuple[Worker, ...], first: int | None, now_s: float) -> Cause | None:
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
        return _cause(shown.exit, now_s)
    dated = [
        each.exit
        for each in workers
        # An error file written after our own signal may only report that signal.
        if each.exit is not None and not each.succeeded and (is_dated or not each.signalled)
    ]
    return _cause(min(dated, key=_written_at, default=shown.exit), now_s)


def first_cause(seen: Dated, others: Iterable[Dated]) -> Cause:
    """Returns the first failure on all nodes of a job, given the first one on each.

    That is the one that was `seen` first, unless another one is clearly older. Another node's error file can only be
    older evidence if the failure that was seen left a file, too.
    """
    cause, at_s = seen
    if at_s is None:
        return cause
    known = ((other, other_at_s) for other, other_at_s in others if other_at_s is not None)
    oldest, oldest_at_s = min(known, key=lambda each: each[1], default=(cause, at_s))
    return oldest if oldest_at_s < at_s - APART_S else cause


def _cause(exit_: WorkerExit, now_s: float) -> Cause:
    return Cause(exit_.describe(), None if exit_.error_at_s is None else now_s - exit_.error_at_s)


def _written_at(exit_: WorkerExit) -> tuple[float, float]:
    return (float("inf") if exit_.error_at_unix_s is None else exit_.error_at_unix_s, exit_.at_s)
