"""Is the memory of the job's GPUs free, so that its workers may be started again?

Begins when nothing of a cycle is left and another one is to follow, never at the end of a job. Until its answer, the
node does not take part in the next round. When the time is over, the restart goes on as it is: that may succeed, and
waiting longer would surely fail. A GPU that can't be asked is not waited for.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from supervisor.core import gpu_memory
from supervisor.core.facts import JobEvent
from supervisor.core.gpu_memory import MemoryReport, MemoryRules
from supervisor.core.node.messages import (
    AwaitGpuMemory,
    DeadlineReached,
    GpuMemorySeen,
    Publish,
    WorkersEmptied,
)

FIRST_S = 1.0  # then people are told what is waited for
ANSWER_S = 15.0  # for the answer itself, beyond the time to wait: the edge has deadlines of its own, below this

# --- states --------------------------------------------------------------------------------------------------------


class Waiting(msgspec.Struct, frozen=True):
    emptied: WorkersEmptied  # held back until the memory is free
    until_s: float
    answer_by_s: float
    is_told: bool = False  # people know that it is waited for


class State(msgspec.Struct, frozen=True):
    """`rules` None: memory is not waited for."""

    rules: MemoryRules | None = None
    waits: Waiting | None = None
    unknown_told: str = ""  # why memory could not be read, as people were told


# --- events, beside GpuMemorySeen and DeadlineReached --------------------------------------------------------------


class CycleEmptied(msgspec.Struct, frozen=True):
    """Nothing of the cycle is left, and another is to follow."""

    emptied: WorkersEmptied


class WaitDropped(msgspec.Struct, frozen=True):
    """No other cycle follows after all."""


Event = CycleEmptied | WaitDropped | GpuMemorySeen | DeadlineReached

# --- actions -------------------------------------------------------------------------------------------------------


class LetGo(msgspec.Struct, frozen=True):
    """The job may learn that nothing of its cycle is left."""

    emptied: WorkersEmptied


Action = AwaitGpuMemory | Publish | LetGo
Outcome = tuple[State, tuple[Action, ...]]

# --- decisions -----------------------------------------------------------------------------------------------------


def initial_state(rules: MemoryRules | None = None) -> State:
    return State(rules)


def step(state: State, event: Event, *, now_s: float) -> Outcome:
    match event:
        case CycleEmptied(emptied):
            if state.rules is None or state.waits is not None:
                return state, (LetGo(emptied),)
            first_s = min(FIRST_S, state.rules.timeout_s)
            waits = Waiting(emptied, now_s + state.rules.timeout_s, now_s + first_s + ANSWER_S)
            return msgspec.structs.replace(state, waits=waits), (_await(emptied, first_s, state.rules),)
        case WaitDropped():
            return _let_go(state)
        case GpuMemorySeen(cycle=cycle, report=report):
            if state.waits is None or state.rules is None or cycle != state.waits.emptied.cycle:
                return state, ()  # Nobody waits for it any more.
            return _take(state, state.waits, state.rules, report, now_s)
        case DeadlineReached():
            if state.waits is None or state.rules is None or now_s < state.waits.answer_by_s:
                return state, ()
            report = MemoryReport(is_free=False, unknown=f"there is no answer within {ANSWER_S:g} s")
            return _take(state, state.waits, state.rules, report, now_s)
        case _:
            assert_never(event)


def next_deadline_s(state: State) -> float | None:
    return state.waits.answer_by_s if state.waits is not None else None


def _take(state: State, waits: Waiting, rules: MemoryRules, report: MemoryReport, now_s: float) -> Outcome:
    job_id, cycle = waits.emptied.job_id, waits.emptied.cycle
    said: list[Action] = []

    def say(kind: str, reason: str) -> None:
        said.append(Publish(job_id, JobEvent(kind, reason, cycle, details=gpu_memory.details(report))))

    if report.ended:
        say("gpu_holder_killed", gpu_memory.ended_sentence(report))
    if report.unknown:
        if report.unknown != state.unknown_told:
            say("gpu_memory_unknown", f"GPU memory is not waited for: {report.unknown}")
        state = msgspec.structs.replace(state, unknown_told=report.unknown)
    elif report.is_free:
        if report.gpus:
            say("gpu_memory_free", gpu_memory.free_sentence(report))
    elif now_s < waits.until_s:
        left_s = waits.until_s - now_s
        if not waits.is_told:
            held = gpu_memory.held_sentence(report, rules.tolerance_bytes)
            say("gpu_memory_held", f"waiting at most {left_s:.0f} s more for GPU memory: {held}")
        waits = msgspec.structs.replace(waits, is_told=True, answer_by_s=waits.until_s + ANSWER_S)
        return msgspec.structs.replace(state, waits=waits), (*said, _await(waits.emptied, left_s, rules))
    else:
        held = gpu_memory.held_sentence(report, rules.tolerance_bytes)
        say(
            "gpu_memory_not_freed",
            f"GPU memory is not free after {rules.timeout_s:g} s, and the restart goes on: {held}; end what holds it",
        )
    state, let_go = _let_go(state)
    return state, (*said, *let_go)


def _let_go(state: State) -> Outcome:
    if state.waits is None:
        return state, ()
    return msgspec.structs.replace(state, waits=None), (LetGo(state.waits.emptied),)


def _await(emptied: WorkersEmptied, wait_s: float, rules: MemoryRules) -> AwaitGpuMemory:
    return AwaitGpuMemory(emptied.job_id, emptied.cycle, msgspec.structs.replace(rules, timeout_s=wait_s))
