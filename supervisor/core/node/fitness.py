"""Has this node proven that it is fit for the job's next cycle?

A check of the node begins as the job opens, and with each stop of its workers, so that it takes none of a restart's
time if all is well. Until its answer the node does not join. A node that is unfit says so, and the coordinator goes on
without it. A check that gives no answer by its deadline is skipped: that evicts nobody.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from supervisor.core.cluster.messages import NodeExcluded, NodeJoined
from supervisor.core.facts import JobEvent
from supervisor.core.node.messages import CheckNode, DeadlineReached, NodeChecked, Publish, TellCoordinator
from supervisor.core.node_health import Finding, Health, unfit_sentence

CHECK_S = 150.0  # each check has a deadline of its own, the longest that of a health service

# --- states --------------------------------------------------------------------------------------------------------


class State(msgspec.Struct, frozen=True):
    """`number` of the newest check. `until_s` None: none is under way. `joins` waits for it."""

    number: int = 0
    until_s: float | None = None
    joins: NodeJoined | None = None
    skips: tuple[str, ...] = ()  # of checks that were skipped, and people were told why


# --- events, beside NodeChecked and DeadlineReached ----------------------------------------------------------------


class RoundBegun(msgspec.Struct, frozen=True):
    """The workers of the last cycle are being stopped, or the first is to come."""


class JoinWanted(msgspec.Struct, frozen=True):
    """All else of this node is ready for the next cycle."""

    joined: NodeJoined


class JoinDropped(msgspec.Struct, frozen=True):
    """The node is not ready any more, or the job ends."""


Event = RoundBegun | JoinWanted | JoinDropped | NodeChecked | DeadlineReached
Action = CheckNode | TellCoordinator | Publish
Outcome = tuple[State, tuple[Action, ...]]

# --- decisions -----------------------------------------------------------------------------------------------------


def initial_state() -> State:
    return State()


def step(state: State, event: Event, *, now_s: float, job_id: str, node: str, cycle: int) -> Outcome:
    match event:
        case RoundBegun():
            if state.until_s is not None:
                return state, ()
            state = msgspec.structs.replace(state, number=state.number + 1, until_s=now_s + CHECK_S, joins=None)
            return state, (CheckNode(job_id, state.number),)
        case JoinWanted(joined):
            if state.until_s is not None:
                return msgspec.structs.replace(state, joins=joined), ()
            return state, (TellCoordinator(job_id, joined),)
        case JoinDropped():
            return msgspec.structs.replace(state, joins=None), ()
        case NodeChecked(number=number, findings=findings):
            if number != state.number or state.until_s is None:
                return state, ()  # Overtaken, or too late.
            return _take(state, findings, job_id, node, max(cycle, 0))
        case DeadlineReached():
            if state.until_s is None or now_s < state.until_s:
                return state, ()
            late = Finding("checks", Health.SKIPPED, f"the checks of the node have not ended within {CHECK_S:g} s")
            return _take(state, (late,), job_id, node, max(cycle, 0))
        case _:
            assert_never(event)


def next_deadline_s(state: State) -> float | None:
    return state.until_s


def _take(state: State, findings: tuple[Finding, ...], job_id: str, node: str, cycle: int) -> Outcome:
    details = tuple((each.check, f"{each.health} in {each.took_s:.2f} s") for each in findings)
    text = ", ".join(f"{each.check}: {each.health}" for each in findings)
    said = [Publish(job_id, JobEvent("node_checked", f"node {node} was checked: {text}", cycle, details=details))]
    new = [each for each in findings if each.health is Health.SKIPPED and each.check not in state.skips]
    said += [
        Publish(job_id, JobEvent("node_check_skipped", f"a check of node {node} is skipped: {each.reason}", cycle))
        for each in new
        if each.reason
    ]
    reports: list[NodeExcluded | NodeJoined] = []
    if unfit := unfit_sentence(node, findings):
        said.append(Publish(job_id, JobEvent("node_unhealthy", unfit, cycle)))
        reports.append(NodeExcluded(node, unfit))
    if state.joins is not None:
        reports.append(state.joins)  # Also of one that is unfit: nothing of the last cycle runs there any more.
    skips = (*state.skips, *(each.check for each in new))
    state = msgspec.structs.replace(state, until_s=None, joins=None, skips=skips)
    return state, (*said, *(TellCoordinator(job_id, report) for report in reports))
