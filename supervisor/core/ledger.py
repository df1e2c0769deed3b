"""What does a new leader of a job know of the decisions of the leaders before it?

As little as it must: the rest is what the nodes say. It is written before the orders that follow from it leave, so no
order that reached a node is newer.
"""

from __future__ import annotations

import msgspec

from supervisor.core.facts import Verdict


class Former(msgspec.Struct, frozen=True):
    """An earlier run of the job, as it ended. A process is of it that has first met a leader of `term` or before."""

    verdict: Verdict
    term: int


class Ledger(msgspec.Struct, frozen=True):
    cycle: int = -1  # the newest that was ordered; -1: none
    opened: int = 0  # the newest round that was opened: later than `cycle`, its fault has been counted already
    restarts_used: int = 0  # of the job's budget
    verdict: Verdict | None = None  # how the job ends, once that is decided
    is_told: bool = False  # that verdict, to all nodes that were there
    told_by: int = 0  # the term of the leader that told it; 0: it was not told, or by an older version
    stop_signal: int | None = None  # a stop is under way; the verdict depends on how the ranks end
    stop_reason: str = ""
    parts: tuple[str, ...] = ()  # the nodes of that cycle, by group rank
    processes: tuple[str, ...] = ()  # the same: which of a node's processes was ordered it; "": unknown
    witnesses: tuple[str, ...] = ()  # nodes that the leader heard (see fence.py)
    former: Former | None = None  # the run before, of which nodes may be left that have not heard its end


def after_all_know(ended: Ledger, term: int) -> Ledger:
    """What stays for a while once the nodes that were there know the verdict from the leader of that term."""
    return msgspec.structs.replace(ended, is_told=True, told_by=term)


def of_this_run(found: Ledger, *, term: int, met_term: int) -> tuple[Ledger, Former | None]:
    """What the leader of `term` begins with, and how the run before has ended, if this is another one.

    `met_term`: of the first leader that its process has met; 0: none. To a process that has met none of the leaders of
    a run, an end that was told was another run's: the id is used again. A node that missed the end begins nothing,
    whichever leader it has followed since: such a leader may be one of the nodes that missed it, as this one may be.
    """
    if not found.is_told or found.verdict is None:
        return found, None
    last_term = found.told_by or term - 1
    is_of_it = 0 < met_term <= last_term
    return (found, None) if is_of_it else (Ledger(), Former(found.verdict, last_term))
