"""Has this rank been silent for longer than allowed?

Each rank of a cycle has one such machine. The rank stamps a page without a message, so a deadline is only a reason to
look: the machine requests the page, judges its contents as of the time when it was read, and either declares the hang,
once, or waits until some limit could have run out next. So it is never early, and there is no polling. Heartbeats and
sections are independent: limits on what a client does not use do not apply, except the limit from init to the first
heartbeat, which users who configure it want from the start. A silence that a wrapped call deals with is excused, and
counts from then on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

import msgspec

from supervisor.core.facts import HangLimits, Progress
from supervisor.core.rank_silence import REREAD_PAUSE_S, Silence, moved_s, read_moment_s

STEP = "step"
WARM_UP = "warmup"


# --- states --------------------------------------------------------------------------------------------------------


class Silent(msgspec.Struct, frozen=True):
    """No client is connected: nothing is judged."""


class Watching(msgspec.Struct, frozen=True):
    limits: HangLimits
    progress: Progress
    read_at_s: float
    not_before_s: float | None = None  # the page is not read again before
    excused_at_s: float | None = None  # no silence counts from earlier


class Reading(msgspec.Struct, frozen=True):
    """A limit may have run out; the page was requested. Without an answer, there is no verdict."""

    limits: HangLimits
    progress: Progress
    excused_at_s: float | None = None


class Hung(msgspec.Struct, frozen=True):
    limits: HangLimits
    progress: Progress
    since_s: float
    reason: str


class Gone(msgspec.Struct, frozen=True):
    """The worker has ended or is being stopped, so nothing about it matters any more."""


State = Silent | Watching | Reading | Hung | Gone

# --- events --------------------------------------------------------------------------------------------------------


class ClientJoined(msgspec.Struct, frozen=True):
    limits: HangLimits
    progress: Progress


class ClientLeft(msgspec.Struct, frozen=True):
    pass


class PageLost(msgspec.Struct, frozen=True):
    """The supervisor is a new one, and the client has not reconnected yet; its limits still apply."""


class ProgressRead(msgspec.Struct, frozen=True):
    progress: Progress


class LimitsChanged(msgspec.Struct, frozen=True):
    limits: HangLimits


class SilenceExcused(msgspec.Struct, frozen=True):
    """The rank's wrapped call deals with its silence, or has begun another iteration."""


class ProcessPaused(msgspec.Struct, frozen=True):
    """The supervisor did not run for some time since `since_s`, which counts against no rank."""

    since_s: float


class WorkerEnded(msgspec.Struct, frozen=True):
    """The worker exited, or the node has begun to stop it."""


class DeadlineReached(msgspec.Struct, frozen=True):
    pass


Event = (
    ClientJoined | ClientLeft | PageLost | ProgressRead | LimitsChanged | SilenceExcused | ProcessPaused | WorkerEnded
    | DeadlineReached
)  # fmt: skip

# --- actions -------------------------------------------------------------------------------------------------------


class ReadPage(msgspec.Struct, frozen=True):
    pass


class DeclareHang(msgspec.Struct, frozen=True):
    """Declares a hang. `reason` lacks its subject: "sent no heartbeat for 5.0 s (limit 5.0 s)".

    `since_excuse`: the rank has given no sign since a silence was excused.
    """

    since_s: float
    reason: str
    limit_s: float
    since_excuse: bool = False


Action = ReadPage | DeclareHang

# --- decisions -----------------------------------------------------------------------------------------------------


def initial_state() -> State:
    return Silent()


def step(state: State, event: Event, *, now_s: float) -> tuple[State, tuple[Action, ...]]:
    match event:  # the most frequent first
        case ProgressRead(progress):
            return _judge(state, progress, now_s)
        case DeadlineReached():
            return _ask(state, now_s)
        case ClientJoined(limits, progress):
            return _join(state, limits, progress, now_s)
        case WorkerEnded():
            return Gone(), ()
        case ClientLeft():
            return _leave(state), ()
        case PageLost():
            return _lose_page(state, now_s), ()
        case LimitsChanged(limits):
            return _change_limits(state, limits), ()
        case SilenceExcused():
            return _excuse(state, now_s), ()
        case ProcessPaused(since_s):
            return _pass_over(state, since_s, now_s), ()
        case _:
            assert_never(event)


def next_deadline_s(state: State) -> float | None:
    match state:
        case Watching(limits, progress, read_at_s, not_before_s, excused_at_s):
            deadline_s = _earliest_s(limits, progress, read_at_s, excused_at_s)
            if deadline_s is None or not_before_s is None:
                return deadline_s
            return max(deadline_s, not_before_s)
        case Silent() | Reading() | Hung() | Gone():
            return None
        case _:
            assert_never(state)


def _join(state: State, limits: HangLimits, progress: Progress, now_s: float) -> tuple[State, tuple[Action, ...]]:
    match state:
        case Silent():
            return Watching(limits, progress, read_moment_s(progress, now_s)), ()
        case Watching() | Reading():
            read_at_s = read_moment_s(progress, now_s)
            return Watching(limits, progress, read_at_s, excused_at_s=state.excused_at_s), ()
        case Hung() | Gone():
            return state, ()  # One verdict per hang; and a hello may race the exit.
        case _:
            assert_never(state)


def _leave(state: State) -> State:
    match state:
        case Silent() | Watching() | Reading():
            return Silent()
        case Hung() | Gone():
            return state
        case _:
            assert_never(state)


def _lose_page(state: State, now_s: float) -> State:
    match state:
        case Watching(limits, progress) | Reading(limits, progress):
            return Watching(limits, progress, now_s, excused_at_s=state.excused_at_s)
        case Silent() | Hung() | Gone():
            return state
        case _:
            assert_never(state)


def _excuse(state: State, now_s: float) -> State:
    match state:
        case Watching() | Reading():
            return msgspec.structs.replace(state, excused_at_s=now_s)
        case Hung(limits, progress):
            return Watching(limits, progress, now_s, excused_at_s=now_s)
        case Silent() | Gone():
            return state
        case _:
            assert_never(state)


def _pass_over(state: State, since_s: float, now_s: float) -> State:
    """Moves the excuse; the progress that is read next has moved too."""
    match state:
        case Watching(excused_at_s=excused_at_s) | Reading(excused_at_s=excused_at_s) if excused_at_s is not None:
            return msgspec.structs.replace(state, excused_at_s=moved_s(excused_at_s, [(since_s, now_s)]))
        case Silent() | Watching() | Reading() | Hung() | Gone():
            return state
        case _:
            assert_never(state)


def _change_limits(state: State, limits: HangLimits) -> State:
    """Applies new limits. If the silence so far exceeds them, the page is read again before any verdict."""
    match state:
        case Watching() | Reading():
            kept = msgspec.structs.replace(limits, warm_up_steps=state.limits.warm_up_steps)
            return msgspec.structs.replace(state, limits=kept)
        case Silent() | Hung() | Gone():
            return state
        case _:
            assert_never(state)


def _ask(state: State, now_s: float) -> tuple[State, tuple[Action, ...]]:
    match state:
        case Watching(limits, progress):
            deadline_s = next_deadline_s(state)
            if deadline_s is None or now_s < deadline_s:
                return state, ()
            return Reading(limits, progress, state.excused_at_s), (ReadPage(),)
        case Silent() | Reading() | Hung() | Gone():
            return state, ()
        case _:
            assert_never(state)


def _judge(state: State, progress: Progress, now_s: float) -> tuple[State, tuple[Action, ...]]:
    match state:
        case Reading(limits):
            read_at_s = read_moment_s(progress, now_s)
            excused_at_s = state.excused_at_s
            due = min(_dues(limits, progress, excused_at_s), key=lambda due: due.due_at_s, default=None)
            if due is not None and due.due_at_s <= read_at_s:
                reason = due.reason(read_at_s)
                hang = DeclareHang(due.since_s, reason, due.limit_s, due.since_s == excused_at_s)
                return Hung(limits, progress, due.since_s, reason), (hang,)
            watching = Watching(limits, progress, read_at_s, excused_at_s=excused_at_s)
            deadline_s = next_deadline_s(watching)
            if deadline_s is not None and deadline_s <= now_s:
                watching = msgspec.structs.replace(watching, not_before_s=now_s + REREAD_PAUSE_S)
            return watching, ()
        case Watching(limits):
            # Not requested, so perhaps outdated: it may bring the next reading forward, but never a verdict.
            read_at_s = read_moment_s(progress, now_s)
            return Watching(limits, progress, read_at_s, state.not_before_s, state.excused_at_s), ()
        case Silent() | Hung() | Gone():
            return state, ()
        case _:
            assert_never(state)


# --- limits --------------------------------------------------------------------------------------------------------


def _dues(limits: HangLimits, progress: Progress, excused_at_s: float | None) -> Iterator[Silence]:
    """Yields the silences that are running according to `progress`, each with its limit."""
    for due in _running(limits, progress):
        is_excused = excused_at_s is not None and due.since_s < excused_at_s
        yield msgspec.structs.replace(due, since_s=excused_at_s) if is_excused else due


def _running(limits: HangLimits, progress: Progress) -> Iterator[Silence]:
    if progress.heartbeat_at_s is None:
        if limits.initial_heartbeat_s is not None:
            text = "sent no first heartbeat for {age} since its start (limit {limit})"
            yield Silence(progress.initialised_at_s, limits.initial_heartbeat_s, text)
    elif limits.heartbeat_s is not None:
        yield Silence(progress.heartbeat_at_s, limits.heartbeat_s, "sent no heartbeat for {age} (limit {limit})")
    section_limits = dict(limits.sections)
    for name, opened_at_s in progress.open_sections:
        warms_up = name == STEP and _is_warming_up(limits, section_limits, progress)
        limit_s = section_limits.get(WARM_UP if warms_up else name)
        if limit_s is not None:
            which = "warmup limit" if warms_up else "limit"
            shown = name.replace("{", "{{").replace("}", "}}")
            yield Silence(opened_at_s, limit_s, f"has been in section '{shown}' for {{age}} ({which} {{limit}})")
    if limits.out_of_section_s is not None and not progress.open_sections and _uses_sections(section_limits, progress):
        text = "is outside of all sections for {age} (limit {limit})"
        yield Silence(progress.out_of_section_since_s, limits.out_of_section_s, text)


def _earliest_s(limits: HangLimits, progress: Progress, read_at_s: float, excused_at_s: float | None) -> float | None:
    """Returns the earliest time at which any limit can have run out.

    The page was read at `read_at_s`. Right after that, a section may have opened or closed, or the first heartbeat may
    have come, still unknown here: the limit of such a silence could run out one limit after the reading.
    """
    moments = [due.due_at_s for due in _dues(limits, progress, excused_at_s)]
    moments += [read_at_s + limit_s for _, limit_s in limits.sections if limit_s is not None]
    if limits.out_of_section_s is not None and limits.sections:
        moments.append(read_at_s + limits.out_of_section_s)
    if progress.heartbeat_at_s is None and limits.heartbeat_s is not None:
        moments.append(read_at_s + limits.heartbeat_s)
    return min(moments, default=None)


def _is_warming_up(limits: HangLimits, section_limits: dict[str, float | None], progress: Progress) -> bool:
    return WARM_UP in section_limits and progress.steps_since_first < limits.warm_up_steps


def _uses_sections(section_limits: dict[str, float | None], progress: Progress) -> bool:
    """Returns whether time outside sections counts: from the first step on, or from init if `warmup` covers that.

    The limits of sections do not apply to a client that sends heartbeats and has not opened any section.
    """
    if progress.first_step_seen:
        return True
    if WARM_UP not in section_limits:
        return False
    has_opened_one = progress.out_of_section_since_s > progress.initialised_at_s
    return has_opened_one or progress.heartbeat_at_s is None
