"""Has a rank in a wrapped call made no progress for longer than its soft or its hard timeout?

The rank's page says when its main thread last executed bytecode, when it last called ping(), and whether it should be
watched. As in rank_monitor.py, a deadline is only a reason to read that page again, so there is no polling and no
judgement by an old reading. The soft timeout is a fault of the rank, reported once per iteration. The hard timeout ends
its process: first the stacks of all ranks, then one more look, SIGTERM, and after the grace period SIGKILL. Taking
stacks needs time, so that of an interrupted rank begins shortly before its hard timeout.
"""

from __future__ import annotations

import signal as signals
from collections.abc import Iterator
from typing import assert_never

import msgspec

from supervisor.core.facts import CallWatch, Progress, WatchMode
from supervisor.core.rank_silence import REREAD_PAUSE_S, Silence, read_moment_s
from supervisor.core.wrapped_calls.call_messages import CallSettings, Interruption

EVIDENCE_MARGIN_S = 0.1  # beyond the budget, for an answer that is under way
EVIDENCE_LEAD_S = 0.1  # before the hard timeout of a rank whose soft timeout was reported

# --- states --------------------------------------------------------------------------------------------------------


class Idle(msgspec.Struct, frozen=True):
    """The rank is in no call."""


class Watching(msgspec.Struct, frozen=True):
    settings: CallSettings
    watch: CallWatch | None = None  # as last read
    read_at_s: float = 0.0
    soft_told: bool = False
    not_before_s: float = 0.0  # the page is not read again before


class Reading(msgspec.Struct, frozen=True):
    """A timeout may have run out; the page was requested. Without an answer, there is no verdict."""

    settings: CallSettings
    soft_told: bool


class Examining(msgspec.Struct, frozen=True):
    """The hard timeout has run out or is about to; stacks are being taken, or were taken before it has run out."""

    settings: CallSettings
    until_s: float
    due_at_s: float = 0.0  # when the hard timeout runs out


class Confirming(msgspec.Struct, frozen=True):
    """The page is read once more before the process is terminated."""

    settings: CallSettings


class Terminating(msgspec.Struct, frozen=True):
    kill_at_s: float


class Gone(msgspec.Struct, frozen=True):
    """Its process has ended or is no longer waited for."""


State = Idle | Watching | Reading | Examining | Confirming | Terminating | Gone

# --- events --------------------------------------------------------------------------------------------------------


class CallEntered(msgspec.Struct, frozen=True):
    settings: CallSettings


class LimitRanOut(msgspec.Struct, frozen=True):
    """A limit of the monitoring has run out in a running iteration, which is interrupted first.

    `reason` lacks its subject. `settings` apply until the next iteration.
    """

    reason: str
    settings: CallSettings


class IterationBegun(msgspec.Struct, frozen=True):
    """An iteration begins: the soft timeout may be reported again."""

    settings: CallSettings


class CallLeft(msgspec.Struct, frozen=True):
    pass


class ProgressRead(msgspec.Struct, frozen=True):
    progress: Progress


class PageLost(msgspec.Struct, frozen=True):
    """The client is gone or has a new page: nobody may answer an outstanding request for the page."""


class RankCondemned(msgspec.Struct, frozen=True):
    """The others continue without the rank, so its process must end."""


class EvidenceCollected(msgspec.Struct, frozen=True):
    pass


class WorkerEnded(msgspec.Struct, frozen=True):
    """The worker exited, or the node has begun to stop it."""


class DeadlineReached(msgspec.Struct, frozen=True):
    pass


Event = (
    CallEntered | LimitRanOut | IterationBegun | CallLeft | ProgressRead | PageLost | RankCondemned
    | EvidenceCollected | WorkerEnded | DeadlineReached
)  # fmt: skip

# --- actions -------------------------------------------------------------------------------------------------------


class ReadPage(msgspec.Struct, frozen=True):
    pass


class TellFault(msgspec.Struct, frozen=True):
    """Reports a fault of the rank. `reason` lacks its subject."""

    interruption: Interruption
    reason: str


class TakeStacks(msgspec.Struct, frozen=True):
    """Takes the stacks of all ranks; EvidenceCollected may answer."""


class SignalRank(msgspec.Struct, frozen=True):
    """Sends a signal, after SIGCONT unless it is SIGKILL. `tree`: also to the processes that the rank has started."""

    signal: int
    tree: bool


Action = ReadPage | TellFault | TakeStacks | SignalRank
Outcome = tuple[State, tuple[Action, ...]]

# --- decisions -----------------------------------------------------------------------------------------------------


def initial_state() -> State:
    return Idle()


def step(state: State, event: Event, *, now_s: float, evidence_budget_s: float) -> Outcome:
    if type(state) is Idle and type(event) not in (CallEntered, RankCondemned, WorkerEnded):
        return state, ()
    if isinstance(state, Gone) or isinstance(event, WorkerEnded):
        return Gone(), ()
    match event:
        case CallEntered(settings):
            return (Watching(settings, read_at_s=now_s), ()) if isinstance(state, Idle) else (state, ())
        case LimitRanOut(reason, settings):
            if isinstance(state, Watching | Reading) and not state.soft_told:
                interrupted = msgspec.structs.replace(state, settings=settings, soft_told=True)
                return interrupted, (TellFault(Interruption.SOFT_TIMEOUT, reason),)
            return state, ()
        case IterationBegun(settings):
            return _begin(state, settings, now_s), ()
        case CallLeft():
            return (state if isinstance(state, Terminating) else Idle()), ()
        case PageLost():
            return _lose_page(state, now_s), ()
        case ProgressRead(progress):
            return _judge(state, progress, now_s, evidence_budget_s)
        case RankCondemned():
            return state if isinstance(state, Terminating) else Terminating(now_s + _grace_s(state)), _signal(state)
        case EvidenceCollected():
            return _take_evidence(state, now_s)
        case DeadlineReached():
            return _pass_deadline(state, now_s)
        case _:
            assert_never(event)


def next_deadline_s(state: State) -> float | None:
    match state:
        case Idle() | Gone() | Reading() | Confirming():
            return None
        case Watching(settings, watch, read_at_s, soft_told, not_before_s):
            # A watch that is off may be on right after the reading: silence then counts from there.
            moments = [due.due_at_s - due.lead_s(soft_told) for due in _dues(settings, watch, soft_told=soft_told)]
            moments.append(read_at_s + (settings.hard_timeout_s if soft_told else settings.soft_timeout_s))
            return max(min(moments), not_before_s)
        case Examining(until_s=at_s) | Terminating(kill_at_s=at_s):
            return at_s
        case _:
            assert_never(state)


def _begin(state: State, settings: CallSettings, now_s: float) -> State:
    match state:
        case Watching():
            return msgspec.structs.replace(state, settings=settings, soft_told=False, read_at_s=now_s, watch=None)
        case Reading() | Examining() | Confirming():
            # It has finished after all. Nobody may answer an outstanding request, so the page is read again.
            return Watching(settings, read_at_s=now_s)
        case Idle() | Terminating() | Gone():
            return state
        case _:
            assert_never(state)


def _lose_page(state: State, now_s: float) -> State:
    match state:
        case Watching(settings) | Reading(settings) | Examining(settings) | Confirming(settings):
            return Watching(settings, read_at_s=now_s)
        case Idle() | Terminating() | Gone():
            return state
        case _:
            assert_never(state)


def _take_evidence(state: State, now_s: float) -> Outcome:
    if not isinstance(state, Examining):
        return state, ()
    if now_s < state.due_at_s:
        return msgspec.structs.replace(state, until_s=state.due_at_s), ()
    return Confirming(state.settings), (ReadPage(),)


def _pass_deadline(state: State, now_s: float) -> Outcome:
    deadline_s = next_deadline_s(state)
    if deadline_s is None or now_s < deadline_s:
        return state, ()
    match state:
        case Watching(settings, _, _, soft_told):
            return Reading(settings, soft_told), (ReadPage(),)
        case Examining(settings):
            return Confirming(settings), (ReadPage(),)
        case Terminating():
            kill = SignalRank(int(signals.SIGKILL), tree=True)
            return Gone(), (SignalRank(int(signals.SIGTERM), tree=False), kill)
        case Idle() | Reading() | Confirming() | Gone():
            return state, ()
        case _:
            assert_never(state)


def _judge(state: State, progress: Progress, now_s: float, evidence_budget_s: float) -> Outcome:
    match state:
        case Reading() | Confirming():
            pass
        case Watching(settings, _, _, soft_told, not_before_s):
            # Not requested, so perhaps outdated: it may bring the next reading forward, but never a verdict.
            return Watching(settings, progress.call_watch, read_moment_s(progress, now_s), soft_told, not_before_s), ()
        case Idle() | Examining() | Terminating() | Gone():
            return state, ()
        case _:
            assert_never(state)
    settings, soft_told = state.settings, isinstance(state, Confirming) or state.soft_told
    read_at_s = read_moment_s(progress, now_s)
    told: list[Action] = []
    for due in sorted(_dues(settings, progress.call_watch, soft_told=soft_told), key=lambda due: due.due_at_s):
        if due.due_at_s - due.lead_s(soft_told) > read_at_s:
            continue
        if due.due_at_s > read_at_s and evidence_budget_s <= 0:
            return Watching(settings, progress.call_watch, read_at_s, soft_told, due.due_at_s), tuple(told)
        if due.due_at_s > read_at_s and isinstance(state, Confirming):
            return Examining(settings, due.due_at_s, due.due_at_s), tuple(told)  # an outdated reading: look again then
        reason = due.reason(read_at_s)
        if due.interruption is Interruption.SOFT_TIMEOUT:
            soft_told = True
            told.append(TellFault(due.interruption, reason))
        elif isinstance(state, Confirming) or evidence_budget_s <= 0:
            kill_at_s = now_s + settings.termination_grace_s
            return Terminating(kill_at_s), (*told, TellFault(due.interruption, reason), *_signal(state))
        else:
            until_s = max(due.due_at_s, now_s + evidence_budget_s + EVIDENCE_MARGIN_S)
            return Examining(settings, until_s, due.due_at_s), (*told, TakeStacks())
    watching = Watching(settings, progress.call_watch, read_at_s, soft_told)
    deadline_s = next_deadline_s(watching)
    if deadline_s is not None and deadline_s <= now_s:
        watching = msgspec.structs.replace(watching, not_before_s=now_s + REREAD_PAUSE_S)
    return watching, tuple(told)


def _signal(state: State) -> tuple[Action, ...]:
    return () if isinstance(state, Terminating) else (SignalRank(int(signals.SIGTERM), tree=False),)


def _grace_s(state: State) -> float:
    return (
        CallSettings().termination_grace_s
        if isinstance(state, Idle | Gone | Terminating)
        else (state.settings.termination_grace_s)
    )


# --- timeouts ------------------------------------------------------------------------------------------------------


class _Due(Silence, frozen=True):
    interruption: Interruption

    def lead_s(self, soft_told: bool) -> float:
        """Returns how long before its moment the page is read: the kill then need not wait for the stacks."""
        return EVIDENCE_LEAD_S if soft_told and self.interruption is Interruption.HARD_TIMEOUT else 0.0


def _dues(settings: CallSettings, watch: CallWatch | None, *, soft_told: bool) -> Iterator[_Due]:
    if watch is None:
        return
    match watch.mode:
        case WatchMode.OFF:
            return
        case WatchMode.UNWINDING:
            yield _hard(settings, watch.since_s, "has not come back from the interrupted function for {age}")
        case WatchMode.ON:
            since_s, text = max(watch.since_s, watch.progressed_at_s), "executed no Python code for {age}"
            if watch.ping_at_s is not None and watch.since_s < watch.ping_at_s < since_s:
                since_s, text = watch.ping_at_s, "called no ping() for {age}"
            if not soft_told:
                soft = f"{text} (soft timeout {{limit}})"
                yield _Due(since_s, settings.soft_timeout_s, soft, Interruption.SOFT_TIMEOUT)
            yield _hard(settings, since_s, text)
        case _:
            assert_never(watch.mode)


def _hard(settings: CallSettings, since_s: float, text: str) -> _Due:
    return _Due(since_s, settings.hard_timeout_s, f"{text} (hard timeout {{limit}})", Interruption.HARD_TIMEOUT)
