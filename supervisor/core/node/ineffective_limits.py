"""Which configured limits has no rank armed, so that they find no hang?

A limit between heartbeats applies from a rank's first heartbeat on, limits of sections from the first section on, and
none to a script without our client. People who have set one expect hangs to be found. So a limit that nothing has
armed by the time it allows is reported, once per job, by the node of rank 0. A limit left at its default is not.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from supervisor.core.facts import HangLimits, JobEvent, JobRules, Progress
from supervisor.core.node import node_messages
from supervisor.core.worker_messages import KillWorkers, LoseWorkers, PrepareWorkers, StopWorkers

ANSWER_S = 0.5  # for the ranks' pages: what they say counts before the report
_DEFAULT_HEARTBEAT_S = HangLimits().heartbeat_s

# --- states --------------------------------------------------------------------------------------------------------


class Unarmed(msgspec.Struct, frozen=True):
    """A configured limit that nothing has armed yet. `by`: "client", "heartbeat" or "section"."""

    flag: str
    limit_s: float
    by: str


class State(msgspec.Struct, frozen=True):
    limits: tuple[Unarmed, ...] | None = None  # None: before the first cycle
    started_at_s: float | None = None  # the first worker of this cycle; None: there is none, or another node reports
    asked_at_s: float | None = None  # when the pages were requested
    is_ending: bool = False  # the workers are to end; one may still start


# --- events --------------------------------------------------------------------------------------------------------

Event = (
    PrepareWorkers | StopWorkers | KillWorkers | LoseWorkers | node_messages.WorkerSpawned | node_messages.ClientJoined
    | node_messages.ProgressRead | node_messages.DeadlineReached
)  # fmt: skip

Action = node_messages.ReadProgress | node_messages.Publish
Outcome = tuple[State, tuple[Action, ...]]

# --- decisions -----------------------------------------------------------------------------------------------------


def initial_state() -> State:
    return State()


def step(state: State, event: Event, *, now_s: float, cycle: int, has_rank_0: bool, rules: JobRules) -> Outcome:
    if state.limits == ():
        return state, ()
    match event:
        case PrepareWorkers():
            limits = _configured(rules.hang_limits) if state.limits is None else state.limits
            return State(limits), ()
        case StopWorkers() | KillWorkers() | LoseWorkers():
            return State(state.limits, is_ending=True), ()
        case node_messages.WorkerSpawned():
            begins = has_rank_0 and state.started_at_s is None and not state.is_ending
            return (msgspec.structs.replace(state, started_at_s=now_s) if begins else state), ()
        case node_messages.ClientJoined(progress=progress):
            return _without(state, {"client"} | _signs(progress)), ()
        case node_messages.ProgressRead(progress=progress):
            return _without(state, _signs(progress)), ()
        case node_messages.DeadlineReached():
            return _pass_deadline(state, now_s, cycle, rules)
        case _:
            assert_never(event)


def next_deadline_s(state: State) -> float | None:
    if state.started_at_s is None or not state.limits:
        return None
    due_s = state.started_at_s + min(each.limit_s for each in state.limits)
    return due_s if state.asked_at_s is None else max(due_s, state.asked_at_s + ANSWER_S)


def _configured(limits: HangLimits) -> tuple[Unarmed, ...]:
    found: list[Unarmed] = []
    if limits.initial_heartbeat_s is not None:  # The client arms it; after that, it ends the cycle.
        found.append(Unarmed("--ft-initial-rank-heartbeat-timeout", limits.initial_heartbeat_s, "client"))
    elif limits.heartbeat_s is not None and limits.heartbeat_s != _DEFAULT_HEARTBEAT_S:
        found.append(Unarmed("--ft-rank-heartbeat-timeout", limits.heartbeat_s, "heartbeat"))
    sections = [limit_s for _, limit_s in limits.sections if limit_s is not None]
    if sections:
        found.append(Unarmed("--ft-rank-section-timeouts", max(sections), "section"))
    if limits.out_of_section_s is not None:
        found.append(Unarmed("--ft-rank-out-of-section-timeout", limits.out_of_section_s, "section"))
    return tuple(found)


def _signs(progress: Progress) -> set[str]:
    """Returns what arms limits and has happened, according to the rank's page."""
    signs: set[str] = set()
    if progress.heartbeat_at_s is not None:
        signs.add("heartbeat")
    if progress.open_sections or progress.out_of_section_since_s > progress.initialised_at_s:
        signs.add("section")
    return signs


def _without(state: State, signs: set[str]) -> State:
    limits = tuple(each for each in state.limits or () if each.by not in signs)
    return state if limits == state.limits else msgspec.structs.replace(state, limits=limits)


def _pass_deadline(state: State, now_s: float, cycle: int, rules: JobRules) -> Outcome:
    due_s = next_deadline_s(state)
    if due_s is None or now_s < due_s or state.started_at_s is None:
        return state, ()
    job_id, since_s = rules.job_id, state.started_at_s
    if state.asked_at_s is None:
        asked = msgspec.structs.replace(state, asked_at_s=now_s)
        return asked, tuple(node_messages.ReadProgress(job_id, cycle, each) for each in range(rules.local_world_size))
    due = [each for each in state.limits or () if since_s + each.limit_s <= now_s]
    left = tuple(each for each in state.limits or () if each not in due)
    said = tuple(node_messages.Publish(job_id, JobEvent("limit_not_armed", _sentence(each), cycle)) for each in due)
    return State(left, since_s), said


def _sentence(limit: Unarmed) -> str:
    match limit.by:
        case "client":
            what, how = "has started Holdfast's client", "init_workload_monitoring() arms it"
        case "heartbeat":
            what, how = "has sent a heartbeat", "the first send_heartbeat() arms it"
        case _:
            what, how = "has opened a section", "the first start_section() arms it"
    within = f"within {limit.limit_s:g} s of its start"
    return f"no rank {what} {within}; until one does, {limit.flag} finds no hang ({how})"
