"""What do people read about wrapped calls, their faults and their restarts?"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from supervisor.core.wrapped_calls.call_messages import FaultRecord, Interruption
from supervisor.core.wrapped_calls.call_state import Faults
from supervisor.core.wrapped_calls.replacement_ranks import Plan
from supervisor.core.wrapped_calls.retry_backoff import FailedInARow

NAMED_MAX = 4
REASON_CHARACTERS_MAX = 140  # of each fault in a list; the rank's output has all of it

# A rank reports its exception; its supervisor reports a predicate, such as "was killed by SIGKILL".
_BY_ITSELF = {Interruption.EXCEPTION: "failed: ", Interruption.BASE_EXCEPTION: "left the call: "}


def fault_sentence(member: int, record: FaultRecord) -> str:
    """Returns "rank 1 failed: ValueError: bad loss". A negative member is known only by its number."""
    who = member if member >= 0 else record.rank
    return f"rank {who} {_BY_ITSELF.get(record.interruption, '')}{record.reason or 'for an unknown reason'}"


def faults_sentence(faults: Faults) -> str:
    """Names the first faults, each in short, and counts the others."""
    first = [(member, next(iter(told.values()))) for member, told in list(faults.items())[:NAMED_MAX]]
    named = [_in_short(fault_sentence(member, record)) for member, record in first]
    more = len(faults) - NAMED_MAX
    return "; ".join(named) + (f"; and {more} more ranks" if more > 0 else "")


def _in_short(text: str) -> str:
    return text if len(text) <= REASON_CHARACTERS_MAX else f"{text[:REASON_CHARACTERS_MAX].rstrip()}…"


def ranks_sentence(members: Iterable[int]) -> str:
    """Returns "rank 2", "ranks 2, 5" or "ranks 0, 1, 2, 3 and 12 more"."""
    names = sorted(members)
    text = ", ".join(map(str, names[:NAMED_MAX]))
    more = len(names) - NAMED_MAX
    return f"rank{'' if len(names) == 1 else 's'} {text}" + (f" and {more} more" if more > 0 else "")


def offered_sentence(node: str, members: Collection[int]) -> str:
    return f"node {node} takes the place of the lost node of {ranks_sentence(members)}"


def begun_sentence(
    iteration: int,
    size: int,
    before: int,
    gone: Iterable[int],
    plan: Plan,
    *,
    later: Collection[int] = (),
    has_reserves: bool = False,
) -> str:
    """Returns "iteration 3 begins with 7 of 8 ranks; rank 2 is gone". `before`: the number of ranks in the last one."""
    world_size = max(size, before)
    whole = "all" if size == world_size else f"{size} of"
    text = f"iteration {iteration} begins with {whole} {world_size} ranks"
    missing = list(gone)
    if missing:
        text += f"; {ranks_sentence(missing)} {'is' if len(missing) == 1 else 'are'} gone"
        text += ", and the reserve stands in" if has_reserves else ""
    if plan.standing_in:
        text += f"; a new process stands in for {ranks_sentence(plan.standing_in)}"
    if plan.joining:
        text += f"; a new process of {ranks_sentence(plan.joining)} joins"
    if later:
        text += f"; a new process of {ranks_sentence(later)} may join the next iteration"
    return text


def resting_sentence(iteration: int, failures: FailedInARow, progress_s: float, pause_s: float, faults: Faults) -> str:
    """Returns "the iteration after 11 begins in 0.2 s: rank 1 has failed within 5 s in 12 iterations in a row; …"."""
    why = _again_and_again(failures, progress_s, faults)
    return f"the iteration after {iteration} begins in {pause_s:.3g} s: {why}"


def hopeless_sentence(call: int, failures: FailedInARow, progress_s: float, faults: Faults) -> str:
    return (
        f"cannot go on with call {call}: {_again_and_again(failures, progress_s, faults)}; mend the cause, or end the "
        "call earlier with RetryController(max_iterations=…)"
    )


def _again_and_again(failures: FailedInARow, progress_s: float, faults: Faults) -> str:
    who = f"rank {failures.first}" if failures.first >= 0 else "a rank"
    count = failures.in_a_row
    return f"{who} has failed within {progress_s:g} s in {count} iterations in a row; last: {faults_sentence(faults)}"


def late_sentence(awaited: Collection[int]) -> str:
    return (
        f"the new process of {ranks_sentence(awaited)} did not enter in time; going on without, "
        "it may join the next iteration"
    )


def lost_sentence(iteration: int, lost: Collection[int], again: Collection[int]) -> str:
    """Returns "rank 1 was lost in iteration 4, and rank 2 before it took part again"."""
    text = f"{ranks_sentence(lost)} {'was' if len(lost) == 1 else 'were'} lost in iteration {iteration}"
    return text + (f", and {ranks_sentence(again)} before it took part again" if again else "")


def unfit_sentence(call: int, members: Collection[int]) -> str:
    """Returns "rank 1 left call 1 as unfit, and its process has ended"."""
    end = "its process has ended" if len(members) == 1 else "their processes have ended"
    return f"{ranks_sentence(members)} left call {call} as unfit, and {end}"


def committed_sentence(call: int, iteration: int, members: Iterable[int], waiting: Collection[int]) -> str:
    text = f"call {call} succeeded in iteration {iteration} on {ranks_sentence(members)}"
    return text + (f"; the new process of {ranks_sentence(waiting)} had not joined" if waiting else "")


def deserted_sentence(call: int, why: dict[int, str]) -> str:
    named = "; ".join(f"rank {member} {reason}" for member, reason in list(why.items())[-NAMED_MAX:])
    more = len(why) - NAMED_MAX
    return f"no rank is left in call {call}: {named}" + (f"; and {more} more ranks" if more > 0 else "")
