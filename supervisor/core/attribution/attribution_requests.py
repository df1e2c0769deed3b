"""What is the attribution service asked about a job's cycles, when, and what follows from its answers?

Each job has one such machine, on the node that leads it. It submits a cycle's log when the cycle begins (progressive),
and again when the log is complete after the cycle's end (terminal); then it asks for the verdict at growing intervals.
One request is under way at a time, and the job never waits for any of this. A service that does not answer causes one
warning.
"""

from __future__ import annotations

import enum
from typing import assert_never

import msgspec

CYCLES_MAX = 8  # tracked at once; the oldest are dropped
LOG_COMPLETE_S = 10.0  # after the end of a cycle, for all nodes to report their part of its log written
AGAIN_S = 0.5  # after a request that failed; twice as long each time
VERDICT_S = 0.25  # from a terminal submission to the first look at its verdict; twice as long each time
AGAIN_MAX_S = 30.0
GIVEN_UP_S = 600.0  # after the end of a cycle
LAST_WORDS_S = 5.0  # after the end of a job that has failed, for the verdict on its last cycle
LAST_SUBMISSION_S = 2.0  # after the end of one that has succeeded
REMINDED_CYCLES = 2  # reported to a new service, which judges whether cycles in a row end alike
STOP = "STOP"


class Stage(enum.StrEnum):
    BEGUN = "begun"  # to be submitted as progressive
    RUNS = "runs"
    CLOSING = "closing"  # has ended; its log is not complete yet
    COMPLETE = "complete"  # to be submitted as terminal
    SUBMITTED = "submitted"  # its verdict is to be asked for
    KNOWN = "known"  # to be submitted once more, to a service that is new


class Cycle(msgspec.Struct, frozen=True):
    number: int
    stage: Stage
    at_s: float  # when its next request may leave; if CLOSING, when the wait for its log ends
    delay_s: float = 0.0  # before the last request
    until_s: float = float("inf")  # when it is dropped
    closed: tuple[str, ...] = ()  # nodes that have written their part of its log
    nodes: tuple[str, ...] = ()  # that must write theirs, once it has ended


class Submit(msgspec.Struct, frozen=True):
    cycle: int
    is_terminal: bool


class AskVerdict(msgspec.Struct, frozen=True):
    cycle: int


class State(msgspec.Struct, frozen=True):
    forbids: bool  # whether advice to stop ends the job
    is_up: bool  # whether the service can be asked
    cycles: tuple[Cycle, ...] = ()  # the oldest first
    busy: Submit | AskVerdict | None = None  # the request that is under way
    judged: tuple[int, ...] = ()  # the newest cycles that were submitted as terminal
    is_warned: bool = False
    answers: bool = True  # the last request was answered, as far as there was one
    has_ended: bool = False  # the job
    is_curious: bool = True  # verdicts are still wanted
    is_over: bool = False  # nothing will be asked any more


# --- events --------------------------------------------------------------------------------------------------------


class CycleBegan(msgspec.Struct, frozen=True):
    cycle: int


class CycleEnded(msgspec.Struct, frozen=True):
    """A cycle has ended; `nodes` may still write to its log."""

    cycle: int
    nodes: tuple[str, ...]


class LogClosed(msgspec.Struct, frozen=True):
    """The node no longer writes to the log of the cycle."""

    cycle: int
    node: str


class JobEnded(msgspec.Struct, frozen=True):
    succeeded: bool


class ServiceUp(msgspec.Struct, frozen=True):
    """The service answers. After a restart it knows nothing of earlier submissions."""


class ServiceDown(msgspec.Struct, frozen=True):
    reason: str


class Taken(msgspec.Struct, frozen=True):
    """The submission was accepted."""


class Pending(msgspec.Struct, frozen=True):
    """There is no verdict yet."""


class Forgotten(msgspec.Struct, frozen=True):
    """The service does not know the log."""


class Judged(msgspec.Struct, frozen=True):
    advice: str  # STOP, RESTART, CONTINUE, UNKNOWN, TIMEOUT
    reason: str
    source: str = ""


class Refused(msgspec.Struct, frozen=True):
    """The same request would be refused again."""

    reason: str


class Failed(msgspec.Struct, frozen=True):
    """The service did not answer, or its answer can't be read; it may succeed later."""

    reason: str


Reply = Taken | Pending | Forgotten | Judged | Refused | Failed


class Replied(msgspec.Struct, frozen=True):
    request: Submit | AskVerdict
    reply: Reply


class DeadlineReached(msgspec.Struct, frozen=True):
    pass


Event = CycleBegan | CycleEnded | LogClosed | JobEnded | ServiceUp | ServiceDown | Replied | DeadlineReached

# --- actions -------------------------------------------------------------------------------------------------------


class Warn(msgspec.Struct, frozen=True):
    """Warns, once for each job."""

    reason: str


class Tell(msgspec.Struct, frozen=True):
    """Reports what the service says about a cycle."""

    cycle: int
    judged: Judged


class Forbid(msgspec.Struct, frozen=True):
    """Forbids any further cycle."""

    reason: str


Action = Submit | AskVerdict | Warn | Tell | Forbid
Outcome = tuple[State, tuple[Action, ...]]

# --- decisions -----------------------------------------------------------------------------------------------------


def initial_state(*, forbids: bool, is_up: bool) -> State:
    """Starts without results. `forbids`: advice to stop ends the job. `is_up`: others already run the service."""
    return State(forbids, is_up)


def step(state: State, event: Event, *, now_s: float) -> Outcome:
    state, actions = _take(state, event, now_s)
    state = _without_the_late(state, now_s)
    state, request = _next_request(state, now_s)
    return state, actions + request


def next_deadline_s(state: State) -> float | None:
    if state.is_over:
        return None
    moments = [cycle.until_s for cycle in state.cycles if cycle.until_s != float("inf")]
    asks = state.is_up and state.busy is None
    moments += [cycle.at_s for cycle in state.cycles if cycle.stage is Stage.CLOSING or (asks and _is_due(cycle))]
    return min(moments, default=None)


def _take(state: State, event: Event, now_s: float) -> Outcome:
    match event:
        case CycleBegan(number):
            return _begin(state, number, now_s), ()
        case CycleEnded(number, nodes):
            return _end(state, number, nodes, now_s), ()
        case LogClosed(number, node):
            return _close(state, number, node, now_s), ()
        case JobEnded(succeeded):
            return _end_job(state, succeeded=succeeded, now_s=now_s), ()
        case ServiceUp():
            return _remind(state, now_s), ()
        case ServiceDown(reason):
            cycles = () if state.has_ended else state.cycles
            return _warned(msgspec.structs.replace(state, is_up=False, busy=None, cycles=cycles), reason)
        case Replied(request, reply):
            return (state, ()) if request != state.busy else _hear(state, request, reply, now_s)
        case DeadlineReached():
            return state, ()
        case _:
            assert_never(event)


def _begin(state: State, number: int, now_s: float) -> State:
    """Begins a cycle. An earlier one whose end was not seen has ended by now."""
    if state.has_ended or any(cycle.number >= number for cycle in state.cycles):
        return state
    for cycle in state.cycles:
        state = _end(state, cycle.number, (), now_s)
    return _put(state, Cycle(number, Stage.BEGUN, now_s))


def _end(state: State, number: int, nodes: tuple[str, ...], now_s: float) -> State:
    """Ends a cycle. `nodes` empty: its log will not become more complete."""
    cycle = _of(state, number)
    if cycle is None and (number in state.judged or any(each.number > number for each in state.cycles)):
        return state
    cycle = cycle or Cycle(number, Stage.RUNS, now_s)
    if cycle.stage not in (Stage.BEGUN, Stage.RUNS):
        return state
    until_s = now_s + GIVEN_UP_S
    closing = Cycle(number, Stage.CLOSING, now_s + LOG_COMPLETE_S, 0.0, until_s, cycle.closed, nodes)
    return _put(state, _complete(closing, now_s))


def _close(state: State, number: int, node: str, now_s: float) -> State:
    cycle = _of(state, number)
    if cycle is None or node in cycle.closed:
        return state
    cycle = msgspec.structs.replace(cycle, closed=(*cycle.closed, node))
    return _put(state, _complete(cycle, now_s) if cycle.stage is Stage.CLOSING else cycle)


def _complete(cycle: Cycle, now_s: float) -> Cycle:
    """Makes the cycle due for submission: its log is complete, or the wait for that is over."""
    if not set(cycle.nodes) <= set(cycle.closed) and now_s < cycle.at_s:
        return cycle
    return msgspec.structs.replace(cycle, stage=Stage.COMPLETE, at_s=now_s)


def _end_job(state: State, *, succeeded: bool, now_s: float) -> State:
    """Submits the rest now, if the service answers, or never. A success needs no verdict."""
    for cycle in state.cycles:
        state = _end(state, cycle.number, (), now_s)
    until_s = now_s + (LAST_SUBMISSION_S if succeeded else LAST_WORDS_S)
    is_gone = not state.answers or (not state.is_up and state.is_warned)
    cycles: list[Cycle] = []
    for cycle in state.cycles:
        if is_gone or cycle.stage is Stage.KNOWN or (succeeded and cycle.stage is Stage.SUBMITTED):
            continue
        if cycle.stage is Stage.CLOSING:
            cycle = msgspec.structs.replace(cycle, stage=Stage.COMPLETE, at_s=now_s)
        cycles.append(msgspec.structs.replace(cycle, until_s=until_s))
    return msgspec.structs.replace(state, cycles=tuple(cycles), has_ended=True, forbids=False, is_curious=not succeeded)


def _remind(state: State, now_s: float) -> State:
    """Resubmits to a new service what was submitted, with the cycles before it; known verdicts are not asked again."""
    cycles: list[Cycle] = []
    if not state.has_ended:
        cycles = [Cycle(number, Stage.KNOWN, now_s, until_s=now_s + GIVEN_UP_S) for number in state.judged]
    for cycle in state.cycles:
        back = {Stage.SUBMITTED: Stage.COMPLETE, Stage.RUNS: Stage.BEGUN}.get(cycle.stage, cycle.stage)
        if back is not Stage.KNOWN:
            at_s = cycle.at_s if back is Stage.CLOSING else now_s
            cycles = [each for each in cycles if each.number != cycle.number]
            cycles.append(msgspec.structs.replace(cycle, stage=back, at_s=at_s, delay_s=0.0))
    return msgspec.structs.replace(state, is_up=True, cycles=tuple(cycles), busy=None)


# --- answers -------------------------------------------------------------------------------------------------------


def _hear(state: State, request: Submit | AskVerdict, reply: Reply, now_s: float) -> Outcome:
    """Handles a reply. If the cycle ended while its beginning was being submitted, the reply has no effect."""
    state = msgspec.structs.replace(state, busy=None, answers=not isinstance(reply, Failed))
    cycle = _of(state, request.cycle)
    if cycle is None or request != _request(cycle):
        return _warned(state, reply.reason) if isinstance(reply, Failed | Refused) else (state, ())
    match reply:
        case Taken():
            return _submitted(state, cycle, now_s), ()
        case Pending():
            return _put(state, _later(cycle, now_s, VERDICT_S)), ()
        case Forgotten():
            again = msgspec.structs.replace(cycle, stage=Stage.COMPLETE)
            return _put(state, _later(again, now_s, VERDICT_S)), ()
        case Judged(advice, reason):
            told: tuple[Action, ...] = (Tell(cycle.number, reply),)
            forbids = state.forbids and advice == STOP
            return _without(state, cycle.number), (*told, Forbid(reason)) if forbids else told
        case Refused(reason):
            return _warned(_without_submission(state, cycle), reason)
        case Failed(reason):
            state = _without(state, cycle.number) if state.has_ended else _put(state, _later(cycle, now_s, AGAIN_S))
            return _warned(state, reason)
        case _:
            assert_never(reply)


def _submitted(state: State, cycle: Cycle, now_s: float) -> State:
    if cycle.stage is Stage.BEGUN:
        return _without_submission(state, cycle)
    if cycle.stage is Stage.COMPLETE:
        judged = (*(number for number in state.judged if number != cycle.number), cycle.number)
        state = msgspec.structs.replace(state, judged=judged[-REMINDED_CYCLES:])
        if state.is_curious:
            asked = msgspec.structs.replace(cycle, stage=Stage.SUBMITTED, at_s=now_s + VERDICT_S, delay_s=VERDICT_S)
            return _put(state, asked)
    return _without(state, cycle.number)


def _without_submission(state: State, cycle: Cycle) -> State:
    """Submits nothing more about the cycle before its end."""
    if cycle.stage is Stage.BEGUN:
        return _put(state, msgspec.structs.replace(cycle, stage=Stage.RUNS, delay_s=0.0))
    return _without(state, cycle.number)


def _later(cycle: Cycle, now_s: float, least_s: float) -> Cycle:
    delay_s = min(max(2 * cycle.delay_s, least_s), AGAIN_MAX_S)
    return msgspec.structs.replace(cycle, at_s=now_s + delay_s, delay_s=delay_s)


def _warned(state: State, reason: str) -> Outcome:
    if state.is_warned:
        return state, ()
    return msgspec.structs.replace(state, is_warned=True), (Warn(reason),)


# --- what comes next -----------------------------------------------------------------------------------------------


def _is_due(cycle: Cycle) -> bool:
    """Returns whether a request about the cycle is due now or later."""
    return cycle.stage not in (Stage.RUNS, Stage.CLOSING)


def _without_the_late(state: State, now_s: float) -> State:
    cycles = tuple(
        _complete(cycle, now_s) if cycle.stage is Stage.CLOSING else cycle
        for cycle in state.cycles
        if now_s < cycle.until_s
    )
    return msgspec.structs.replace(state, cycles=cycles, is_over=state.has_ended and not cycles)


def _next_request(state: State, now_s: float) -> Outcome:
    """Chooses the next request. Ends of cycles come first, but a new service first learns of earlier cycles."""
    if state.busy is not None or not state.is_up:
        return state, ()
    due = [cycle for cycle in state.cycles if _is_due(cycle) and cycle.at_s <= now_s]
    if not due:
        return state, ()
    order = (Stage.KNOWN, Stage.COMPLETE, Stage.SUBMITTED, Stage.BEGUN)
    request = _request(min(due, key=lambda each: (order.index(each.stage), each.number)))
    return msgspec.structs.replace(state, busy=request), (request,)


def _request(cycle: Cycle) -> Submit | AskVerdict:
    if cycle.stage is Stage.SUBMITTED:
        return AskVerdict(cycle.number)
    return Submit(cycle.number, is_terminal=cycle.stage not in (Stage.BEGUN, Stage.RUNS))


def _of(state: State, number: int) -> Cycle | None:
    return next((cycle for cycle in state.cycles if cycle.number == number), None)


def _put(state: State, cycle: Cycle) -> State:
    others = [each for each in state.cycles if each.number != cycle.number]
    cycles = sorted((*others, cycle), key=lambda each: each.number)
    return msgspec.structs.replace(state, cycles=tuple(cycles[-CYCLES_MAX:]))


def _without(state: State, number: int) -> State:
    return msgspec.structs.replace(state, cycles=tuple(each for each in state.cycles if each.number != number))
