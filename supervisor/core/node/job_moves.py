"""How does a job go from one phase to the next: the new phase, the sentence behind it, and what is ordered?

job.py decides which move an event leads to.
"""

from __future__ import annotations

import signal as signals
from typing import assert_never

import msgspec

from supervisor.core import job_phases as phases
from supervisor.core import workers as group
from supervisor.core.cluster import messages as cluster_messages
from supervisor.core.facts import Assignment, JobEvent, Verdict
from supervisor.core.job_phases import State
from supervisor.core.job_sentences import stopped_verdict
from supervisor.core.node import messages as node_messages

Action = (
    node_messages.StartSpawner | node_messages.PrepareStore | node_messages.EndSpawner
    | node_messages.Publish | node_messages.TellCoordinator | node_messages.FinishJob | group.Order
)  # fmt: skip
Actions = tuple[Action, ...]
Outcome = tuple[State, Actions]


def respawn(state: State, reason: str) -> Outcome:
    state = msgspec.structs.replace(enter(state, phases.Pending(), reason), has_spawner=True)
    return state, (node_messages.StartSpawner(state.rules.job_id),)


def join(state: State) -> Outcome:
    state = enter(state, phases.Rendezvous(), state.reason if state.cycle >= 0 else "waiting for the first cycle")
    return state, (tell(state, cluster_messages.NodeJoined(state.node, state.cycle)),)


def begin(state: State, assignment: Assignment, reason: str, now_s: float) -> Outcome:
    state = msgspec.structs.replace(
        state,
        phase=phases.AwaitingStore(assignment),
        cycle=assignment.cycle,
        assignment=assignment,
        cycle_started_at_s=now_s,
        reason=reason,
        hang="",
        first_failure="",
    )
    job_id = state.rules.job_id
    return state, (
        say(state, "cycle_started", f"cycle {assignment.cycle} of world size {assignment.world_size}: {reason}"),
        group.PrepareWorkers(assignment.cycle),
        node_messages.PrepareStore(job_id, assignment.cycle),
    )


def fault(state: State, reason: str) -> Outcome:
    """One fault of this cycle: the coordinator hears of it first, then the other workers are stopped."""
    state, told = report(state, reason)
    state, actions = stop_group(state, phases.Rejoin(announced=False), state.reason)
    return state, (told, *actions)


def report(state: State, reason: str) -> tuple[State, Action]:
    if state.shutdown:
        reason = f"{state.shutdown}; then {reason}"
    state = msgspec.structs.replace(state, reason=reason)
    report = cluster_messages.NodeFailed(state.node, state.cycle, reason, restart_allowed=not state.shutdown)
    return state, tell(state, report)


def stop_group(
    state: State,
    then: phases.Then,
    reason: str,
    order: group.StopWorkers | None = None,
) -> Outcome:
    state = enter(state, phases.Stopping(then), reason)
    order = order or group.StopWorkers(int(signals.SIGTERM), state.rules.workers_stop_timeout_s)
    return state, (say(state, "workers_stopping", reason), order)


def stop_order(state: State, signal: int) -> group.StopWorkers:
    if signal:
        return group.StopWorkers(signal, state.rules.term_timeout_s)
    return group.StopWorkers(int(signals.SIGTERM), state.rules.workers_stop_timeout_s)


def leave_stopping(state: State, event: group.WorkersGone, now_s: float) -> Outcome:
    if not isinstance(state.phase, phases.Stopping):
        return state, ()
    actions: list[Action] = []
    if event.stuck_pids:
        text = f"processes {', '.join(map(str, event.stuck_pids))} could not be killed (state D) and are left behind"
        actions.append(say(state, "workers_stuck", text))
    text = f"nothing {'else ' if event.stuck_pids else ''}of cycle {state.cycle} is left on {state.node}"
    actions.append(say(state, "workers_stopped", text))
    then = state.phase.then
    first, cause = state.first_failure, event.root_cause
    if first and cause and cause != first:
        actions.append(say(state, "root_cause_found", f"{cause}; it came before what was seen first: {first}"))
    match then:
        case phases.Rejoin() if state.has_spawner:
            state, more = join(state)
        case phases.Rejoin(announced):
            state, more = respawn(state, state.reason) if announced else (enter(state, phases.Down(), state.reason), ())
        case phases.StartNext(assignment, reason) if state.has_spawner:
            state, more = begin(state, assignment, reason, now_s)
        case phases.StartNext():
            state, told = report(state, "the spawner was lost while the workers were being stopped")
            state, more = enter(state, phases.Down(), state.reason), (told,)
        case phases.Finish(verdict):
            if first and cause:
                verdict = msgspec.structs.replace(verdict, reason=verdict.reason.replace(first, cause))
            state, more = finish(state, verdict)
        case phases.FinishStopped(signal, reason):
            verdict = stopped_verdict(signal, reason, all_succeeded=event.all_succeeded)
            state = enter(state, phases.AwaitingVerdict(verdict), verdict.reason)
            more = (tell(state, cluster_messages.StopOrdered(verdict)),)
        case _:
            assert_never(then)
    return state, (*actions, *more)


def finish(state: State, verdict: Verdict) -> Outcome:
    job_id = state.rules.job_id
    end: Actions = ()
    if state.has_spawner:
        end = (node_messages.EndSpawner(job_id),)
    said = say(state, f"job_{verdict.state}", verdict.reason)
    state = enter(state, phases.Ended(verdict), verdict.reason)
    return state, (*end, said, node_messages.FinishJob(job_id, verdict))


def enter(state: State, phase: phases.Phase, reason: str) -> State:
    return msgspec.structs.replace(state, phase=phase, reason=reason)


def say(state: State, kind: str, reason: str) -> Action:
    return node_messages.Publish(state.rules.job_id, JobEvent(kind, reason, max(state.cycle, 0)))


def tell(state: State, report: cluster_messages.Event) -> Action:
    return node_messages.TellCoordinator(state.rules.job_id, report)
