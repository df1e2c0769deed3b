"""What is wrong with one rank of a job that makes no progress?

The state of its process comes first, and then the table of patterns. Each is a question about the facts of one rank;
the first answered with yes is the finding. What other ranks do does not matter here: hang_culprits.py compares the
findings of all ranks.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from typing import assert_never

import msgspec

from supervisor.core.hangs.library_frames import Activity, Doing, activity_of
from supervisor.core.process_facts import Frame, ProcessFacts, ProcessState, RankFacts

BUSY_SHARE = 0.5  # of a core: it computes, or loops endlessly

_COMPUTING_CALLS = frozenset({"backward"})  # in which a main thread may itself compute, not only wait

# Words of a source line that takes a lock. Python's locks are C: they have no frame of their own.
_TAKES_LOCK = re.compile(r"acquire|lock|mutex|condition|semaphore", re.IGNORECASE)
_WAITS = re.compile(r"\.(wait|synchronize|get)\s*\(")  # Work.wait(), Store.get(), … are C, too


class Pattern(enum.StrEnum):
    STOPPED = "stopped"
    TRACED = "traced"
    ZOMBIE = "zombie"
    STATE_D = "state_d"
    GIL_HELD = "gil_held"
    CHILD_DEAD = "child_dead"
    LOCK = "lock"
    LEFT_EARLY = "left_early"
    ELSEWHERE = "elsewhere"
    MISMATCH = "collectives_mismatched"
    ALL_WAIT = "all_wait"
    WAITS = "waits"  # for other ranks
    UNKNOWN = "unknown"


class RankFinding(msgspec.Struct, frozen=True):
    """A finding. `clause` lacks its subject and has its verbs in braces, for one rank or several."""

    pattern: Pattern
    clause: str
    call: str = ""  # what a waiting rank waits in: "all_reduce"
    place: str = ""  # the place in the script


class _Seen(msgspec.Struct, frozen=True):
    facts: RankFacts
    process: ProcessFacts
    activity: Activity | None


def find(facts: RankFacts, frames: tuple[Frame, ...]) -> RankFinding:
    """Returns the rank's finding. `frames`: its main thread's, the innermost last; empty: no stack is available."""
    seen = _Seen(facts, facts.process or ProcessFacts(), activity_of(frames))
    place = seen.activity.place if seen.activity is not None else ""
    if facts.has_exited:
        return RankFinding(Pattern.LEFT_EARLY, "{have} exited with code 0")
    if (of_state := by_state(seen.process)) is not None:
        return msgspec.structs.replace(of_state, place=place)
    for pattern, question in _TABLE:
        clause = question(seen)
        if clause:
            return RankFinding(pattern, clause, place=place)
    return _by_place(seen)


def by_state(process: ProcessFacts) -> RankFinding | None:
    """Returns why the process executes nothing, wherever its stack shows it; None if its state allows it to run."""
    match process.state:
        case ProcessState.STOPPED:
            return RankFinding(Pattern.STOPPED, f"{{are}} stopped ({process.stop_signal or 'by a signal'})")
        case ProcessState.TRACED:
            return RankFinding(Pattern.TRACED, f"{{are}} held by {process.tracer or 'a debugger'}")
        case ProcessState.ZOMBIE:
            return RankFinding(Pattern.ZOMBIE, "{are} dead and not reaped (zombie)")
        case ProcessState.UNINTERRUPTIBLE if process.is_still:
            where = f", {process.kernel_place}" if process.kernel_place else ""
            return RankFinding(Pattern.STATE_D, f"{{hang}} in the kernel (state D{where})")
        case _:
            return None


# --- the table -----------------------------------------------------------------------------------------------------


def _holds_the_gil(seen: _Seen) -> str:
    """Returns whether none of its other threads can run: its client does not answer, or the GIL's holder sleeps."""
    facts = seen.facts
    sleeps_with_it = facts.gil_is_main and seen.process.is_still and seen.process.state is ProcessState.SLEEPING
    if facts.gil_frames and (facts.answers is False or sleeps_with_it):
        holder = activity_of(facts.gil_frames)
        if holder is not None:
            return f"{{hold}} the GIL in {holder.place}"
    if facts.answers is False and seen.activity is not None and seen.activity.doing is Doing.WORKS:
        return f"{{hold}} the GIL in {seen.activity.place}"
    return ""


def _waits_for_a_dead_child(seen: _Seen) -> str:
    if seen.activity is None or seen.activity.doing is not Doing.WAITS_FOR_DATA:
        return ""
    for state, word in _BAD_CHILDREN:
        bad = [each.pid for each in seen.process.children if each.state is state]
        if bad:
            pids = ", ".join(map(str, bad[:3])) + (", …" if len(bad) > 3 else "")
            return f"{{wait}} in {seen.activity.place} for a child process that is {word} (pid {pids})"
    return ""


_BAD_CHILDREN = (
    (ProcessState.ZOMBIE, "dead"),
    (ProcessState.STOPPED, "stopped"),
    (ProcessState.UNINTERRUPTIBLE, "stuck in the kernel"),
)


def _waits_for_a_lock(seen: _Seen) -> str:
    if seen.activity is None:
        return ""
    by_frame = seen.activity.doing is Doing.WAITS_FOR_LOCK
    sleeps = seen.process.state is ProcessState.SLEEPING and seen.process.is_still
    by_source = seen.activity.is_bare and sleeps and _TAKES_LOCK.search(seen.facts.source_line) is not None
    return f"{{wait}} for a lock in {seen.activity.place}" if by_frame or by_source else ""


_TABLE: tuple[tuple[Pattern, Callable[[_Seen], str]], ...] = (
    (Pattern.GIL_HELD, _holds_the_gil),
    (Pattern.CHILD_DEAD, _waits_for_a_dead_child),
    (Pattern.LOCK, _waits_for_a_lock),
)


# --- the rest: where it stands -------------------------------------------------------------------------------------


def _by_place(seen: _Seen) -> RankFinding:
    if seen.activity is None:
        return _without_stack(seen)
    call, place = seen.activity.call, seen.activity.place
    match seen.activity.doing:
        case Doing.WAITS_FOR_RANKS if call in _COMPUTING_CALLS and _computes(seen):
            return RankFinding(Pattern.ELSEWHERE, f"{{compute}} in {call} at {place}", place=place)
        case Doing.WAITS_FOR_RANKS:
            return RankFinding(Pattern.WAITS, f"{{wait}} in {call}", call, place)
        case Doing.ENDS:
            return RankFinding(
                Pattern.LEFT_EARLY, f"{{have}} left the training loop and {{wait}} in {call}", place=place
            )
        case Doing.WAITS_FOR_DATA:
            return RankFinding(Pattern.ELSEWHERE, f"{{wait}} for data in {place}", place=place)
        case Doing.WORKS if _waits_in_c(seen):
            return RankFinding(Pattern.WAITS, f"{{wait}} in {place}", place.partition(" (")[0], place)
        case Doing.WORKS | Doing.WAITS_FOR_LOCK:
            return RankFinding(Pattern.ELSEWHERE, f"{{are}} in {place}", place=place)
        case _:
            assert_never(seen.activity.doing)


def _computes(seen: _Seen) -> bool:
    return seen.process.state is ProcessState.RUNNING and seen.process.cpu_share >= BUSY_SHARE


def _waits_in_c(seen: _Seen) -> bool:
    """Returns whether it waits for other ranks without a frame of its own, as in an asynchronous collective."""
    if seen.activity is None or not seen.activity.is_bare or not seen.process.is_still:
        return False
    return seen.process.waits_on_futex and _WAITS.search(seen.facts.source_line) is not None


def _without_stack(seen: _Seen) -> RankFinding:
    if _computes(seen):
        return RankFinding(Pattern.GIL_HELD, "{burn} CPU and {give} no stack: a thread may hold the GIL")
    sections = " and ".join(f"'{name}'" for name in seen.facts.sections)
    inside = f"{{are}} in section {sections} and " if sections else ""
    return RankFinding(Pattern.UNKNOWN, f"{inside}{{give}} no stack")
