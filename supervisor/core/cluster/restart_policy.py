"""Does a job restart after a fault: at once, later, or not at all?

Each job has one such machine, so its budget is job-wide; coordinator._node_failed has decided which reports are one
fault. The policy checks in this order: does the workload allow it, does it make progress, is there budget left. Delays
grow only if restarts achieve nothing: without progress if progress is known, else after several short-lived cycles in a
row. suspected_nodes.py warns of a node whose faults recur.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from supervisor.core.cluster import suspected_nodes
from supervisor.core.facts import JobState, RestartPolicyName, RestartRules, Verdict

SHORT_CYCLE_S = 5.0  # if the iteration is unknown, a cycle that lived less counts as short
SHORT_CYCLES_FREE = 5  # so many of them in a row are restarted at once
JITTER_SHARE = 0.25  # up to this share of a delay is taken off at random

# --- state ---------------------------------------------------------------------------------------------------------


class State(msgspec.Struct, frozen=True):
    """The policy's memory. `training_iteration`: the highest so far, to measure progress from; None: unknown.

    `fallen_to`: after a fault below it, since the script has loaded an older checkpoint, progress counts from there.
    """

    rules: RestartRules
    used: int = 0
    training_iteration: int | None = None
    fallen_to: int | None = None
    falls: int = 0  # faults below the one before, since the highest iteration was exceeded
    falls_before: int = 0  # those of them before the last progress
    fruitless: int = 0  # cycles in a row without progress since then, falls included
    short: int = 0  # short-lived cycles in a row with unknown progress
    is_unknown_told: bool = False
    faulted_at_s: float = 0.0  # the last fault of any node
    # Changes in place.
    node_faults: suspected_nodes.NodeFaults = msgspec.field(default_factory=dict[str, tuple[float, ...]])


# --- events --------------------------------------------------------------------------------------------------------


class FaultHappened(msgspec.Struct, frozen=True):
    node: str
    reason: str
    healthy_nodes: int  # without this one
    lived_s: float | None  # of the cycle; None: it never ran
    training_iteration: int | None = None
    restart_allowed: bool = True
    exit_code: int = 1


Event = FaultHappened

# --- actions -------------------------------------------------------------------------------------------------------


class Restart(msgspec.Struct, frozen=True):
    delay_s: float
    reason: str


class Tolerate(msgspec.Struct, frozen=True):
    """Enough nodes are healthy: the job continues."""

    reason: str


class GiveUp(msgspec.Struct, frozen=True):
    verdict: Verdict


class Warn(msgspec.Struct, frozen=True):
    """`kind` of the event that people see."""

    kind: str
    reason: str


Action = Restart | Tolerate | GiveUp | Warn

# --- decisions -----------------------------------------------------------------------------------------------------


def initial_state(rules: RestartRules, *, training_iteration: int | None) -> State:
    """Starts with a full budget. `training_iteration`: from the checkpoint file at the start of the job."""
    return State(rules, training_iteration=training_iteration)


def step(state: State, event: Event, *, now_s: float, jitter: float) -> tuple[State, tuple[Action, ...]]:
    """Returns exactly one of Restart, Tolerate and GiveUp, after any warnings. `jitter`: a random value from 0 to 1."""
    suspected = suspected_nodes.note_fault(state.node_faults, event.node, before_s=state.faulted_at_s, now_s=now_s)
    warnings: tuple[Action, ...] = (Warn(suspected_nodes.NODE_SUSPECTED, suspected),) if suspected else ()
    state = msgspec.structs.replace(state, faulted_at_s=now_s)
    if not event.restart_allowed:
        return state, (*warnings, GiveUp(Verdict(JobState.FAILED, event.exit_code, event.reason)))
    rules = state.rules
    match rules.policy:
        case RestartPolicyName.ANY_FAILED:
            pass
        case RestartPolicyName.MIN_HEALTHY:
            if event.healthy_nodes >= rules.min_nodes:
                reason = f"{event.reason}; going on with {event.healthy_nodes} healthy nodes (min {rules.min_nodes})"
                return state, (*warnings, Tolerate(reason))
        case _:
            assert_never(rules.policy)
    state, score, unknown = _score(state, event)
    warnings += unknown
    # A job that falls back and comes as far again and again achieves nothing.
    if 0 < rules.max_no_progress_cycles <= state.fruitless + state.falls_before:
        reason = (
            f"{event.reason}; no progress in {_counted(state.fruitless, 'cycle')}{_after_falls(state)}: {score} "
            f"(at least {rules.min_progress_iterations} more was expected)"
        )
        return state, (*warnings, GiveUp(Verdict(JobState.FAILED, rules.no_restart_exit_code, reason)))
    if state.used >= rules.max_restarts:
        reason = f"{event.reason}; restarts used {state.used} of {rules.max_restarts}"
        return state, (*warnings, GiveUp(Verdict(JobState.FAILED, 1, reason)))
    state = msgspec.structs.replace(state, used=state.used + 1)
    delay_s = _delay_s(state, jitter)
    when = f"in {delay_s:.1f} s" if delay_s else "at once"
    reason = f"{event.reason}; restarting {when}, restarts used {state.used} of {rules.max_restarts}"
    if delay_s:
        young = f"{state.short} cycles in a row lived less than {SHORT_CYCLE_S:.0f} s"
        reason += f"; waiting because {f'{state.fruitless} cycles made no progress' if state.fruitless else young}"
    return state, (*warnings, Restart(delay_s, reason))


def next_deadline_s(state: State) -> float | None:
    """Returns None: the policy has no deadlines; the coordinator waits for the delay that it orders."""
    return None


def units_left(state: State) -> int:
    """Returns the budget left, for faults that cost less than a new cycle."""
    return max(0, state.rules.max_restarts - state.used)


def take_unit(state: State) -> State:
    return msgspec.structs.replace(state, used=state.used + 1)


def give_back(state: State, restarts: int) -> State:
    """Takes back restarts that were decided and did not come about."""
    return msgspec.structs.replace(state, used=state.used - restarts)


def _score(state: State, event: FaultHappened) -> tuple[State, str, tuple[Action, ...]]:
    """Judges the progress of the cycle that has just ended. An unreadable iteration counts neither way."""
    rules = state.rules
    if event.training_iteration is None:
        is_short = event.lived_s is None or event.lived_s < SHORT_CYCLE_S
        state = msgspec.structs.replace(state, short=state.short + 1 if is_short else 0)
        if state.training_iteration is None or state.is_unknown_told:
            return state, "", ()
        text = "the checkpoint iteration file can't be read: this cycle counts neither as progress nor as a lack of it"
        return msgspec.structs.replace(state, is_unknown_told=True), "", (Warn("progress_unknown", text),)
    state = msgspec.structs.replace(state, is_unknown_told=False, short=0)
    if state.training_iteration is None:
        return msgspec.structs.replace(state, training_iteration=event.training_iteration), "", ()  # Known from now on.
    iteration, mark = event.training_iteration, state.training_iteration
    if iteration - mark >= rules.min_progress_iterations:
        state = msgspec.structs.replace(state, training_iteration=iteration, fallen_to=None, falls=0)
        return msgspec.structs.replace(state, falls_before=0, fruitless=0), "", ()
    if state.fallen_to is not None:
        mark = state.fallen_to
    if iteration - mark >= rules.min_progress_iterations:
        return msgspec.structs.replace(state, fallen_to=iteration, falls_before=state.falls, fruitless=0), "", ()
    if iteration < mark:
        state = msgspec.structs.replace(state, fallen_to=iteration, falls=state.falls + 1)
    score = f"the iteration is {iteration} and was {mark}"
    return msgspec.structs.replace(state, fruitless=state.fruitless + 1), score, ()


def _after_falls(state: State) -> str:
    falls = state.falls_before
    return f" after {_counted(falls, 'return')} to an older checkpoint" if falls else ""


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _delay_s(state: State, jitter: float) -> float:
    """Returns 0, base, 2 base, 4 base … up to the maximum, less some jitter."""
    doublings = max(state.fruitless - 2, state.short - SHORT_CYCLES_FREE - 1)
    if doublings < 0:
        return 0.0
    full_s = min(state.rules.backoff_base_s * 2.0 ** min(doublings, 32), state.rules.backoff_max_s)
    return full_s * (1 - JITTER_SHARE * jitter)
