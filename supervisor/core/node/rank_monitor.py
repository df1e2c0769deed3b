"""Has this rank gone silent for longer than it may?

One machine for each rank of a cycle. The rank stamps a page without telling anybody, so a deadline is only a reason to
look: the machine asks for the page, judges what it says as of the moment at which it was read, and either declares the
hang, once, or waits for the next moment at which some limit could have run out. Hence it is never early, and nobody
polls. Heartbeats and sections are independent: what a client has not begun to use is not held against it, but for the
limit from init to the first heartbeat, which a user who configures it wants from the start.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

import msgspec

from supervisor.core.facts import HangLimits, Progress
from supervisor.core.silence import REREAD_PAUSE_S, Silence, read_moment_s

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


class Reading(msgspec.Struct, frozen=True):
    """A limit may have run out; the page was asked for. No answer is no verdict."""

    limits: HangLimits
    progress: Progress


class Hung(msgspec.Struct, frozen=True):
    limits: HangLimits
    progress: Progress
    since_s: float
    reason: str


class Gone(msgspec.Struct, frozen=True):
    """The worker has ended or is being ended: nothing about it is news any more."""


State = Silent | Watching | Reading | Hung | Gone

# --- events --------------------------------------------------------------------------------------------------------


class ClientJoined(msgspec.Struct, frozen=True):
    limits: HangLimits
    progress: Progress


class ClientLeft(msgspec.Struct, frozen=True):
    pass


class PageLost(msgspec.Struct, frozen=True):
    """The supervisor is another one now, and the client has not come back to it yet: its limits hold all the same."""


class ProgressRead(msgspec.Struct, frozen=True):
    progress: Progress


class LimitsChanged(msgspec.Struct, frozen=True):
    limits: HangLimits


class WorkerEnded(msgspec.Struct, frozen=True):
    """It exited, or the node has begun to stop it."""


class DeadlineReached(msgspec.Struct, frozen=True):
    pass


Event = ClientJoined | ClientLeft | PageLost | ProgressRead | LimitsChanged | WorkerEnded | DeadlineReached

# --- actions -------------------------------------------------------------------------------------------------------


class ReadPage(msgspec.Struct, frozen=True):
    pass


class DeclareHang(msgspec.Struct, frozen=True):
    """`reason` lacks its subject: "sent no heartbeat for 5.0 s (limit 5.0 s)"."""

    since_s: float
    reason: str


Action = ReadPage | DeclareHang

# --- decisions -----------------------------------------------------------------------------------------------------


def initial_state() -> State:
    return Silent()


def step(state: State, event: Event, *, now_s: float) -> tuple[State, tuple[Action, ...]]:
    match event:
        case WorkerEnded():
            return Gone(), ()
        case ClientJoined(limits, progress):
            return _join(state, limits, progress, now_s)
        case ClientLeft():
            return _leave(state), ()
        case PageLost():
            return _lose_page(state, now_s), ()
        case LimitsChanged(limits):
            return _change_limits(state, limits), ()
        case ProgressRead(progress):
            return _judge(state, progress, now_s)
        case DeadlineReached():
            return _ask(state, now_s)
        case _:
            assert_never(event)


def next_deadline_s(state: State) -> float | None:
    match state:
        case Watching(limits, progress, read_at_s, not_before_s):
            deadline_s = _earliest_s(limits, progress, read_at_s)
            if deadline_s is None or not_before_s is None:
                return deadline_s
            return max(deadline_s, not_before_s)
        case Silent() | Reading() | Hung() | Gone():
            return None
        case _:
            assert_never(state)


def _join(state: State, limits: HangLimits, progress: Progress, now_s: float) -> tuple[State, tuple[Action, ...]]:
    match state:
        case Silent() | Watching() | Reading():
            return Watching(limits, progress, read_moment_s(progress, now_s)), ()
        case Hung() | Gone():
            return state, ()  # One verdict for each hang; and a hello may race the exit.
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
            return Watching(limits, progress, now_s)
        case Silent() | Hung() | Gone():
            return state
        case _:
            assert_never(state)


def _change_limits(state: State, limits: HangLimits) -> State:
    """Limits that are tighter than a silence so far make the page be read, they don't condemn by an old reading."""
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
            return Reading(limits, progress), (ReadPage(),)
        case Silent() | Reading() | Hung() | Gone():
            return state, ()
        case _:
            assert_never(state)


def _judge(state: State, progress: Progress, now_s: float) -> tuple[State, tuple[Action, ...]]:
    match state:
        case Reading(limits):
            read_at_s = read_moment_s(progress, now_s)
            due = min(_dues(limits, progress), key=lambda due: due.due_at_s, default=None)
            if due is not None and due.due_at_s <= read_at_s:
                reason = due.reason(read_at_s)
                return Hung(limits, progress, due.since_s, reason), (DeclareHang(due.since_s, reason),)
            watching = Watching(limits, progress, read_at_s)
            deadline_s = next_deadline_s(watching)
            if deadline_s is not None and deadline_s <= now_s:
                watching = msgspec.structs.replace(watching, not_before_s=now_s + REREAD_PAUSE_S)
            return watching, ()
        case Watching(limits):
            # Not asked for, so maybe old by now: it may bring the next reading forward, never a verdict.
            return Watching(limits, progress, read_moment_s(progress, now_s), state.not_before_s), ()
        case Silent() | Hung() | Gone():
            return state, ()
        case _:
            assert_never(state)


# --- limits --------------------------------------------------------------------------------------------------------


def _dues(limits: HangLimits, progress: Progress) -> Iterator[Silence]:
    """The silences that run as far as `progress` tells, each with its limit."""
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


def _earliest_s(limits: HangLimits, progress: Progress, read_at_s: float) -> float | None:
    """The first moment at which any limit can have run out.

    The page was read at `read_at_s`. Right after that a section may have opened or closed, or the first heartbeat come,
    of which nothing is known yet: each of these silences could end as early as one limit after the reading.
    """
    moments = [due.due_at_s for due in _dues(limits, progress)]
    moments += [read_at_s + limit_s for _, limit_s in limits.sections if limit_s is not None]
    if limits.out_of_section_s is not None and limits.sections:
        moments.append(read_at_s + limits.out_of_section_s)
    if progress.heartbeat_at_s is None and limits.heartbeat_s is not None:
        moments.append(read_at_s + limits.heartbeat_s)
    return min(moments, default=None)


def _is_warming_up(limits: HangLimits, section_limits: dict[str, float | None], progress: Progress) -> bool:
    return WARM_UP in section_limits and progress.steps_since_first < limits.warm_up_steps


def _uses_sections(section_limits: dict[str, float | None], progress: Progress) -> bool:
    """Whether the time outside of sections counts: from the first step on, or from init where `warmup` covers that.

    A client that sends heartbeats and has not opened any section is not held to the limits of sections.
    """
    if progress.first_step_seen:
        return True
    if WARM_UP not in section_limits:
        return False
    has_opened_one = progress.out_of_section_since_s > progress.initialised_at_s
    return has_opened_one or progress.heartbeat_at_s is None
