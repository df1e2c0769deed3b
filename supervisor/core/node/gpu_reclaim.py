"""Is the memory of the job's GPUs free, so that its workers may be started again?

The wait begins when nothing of a cycle is left and another one follows, or when a lost spawner is replaced, but never
at the end of a job. Until it ends, the node does not take part in the next round. On timeout the restart continues
anyway: it may succeed, while waiting longer would surely fail. The node is then suspect until the memory of its GPUs is
found free. A GPU that can't be queried is not waited for.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from supervisor.core import gpu_memory
from supervisor.core.facts import JobEvent
from supervisor.core.gpu_memory import MemoryReport, MemoryRules
from supervisor.core.node.node_messages import (
    AwaitGpuMemory,
    DeadlineReached,
    GpuMemorySeen,
    Publish,
    SpawnerReady,
    WorkersEmptied,
)
from supervisor.core.node_check_facts import CheckView

FIRST_S = 1.0  # then people are told about the wait
ANSWER_S = 15.0  # for the answer itself, beyond the wait; the edge's own deadlines are shorter

# --- states --------------------------------------------------------------------------------------------------------


Held = WorkersEmptied | SpawnerReady  # the event that lets this node continue


class Waiting(msgspec.Struct, frozen=True):
    job_id: str
    cycle: int
    until_s: float
    answer_by_s: float
    held: Held | None = None  # held back until the memory is free; None: the spawner is not ready yet
    is_told: bool = False  # people have been told about the wait


class State(msgspec.Struct, frozen=True):
    """The wait for memory on this node. `rules` None: there is none."""

    rules: MemoryRules | None = None
    waits: Waiting | None = None
    unknown_told: str = ""  # why memory could not be read, as reported to people
    seen: tuple[CheckView, ...] = ()  # what the last wait found for each GPU


# --- events, beside GpuMemorySeen and DeadlineReached --------------------------------------------------------------


class CycleEmptied(msgspec.Struct, frozen=True):
    """Nothing of the cycle is left, and another one follows."""

    emptied: WorkersEmptied


class SpawnerReplaced(msgspec.Struct, frozen=True):
    """The spawner was lost with everything it had started, and another one is being started."""

    job_id: str
    cycle: int  # the last one


class SpawnerCame(msgspec.Struct, frozen=True):
    """The new spawner is ready."""

    ready: SpawnerReady


class WaitDropped(msgspec.Struct, frozen=True):
    """No other cycle follows after all."""


Event = CycleEmptied | SpawnerReplaced | SpawnerCame | WaitDropped | GpuMemorySeen | DeadlineReached

# --- actions -------------------------------------------------------------------------------------------------------


class LetGo(msgspec.Struct, frozen=True):
    """Releases the event that was held back."""

    held: Held


Action = AwaitGpuMemory | Publish | LetGo
Outcome = tuple[State, tuple[Action, ...]]

# --- decisions -----------------------------------------------------------------------------------------------------


def initial_state(rules: MemoryRules | None = None) -> State:
    return State(rules)


def step(state: State, event: Event, *, now_s: float, node: str) -> Outcome:
    match event:
        case CycleEmptied(emptied):
            if state.rules is None or state.waits is not None:
                return state, (LetGo(emptied),)
            return _begin(state, state.rules, emptied.job_id, emptied.cycle, now_s, emptied)
        case SpawnerReplaced(job_id, cycle):
            if state.rules is None:
                return state, ()
            if state.waits is not None:  # What was held back came from the lost spawner.
                return msgspec.structs.replace(state, waits=msgspec.structs.replace(state.waits, held=None)), ()
            return _begin(state, state.rules, job_id, cycle, now_s, None)
        case SpawnerCame(ready):
            if state.waits is None:
                return state, (LetGo(ready),)
            return msgspec.structs.replace(state, waits=msgspec.structs.replace(state.waits, held=ready)), ()
        case WaitDropped():
            return _let_go(state)
        case GpuMemorySeen(cycle=cycle, report=report):
            if state.waits is None or state.rules is None or cycle != state.waits.cycle:
                return state, ()  # No longer awaited.
            return _take(state, state.waits, state.rules, report, now_s, node)
        case DeadlineReached():
            if state.waits is None or state.rules is None or now_s < state.waits.answer_by_s:
                return state, ()
            report = MemoryReport(is_free=False, unknown=f"there is no answer within {ANSWER_S:g} s")
            return _take(state, state.waits, state.rules, report, now_s, node)
        case _:
            assert_never(event)


def next_deadline_s(state: State) -> float | None:
    return state.waits.answer_by_s if state.waits is not None else None


def is_suspect(state: State) -> bool:
    return gpu_memory.is_suspect(each.finding for each in state.seen)


def _begin(state: State, rules: MemoryRules, job_id: str, cycle: int, now_s: float, held: Held | None) -> Outcome:
    first_s = min(FIRST_S, rules.timeout_s)
    waits = Waiting(job_id, cycle, now_s + rules.timeout_s, now_s + first_s + ANSWER_S, held)
    return msgspec.structs.replace(state, waits=waits), (_await(waits, first_s, rules),)


def _take(state: State, waits: Waiting, rules: MemoryRules, report: MemoryReport, now_s: float, node: str) -> Outcome:
    said: list[Action] = []

    def say(kind: str, reason: str) -> None:
        said.append(Publish(waits.job_id, JobEvent(kind, reason, waits.cycle, details=gpu_memory.details(report))))

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
        return msgspec.structs.replace(state, waits=waits), (*said, _await(waits, left_s, rules))
    else:
        held = gpu_memory.held_sentence(report, rules.tolerance_bytes)
        say(
            "gpu_memory_not_freed",
            f"GPU memory is not free after {rules.timeout_s:g} s, and the restart goes on: {held}; end what holds it "
            f"({gpu_memory.statistics_sentence(report)})",
        )
    found = gpu_memory.findings(report, rules)
    if not report.unknown and gpu_memory.is_suspect(found) != is_suspect(state):
        kind = "node_cleared" if is_suspect(state) else "node_suspect"
        say(kind, gpu_memory.suspect_text(node, found, rules))
    if not (report.unknown and is_suspect(state)):  # Unreadable memory does not clear a suspicion.
        state = msgspec.structs.replace(state, seen=tuple(CheckView(each, now_s) for each in found))
    state, let_go = _let_go(state)
    return state, (*said, *let_go)


def _let_go(state: State) -> Outcome:
    if state.waits is None:
        return state, ()
    held = state.waits.held
    return msgspec.structs.replace(state, waits=None), (LetGo(held),) if held is not None else ()


def _await(waits: Waiting, wait_s: float, rules: MemoryRules) -> AwaitGpuMemory:
    return AwaitGpuMemory(waits.job_id, waits.cycle, msgspec.structs.replace(rules, timeout_s=wait_s))
