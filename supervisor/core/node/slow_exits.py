"""What do people read about ranks that are to end and still run?

A signal leaves a rank its grace period, in which its script may save, or wait for threads and processes of its own.
Nobody can shorten that without breaking something. So the node tells which ranks it waits for, how long they have, and
what they do, as far as it can be seen: first after two seconds, then more and more rarely.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from supervisor.core import worker_messages
from supervisor.core.facts import JobEvent
from supervisor.core.job_text import named_ranks
from supervisor.core.node import node_messages
from supervisor.core.process_facts import Frame, RankLook

TOLD_AFTER_S = (2.0, 10.0, 30.0)  # after that, each time after twice as long
LOOK_S = 1.0  # at the threads of the ranks
LOOK_MARGIN_S = 0.5  # beyond it, for the answer
PHRASES_MAX = 4
THREADS_NAMED_MAX = 3
_NEVER_WAITED_FOR = ("holdfast", "QueueFeederThread")  # daemon threads: ours, and those of multiprocessing's queues

# --- states --------------------------------------------------------------------------------------------------------


class State(msgspec.Struct, frozen=True):
    since_s: float | None = None  # when the ranks got the signal; None: none is to end
    until_s: float = 0.0  # what is left then is killed
    told: int = 0  # how many of the moments have passed
    looks_until_s: float | None = None  # a look is under way


# --- events --------------------------------------------------------------------------------------------------------

Event = (
    worker_messages.PrepareWorkers | worker_messages.StopWorkers | worker_messages.KillWorkers |
    worker_messages.LoseWorkers | node_messages.WorkerExited
    | node_messages.RanksLookedAt | node_messages.DeadlineReached
)  # fmt: skip

# --- actions -------------------------------------------------------------------------------------------------------

Action = node_messages.LookAtRanks | node_messages.Publish
Outcome = tuple[State, tuple[Action, ...]]

# --- decisions -----------------------------------------------------------------------------------------------------


def initial_state() -> State:
    return State()


def step(
    state: State, event: Event, *, now_s: float, job_id: str, cycle: int, alive: tuple[int, ...], by_signal: bool
) -> Outcome:
    """Takes one event. `alive`: ranks that still run. `by_signal`: a signal to the launcher stops the job."""
    match event:
        case worker_messages.StopWorkers(_, grace_s):
            if state.since_s is None:
                return (State(now_s, now_s + grace_s) if alive else state), ()
            until_s = event.kill_at_s(now_s, first_at_s=state.since_s, before_s=state.until_s)
            return msgspec.structs.replace(state, until_s=until_s), ()
        case worker_messages.PrepareWorkers() | worker_messages.KillWorkers() | worker_messages.LoseWorkers():
            return State(), ()
        case node_messages.WorkerExited(exit=exit_):
            return (state if any(rank != exit_.rank for rank in alive) else State()), ()
        case node_messages.RanksLookedAt(looks=looks):
            if state.looks_until_s is None:
                return state, ()
        case node_messages.DeadlineReached():
            due_s, looks = next_deadline_s(state), ()
            if due_s is None or now_s < due_s:
                return state, ()
            if alive and now_s < state.until_s and state.looks_until_s is None:
                looking = msgspec.structs.replace(state, looks_until_s=now_s + LOOK_S + LOOK_MARGIN_S)
                return looking, (node_messages.LookAtRanks(job_id, cycle, LOOK_S),)
        case _:
            assert_never(event)
    if not alive or now_s >= state.until_s:
        return State(), ()
    text = _sentence(alive, looks, state.until_s - now_s, by_signal=by_signal)
    said = JobEvent("ranks_awaited", text, cycle, alive[0] if len(alive) == 1 else None)
    state = msgspec.structs.replace(state, told=state.told + 1, looks_until_s=None)
    while (due_s := next_deadline_s(state)) is not None and due_s <= now_s:  # This process may have been stopped.
        state = msgspec.structs.replace(state, told=state.told + 1)
    return state, (node_messages.Publish(job_id, said),)


def next_deadline_s(state: State) -> float | None:
    if state.since_s is None:
        return None
    last = len(TOLD_AFTER_S) - 1
    after_s = TOLD_AFTER_S[min(state.told, last)] * 2.0 ** max(state.told - last, 0)
    due_s = state.since_s + after_s if state.looks_until_s is None else state.looks_until_s
    return due_s if due_s < state.until_s else None


def _sentence(alive: tuple[int, ...], looks: tuple[RankLook, ...], left_s: float, *, by_signal: bool) -> str:
    is_one = len(alive) == 1
    text = f"{named_ranks(alive)} {'has' if is_one else 'have'} {left_s:.0f} s left to end"
    if seen := _seen(looks, alive):
        text += f": {seen}"
    return f"{text}; another signal kills {'it' if is_one else 'them'} at once" if by_signal else text


def _seen(looks: tuple[RankLook, ...], alive: tuple[int, ...]) -> str:
    together: dict[str, list[int]] = {}
    for each in looks:
        if each.rank in alive and each.frames:
            together.setdefault(_phrase(each), []).append(each.rank)
    if len(alive) == 1:
        return next(iter(together), "")
    phrases = [f"{named_ranks(tuple(ranks))}: {phrase}" for phrase, ranks in together.items()]
    more = f"; and {len(phrases) - PHRASES_MAX} more" if len(phrases) > PHRASES_MAX else ""
    return "; ".join(phrases[:PHRASES_MAX]) + more


def _phrase(look: RankLook) -> str:
    """Returns what the rank does: its script runs, or has ended and something that it has started has not."""
    if any(_is(frame, "_shutdown", "threading.py") for frame in look.frames):
        others = [each for each in look.threads if each.frames and not each.name.startswith(_NEVER_WAITED_FOR)]
        names = ", ".join(f"{each.name} in {_own(each.frames)}" for each in others[:THREADS_NAMED_MAX])
        if len(others) == 1:
            return f"the main thread has ended, thread {names} still runs"
        return f"the main thread has ended, and waits for other threads{f': {names}' if names else ''}"
    if any(_is(frame, "_exit_function", "util.py") for frame in look.frames):
        return "the main thread has ended, and waits for child processes"
    return f"the main thread is in {_own(look.frames)}"


def _is(frame: Frame, name: str, file: str) -> bool:
    return frame.name.rpartition(".")[2] == name and frame.file.endswith(f"/{file}")


def _own(frames: tuple[Frame, ...]) -> Frame:
    """Returns the innermost frame outside of the standard library, which says most; else the innermost one."""
    own = (frame for frame in reversed(frames) if not _is_standard(frame.file))
    return next(own, frames[-1])


def _is_standard(file: str) -> bool:
    return "/lib/python3" in file and "/site-packages/" not in file
