"""What do people read about wrapped calls, their faults and their restarts?"""

from __future__ import annotations

from collections.abc import Iterable

from supervisor.core.calls.book import Faults
from supervisor.core.calls.words import FaultRecord, Interruption

NAMED_MAX = 4

# What the rank itself has told is its exception; what its supervisor has seen is a predicate: "was killed by SIGKILL".
_BY_ITSELF = {Interruption.EXCEPTION: "failed: ", Interruption.BASE_EXCEPTION: "left the call: "}


def fault_sentence(member: int, record: FaultRecord) -> str:
    """ "rank 1 failed: ValueError: bad loss". A negative member is known by its number alone."""
    who = member if member >= 0 else record.rank
    return f"rank {who} {_BY_ITSELF.get(record.interruption, '')}{record.reason or 'for a reason that is not known'}"


def faults_sentence(faults: Faults) -> str:
    """The first ones named, the others counted."""
    named = [fault_sentence(member, next(iter(told.values()))) for member, told in list(faults.items())[:NAMED_MAX]]
    more = len(faults) - NAMED_MAX
    return "; ".join(named) + (f"; and {more} more ranks" if more > 0 else "")


def ranks_sentence(members: Iterable[int]) -> str:
    """ "rank 2", "ranks 2, 5" or "ranks 0, 1, 2, 3 and 12 more"."""
    names = sorted(members)
    text = ", ".join(map(str, names[:NAMED_MAX]))
    more = len(names) - NAMED_MAX
    return f"rank{'' if len(names) == 1 else 's'} {text}" + (f" and {more} more" if more > 0 else "")


def begun_sentence(iteration: int, size: int, world_size: int, gone: Iterable[int], joined: Iterable[int]) -> str:
    """ "iteration 3 begins with 7 of 8 ranks; rank 2 is gone"."""
    whole = "all" if size == world_size else f"{size} of"
    text = f"iteration {iteration} begins with {whole} {world_size} ranks"
    missing, new = list(gone), list(joined)
    if missing:
        text += f"; {ranks_sentence(missing)} {'is' if len(missing) == 1 else 'are'} gone"
    if new:
        text += f"; a new process stands in for {ranks_sentence(new)}"
    return text


def deserted_sentence(call: int, why: dict[int, str]) -> str:
    named = "; ".join(f"rank {member} {reason}" for member, reason in list(why.items())[-NAMED_MAX:])
    more = len(why) - NAMED_MAX
    return f"no rank is left in call {call}: {named}" + (f"; and {more} more ranks" if more > 0 else "")
