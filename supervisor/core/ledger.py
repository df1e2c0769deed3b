"""What does a new leader of a job know of the decisions of the leaders before it?

As little as it must: the rest is what the nodes say. It is written before the orders that follow from it leave, so no
order that reached a node is newer.
"""

from __future__ import annotations

import msgspec

from supervisor.core.facts import Verdict


class Ledger(msgspec.Struct, frozen=True):
    cycle: int = -1  # the newest that was ordered; -1: none
    opened: int = 0  # the newest round that was opened: later than `cycle`, its fault has been counted already
    restarts_used: int = 0  # of the job's budget
    verdict: Verdict | None = None  # how the job ends, once that is decided
    is_told: bool = False  # that verdict, to all nodes that were there
    stop_signal: int | None = None  # a stop is under way; the verdict depends on how the ranks end
    stop_reason: str = ""
    parts: tuple[str, ...] = ()  # the nodes of that cycle, by group rank
    witnesses: tuple[str, ...] = ()  # nodes that the leader heard (see fence.py)


def after_all_know(ended: Ledger) -> Ledger:
    """What stays for a while once the nodes that were there know the verdict."""
    return msgspec.structs.replace(ended, is_told=True)


def of_this_run(found: Ledger, *, is_newcomer: bool) -> tuple[Ledger, Verdict | None]:
    """What a new leader begins with, and how the run before has ended, if this is another one.

    `is_newcomer`: its process has met no leader of the job yet. To such a process an end that was told was another
    run's: the id is used again. A node that missed the end begins nothing.
    """
    return (Ledger(), found.verdict) if found.is_told and is_newcomer else (found, None)
