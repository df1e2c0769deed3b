"""Can none of a job's ranks go on, because some are gone and all others wait in a collective?

Pure. The looks at all ranks overlap in time, so what they show was true of all ranks at one moment. A rank that was
then still in a collective, while neither another thread nor a child of it did anything, can be woken only by another
rank. If that is true of every rank, nobody wakes any of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from supervisor.core.facts import Evidence
from supervisor.core.hangs.hang_text import listed_clauses, said_of
from supervisor.core.hangs.library_frames import Doing, activity_of
from supervisor.core.process_facts import Frame, ProcessState, RankFacts

CPU_SHARE_MAX = 0.05  # of a core, by all threads of a rank: a thread that saves or sends needs more


class Deadlock(msgspec.Struct, frozen=True):
    """`clause`: which ranks wait, and where. `ranks`: all that are left."""

    clause: str
    ranks: tuple[int, ...]


def find(parts: Sequence[Evidence], *, world_size: int) -> Deadlock | None:
    """Returns the deadlock. None: some rank may go on, not enough is known, or no rank is gone."""
    calls: dict[str, list[int]] = {}
    for part in parts:
        frames = {rank: group.frames for group in part.groups for rank in group.ranks}
        for facts in part.facts:
            if facts.has_exited:
                continue
            call = _call(facts, frames.get(facts.rank, ()))
            if not call:
                return None
            calls.setdefault(call, []).append(facts.rank)
    ranks = tuple(sorted(rank for waiting in calls.values() for rank in waiting))
    if not ranks or len(ranks) >= world_size:
        return None
    clauses = (said_of(sorted(waiting), f"{{wait}} in {call}") for call, waiting in sorted(calls.items()))
    return Deadlock(listed_clauses(clauses, ", "), ranks)


def _call(facts: RankFacts, frames: tuple[Frame, ...]) -> str:
    """Returns the collective in which the rank can only be woken by others; "": there is none, or nobody knows."""
    process, activity = facts.process, activity_of(frames)
    if process is None or activity is None or activity.doing is not Doing.WAITS_FOR_RANKS:
        return ""
    sleeps = process.state is ProcessState.SLEEPING and process.is_still
    return activity.call if sleeps and process.is_idle and process.cpu_share <= CPU_SHARE_MAX else ""
