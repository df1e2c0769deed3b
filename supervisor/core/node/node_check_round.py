"""Has this node proven that it is fit for the job's next cycle?

All checks of the node begin when the job opens, and with each stop of its workers, so they cost a restart no time if
all is well. The node joins only after their answers. An unfit node says so, and the coordinator continues without it. A
check without an answer by its deadline evicts no node unless its plan says so. If its plan sets a patience, it delays a
join only that long; a stuck check does not delay it at all. Between two cycles, checks with a period are repeated:
their findings are reported, and count at the next stop.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from supervisor.core.cluster.cluster_messages import NodeExcluded, NodeJoined
from supervisor.core.node import single_node_check
from supervisor.core.node.node_check_events import NodeCheckEvents
from supervisor.core.node.node_messages import CheckNode, DeadlineReached, NodeChecked, Publish, TellCoordinator
from supervisor.core.node.single_node_check import NodeCheckState
from supervisor.core.node_check_facts import CheckPlan, CheckView, Health, HealthFinding, unfit_sentence

# --- states --------------------------------------------------------------------------------------------------------


class Round(msgspec.Struct, frozen=True):
    """The checks before one cycle. `missing` have not answered yet."""

    begun_s: float
    missing: tuple[str, ...]


class State(msgspec.Struct, frozen=True):
    """The node's fitness for one job. `round` None: none is under way. `joins` waits for it."""

    standings: tuple[NodeCheckState, ...] = ()
    round: Round | None = None
    joins: NodeJoined | None = None
    joins_at_s: float | None = None  # when `joins` was ready; None: unknown
    told: tuple[tuple[str, Health], ...] = ()  # checks whose lack of a result was reported
    is_over: bool = False


# --- events, beside NodeChecked and DeadlineReached ----------------------------------------------------------------


class RoundBegun(msgspec.Struct, frozen=True):
    """The workers of the last cycle are being stopped, or the first cycle is to come."""


class JoinWanted(msgspec.Struct, frozen=True):
    """All else of this node is ready for the next cycle."""

    joined: NodeJoined


class JoinDropped(msgspec.Struct, frozen=True):
    """The node is no longer ready, or the job ends."""


class JobOver(msgspec.Struct, frozen=True):
    """The job is over, so nothing more is checked."""


Event = RoundBegun | JoinWanted | JoinDropped | JobOver | NodeChecked | DeadlineReached
Action = CheckNode | TellCoordinator | Publish
Outcome = tuple[State, tuple[Action, ...]]

# --- decisions -----------------------------------------------------------------------------------------------------


def initial_state(plans: tuple[CheckPlan, ...] = ()) -> State:
    return State(tuple(NodeCheckState(plan) for plan in plans))


def step(state: State, event: Event, *, now_s: float, job_id: str, node: str, cycle: int) -> Outcome:
    check_events = NodeCheckEvents(job_id, node, max(cycle, 0))
    match event:
        case RoundBegun():
            return (state, ()) if state.round is not None or state.is_over else _begin(state, now_s, check_events)
        case JoinWanted(joined):
            if state.round is None:
                return state, (TellCoordinator(job_id, joined),)
            return _conclude(msgspec.structs.replace(state, joins=joined, joins_at_s=now_s), now_s, check_events)
        case JoinDropped():
            return msgspec.structs.replace(state, joins=None), ()
        case NodeChecked(check=check, number=number, findings=findings, is_last=is_last):
            check_state = next((each for each in state.standings if each.plan.name == check), None)
            if check_state is None or check_state.number != number or check_state.begun_s is None:
                return state, ()  # Outdated.
            if not is_last:
                return _conclude(_with(state, single_node_check.note(check_state, findings)), now_s, check_events)
            before = check_state.findings
            answered = single_node_check.answer(check_state, findings, now_s)
            answered = single_node_check.rest(answered) if state.is_over else answered
            return _answered(_with(state, answered), answered, before, now_s, check_events)
        case DeadlineReached():
            return _pass_deadlines(state, now_s, check_events)
        case JobOver():
            rested = tuple(single_node_check.rest(each) for each in state.standings)
            return State(rested, told=state.told, is_over=True), ()
        case _:
            assert_never(event)


def next_deadline_s(state: State) -> float | None:
    if state.is_over or not (state.standings or state.round):
        return None
    moments = [moment for each in state.standings for moment in (each.late_at_s, each.due_s)]
    if state.round is not None and state.joins is not None:
        untils = [single_node_check.patient_until_s(each, state.round.begun_s) for each in _missing(state)]
        if None not in untils:  # Otherwise the join waits for an answer, whatever the patience with the others.
            moments.append(max((until_s for until_s in untils if until_s is not None), default=None))
    return min((moment for moment in moments if moment is not None), default=None)


def checks_of(state: State) -> tuple[CheckView, ...]:
    """Returns the latest findings of each check, for people."""
    return tuple(
        CheckView(finding, each.found_at_s)
        for each in state.standings
        if each.found_at_s is not None
        for finding in each.findings
    )


def _begin(state: State, now_s: float, check_events: NodeCheckEvents) -> Outcome:
    """Begins a round. A look under way counts for it; a late one counts as it did when it became late."""
    state, actions = _look(state, now_s, check_events, [each for each in state.standings if each.begun_s is None])
    missing = tuple(each.plan.name for each in state.standings if each.is_awaited)
    state = msgspec.structs.replace(state, round=Round(now_s, missing), joins=None)
    state, more = _conclude(state, now_s, check_events)
    return state, (*actions, *more)


def _look(state: State, now_s: float, check_events: NodeCheckEvents, due: list[NodeCheckState]) -> Outcome:
    begun = [single_node_check.begin(each, now_s) for each in due]
    for each in begun:
        state = _with(state, each)
    return state, tuple(CheckNode(check_events.job_id, each.plan.name, each.number) for each in begun)


def _answered(
    state: State,
    check_state: NodeCheckState,
    before: tuple[HealthFinding, ...],
    now_s: float,
    check_events: NodeCheckEvents,
) -> Outcome:
    name = check_state.plan.name
    if state.round is not None and name in state.round.missing:
        missing = tuple(each for each in state.round.missing if each != name)
        state = msgspec.structs.replace(state, round=msgspec.structs.replace(state.round, missing=missing))
        return _conclude(state, now_s, check_events)
    return state, () if state.is_over else check_events.changes(before, check_state.findings)


def _pass_deadlines(state: State, now_s: float, check_events: NodeCheckEvents) -> Outcome:
    if state.is_over:
        return state, ()
    actions: list[Action] = []
    for each in state.standings:
        if each.late_at_s is not None and each.late_at_s <= now_s:
            missed = single_node_check.miss(each, now_s)
            state, more = _answered(_with(state, missed), missed, each.findings, now_s, check_events)
            actions += more
    due = [each for each in state.standings if each.due_s is not None and each.due_s <= now_s]
    state, looks = _look(state, now_s, check_events, due)
    state, more = _conclude(state, now_s, check_events)
    return state, (*actions, *looks, *more)


def _conclude(state: State, now_s: float, check_events: NodeCheckEvents) -> Outcome:
    """Ends the round once no check is awaited."""
    if state.round is None:
        return state, ()
    begun_s, missing = state.round.begun_s, _missing(state)
    for each in missing:
        until_s = single_node_check.patient_until_s(each, begun_s)
        if state.joins is None or until_s is None or until_s > now_s:
            return state, ()
    findings = tuple(
        finding
        for each in state.standings
        for finding in (single_node_check.without_answer(each, begun_s, now_s) if each in missing else each.findings)
    )
    said, told = check_events.round(findings, state.told)
    reports: list[Action] = []
    if unfit := unfit_sentence(check_events.node, findings):
        reports.append(TellCoordinator(check_events.job_id, NodeExcluded(check_events.node, unfit)))
    if state.joins is not None:  # Also if unfit: nothing of the last cycle runs here any more.
        joined, cause = state.joins, state.joins.cause
        if cause is not None and state.joins_at_s is not None:
            joined = msgspec.structs.replace(joined, cause=cause.later(now_s - state.joins_at_s))
        reports.append(TellCoordinator(check_events.job_id, joined))
    state = msgspec.structs.replace(state, round=None, joins=None, told=told)
    return state, (*said, *reports)


def _missing(state: State) -> list[NodeCheckState]:
    names = state.round.missing if state.round is not None else ()
    return [each for each in state.standings if each.plan.name in names]


def _with(state: State, check_state: NodeCheckState) -> State:
    name = check_state.plan.name
    standings = tuple(check_state if each.plan.name == name else each for each in state.standings)
    return msgspec.structs.replace(state, standings=standings)
