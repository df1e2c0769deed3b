"""How does a job go from one phase to the next: the new phase, its sentence, and the orders?

job.py decides which transition an event leads to.
"""

from __future__ import annotations

import signal as signals
from typing import assert_never

import msgspec

from supervisor.core import job_phases as phases
from supervisor.core import orders, worker_messages
from supervisor.core.cluster import cluster_messages
from supervisor.core.facts import Assignment, Cause, JobEvent, Verdict
from supervisor.core.job_phases import State
from supervisor.core.node import node_messages
from supervisor.core.stop_verdict import has_left, left_sentence, left_verdict

Action = (
    node_messages.StartSpawner | node_messages.PrepareStore | node_messages.ForkAhead | node_messages.EndSpawner
    | node_messages.Publish | node_messages.TellCoordinator | node_messages.FinishJob | worker_messages.Order
)  # fmt: skip
Actions = tuple[Action, ...]
Outcome = tuple[State, Actions]


def start_spawner(state: State, reason: str) -> Outcome:
    state = enter(state, phases.Pending(), reason)
    state = msgspec.structs.replace(state, has_spawner=True, spawners=state.spawners + 1, store=None)
    return state, (node_messages.StartSpawner(state.rules.job_id, state.spawners),)


def join(state: State, cause: Cause | None = None) -> Outcome:
    state = enter(state, phases.Rendezvous(), state.reason if state.cycle >= 0 else "waiting for the first cycle")
    return state, (tell(state, cluster_messages.NodeJoined(state.node, state.cycle, cause)),)


def refuse(state: State, reason: str, exit_code: int) -> Outcome:
    """Ends the job, because its command can't be run and a restart could not help."""
    phase = phases.Pending(reason, exit_code)
    return enter(state, phase, reason), (refusal(state, phase),)


def refusal(state: State, phase: phases.Pending) -> Action:
    """Reports that the command can't be run, to each leader: the one before may not have heard it."""
    failed = cluster_messages.NodeFailed(
        state.node,
        state.cycle,
        phase.refusal,
        restart_allowed=False,
        exit_code=phase.refusal_code,
        first_failure=phase.refusal,
    )
    return tell(state, failed)


def begin(state: State, assignment: Assignment, reason: str, now_s: float) -> Outcome:
    state = msgspec.structs.replace(
        state,
        phase=phases.AwaitingStore(assignment),
        cycle=assignment.cycle,
        assignment=assignment,
        cycle_started_at_s=now_s,
        reason=reason,
        hang="",
        echo="",
        first_failure="",
    )
    said = say(state, "cycle_started", f"cycle {assignment.cycle} starts with world size {assignment.world_size}")
    prepare = worker_messages.PrepareWorkers(assignment.cycle)
    if assignment.group_rank != 0:
        return state, (said, prepare)  # Another node serves the store; the coordinator says where.
    store = state.store
    if store is None or store.cycle != assignment.cycle:
        state = msgspec.structs.replace(state, store=phases.Store(assignment.cycle))
        return state, (said, prepare, node_messages.PrepareStore(state.rules.job_id, assignment.cycle))
    if not store.port:
        return state, (said, prepare)  # It was requested ahead and is on its way.
    state, actions = use_store(state, store.host, store.port)
    return state, (said, prepare, *actions)


def use_store(state: State, host: str, port: int) -> Outcome:
    """Starts the workers, since the store of the cycle is served."""
    if not isinstance(state.phase, phases.AwaitingStore):
        return state, ()
    assignment = state.phase.assignment
    state = enter(state, phases.Starting(), state.reason)
    start = worker_messages.StartWorkers(assignment, host, port)
    if assignment.group_rank == 0 and assignment.group_world_size > 1:
        served = cluster_messages.StoreServed(state.node, assignment.cycle, host, port)
        return state, (tell(state, served), start)
    return state, (start,)


def prepare_ahead(state: State, next_cycle: int) -> Outcome:
    """Prepares the next cycle while the workers of this one end, which saves time at each restart."""
    if not state.has_spawner or not state.rules.prepares_ahead:
        return state, ()
    actions: list[Action] = []
    serves = state.assignment is None or state.assignment.group_rank == 0
    if serves and (state.store is None or state.store.cycle < next_cycle):
        state = msgspec.structs.replace(state, store=phases.Store(next_cycle))
        actions.append(node_messages.PrepareStore(state.rules.job_id, next_cycle))
    if state.rules.forks_ahead:
        ahead = node_messages.ForkAhead(state.rules.job_id, next_cycle, state.rules.local_world_size)
        actions.append(ahead)
    return state, tuple(actions)


def fault(state: State, reason: str, *, may_be_stop: bool = False) -> Outcome:
    """Reports a fault of this cycle to the coordinator, then stops the other workers."""
    state, told = report(state, reason, may_be_stop=may_be_stop)
    state, actions = stop_group(state, phases.Rejoin(announced=False), state.reason)
    return state, (told, *actions)


def report(state: State, reason: str, *, may_be_stop: bool = False) -> tuple[State, Action]:
    if state.shutdown:
        reason = f"{state.shutdown}; then {reason}"
    state = msgspec.structs.replace(state, reason=reason)
    failed = cluster_messages.NodeFailed(
        state.node,
        state.cycle,
        reason,
        restart_allowed=not state.shutdown,
        exit_code=state.rules.restart.no_restart_exit_code if state.shutdown else 1,
        first_failure=state.first_failure,
        may_be_stop=may_be_stop,
    )
    return state, tell(state, failed)


def stop_group(state: State, then: phases.Then, reason: str, order: worker_messages.Order | None = None) -> Outcome:
    """Stops the workers by `order`; None: by SIGTERM with a restart's grace period."""
    text = f"the workers of cycle {state.cycle} are being stopped"
    if isinstance(state.phase, phases.Finished):
        text = f"what the workers of cycle {state.cycle} left running is being ended"
    state = enter(state, phases.Stopping(then), reason)
    order = order or msgspec.structs.replace(stop_order(state), for_restart=True)
    return state, (say(state, "workers_stopping", text), order)


def wind_down(state: State, event: orders.WindDown, verdict: Verdict | None = None) -> Outcome:
    """Ends this node's part of the job, which has ended without it if there is a `verdict`."""
    state = msgspec.structs.replace(state, decided=event.verdict or verdict or state.decided)
    stop = worker_messages.KillWorkers() if event.at_once else stop_order(state, event.signal, event.grace_s)
    match state.phase:
        case phases.Pending() | phases.Rendezvous() | phases.Down():
            state = enter(state, phases.Stopped(), event.reason)
            return state, (tell(state, cluster_messages.NodeStopped(state.node, all_succeeded=False)),)
        case phases.AwaitingStore() | phases.Starting() | phases.Running() | phases.Finished():
            return stop_group(state, phases.Leave(verdict), event.reason, stop)
        case phases.Stopping(phases.Leave()) if (
            event.verdict is not None and event.reason == state.reason and not event.at_once
        ):  # fmt: skip
            return state, ()  # It obeys that order already, and now knows the verdict.
        case phases.Stopping(then):
            known = then.verdict if isinstance(then, phases.Leave) else None
            return enter(state, phases.Stopping(phases.Leave(verdict or known)), event.reason), (stop,)
        case phases.Stopped() | phases.Closing() | phases.Ended():
            return state, ()
        case _:
            assert_never(state.phase)


def stop_order(state: State, signal: int = 0, grace_s: float | None = None) -> worker_messages.StopWorkers:
    """Returns the order for a signal to the launcher; 0: for a restart or a command. `grace_s` None: as configured."""
    configured_s = state.rules.term_timeout_s if signal else state.rules.workers_stop_timeout_s
    grace_s = configured_s if grace_s is None else grace_s
    is_cause = signal != 0 and (state.stop_at_s is None or state.stop_signal != 0)  # No command came before it.
    return worker_messages.StopWorkers(signal or int(signals.SIGTERM), grace_s, by_signal=is_cause)


def leave_stopping(state: State, event: worker_messages.WorkersGone, now_s: float) -> Outcome:
    if not isinstance(state.phase, phases.Stopping):
        return state, ()
    actions: list[Action] = []
    if event.stuck_pids:
        text = f"processes {', '.join(map(str, event.stuck_pids))} could not be killed (state D) and are left behind"
        actions.append(say(state, "workers_stuck", text))
    text = f"nothing {'else ' if event.stuck_pids else ''}of cycle {state.cycle} is left on {state.node}"
    actions.append(say(state, "workers_stopped", text))
    match state.phase.then:
        case phases.Rejoin() if state.has_spawner:
            state, more = join(state, event.cause)
        case phases.Rejoin(announced):
            state, down = go_down(state, state.reason)
            state, start = start_spawner(state, state.reason) if announced else (state, ())
            more = (*down, *start)
        case phases.StartNext(assignment, reason) if state.has_spawner:
            state, more = begin(state, assignment, reason, now_s)
        case phases.StartNext(assignment):
            why = "the spawner was lost while the workers were being stopped"
            state, more = cannot_start(enter(state, phases.Down(), state.reason), assignment, why)
        case phases.Leave(verdict):
            state = enter(state, phases.Stopped(event.all_succeeded), state.reason)
            if state.leaving is not None and state.leaving.is_alone:
                state, more = conclude(
                    state, left_verdict(left_sentence(state.node, state.leaving.asked.reason, is_alone=True))
                )
                return state, (*actions, *more)
            if verdict is not None:
                state, more = conclude(state, verdict)
                return state, (*actions, *more)
            stopped = cluster_messages.NodeStopped(state.node, event.all_succeeded, event.cause)
            more = (tell(state, stopped),)
        case _:
            assert_never(state.phase.then)
    return state, (*actions, *more)


def go_down(state: State, reason: str) -> Outcome:
    """Reports that nothing runs here and there is no spawner; the coordinator decides whether to start a new one."""
    state = enter(state, phases.Down(), reason)
    return state, (tell(state, cluster_messages.NodeDown(state.node, state.cycle)),)


def cannot_start(state: State, assignment: Assignment, why: str) -> Outcome:
    """Answers an order that crossed the loss of the spawner, in the order's own cycle, so the answer is not fenced."""
    state = msgspec.structs.replace(state, cycle=assignment.cycle, assignment=assignment)
    state, told = report(state, f"node {state.node} cannot start cycle {state.cycle}: {why}")
    return state, (told, tell(state, cluster_messages.NodeDown(state.node, state.cycle)))


def conclude(state: State, verdict: Verdict) -> Outcome:
    """Ends the job, whose verdict is final. Only the spawner is left, which writes the ranks' last output."""
    said: Actions = (say(state, "node_left", verdict.reason),)  # The job goes on, and nobody waits for this node.
    if not has_left(verdict):
        ends = say(state, f"job_{verdict.state}", verdict.reason)
        said = (ends, tell(state, cluster_messages.VerdictTaken(state.node)))
    if not state.has_spawner:
        state, actions = finish(state, verdict)
        return state, (*said, *actions)
    is_alone = isinstance(state.phase, phases.Pending) and bool(state.phase.refusal)
    state = enter(state, phases.Closing(verdict, is_alone), verdict.reason)
    return state, (node_messages.EndSpawner(state.rules.job_id), *said)


def finish(state: State, verdict: Verdict) -> Outcome:
    state = enter(state, phases.Ended(verdict), verdict.reason)
    return state, (node_messages.FinishJob(state.rules.job_id, verdict),)


def enter(state: State, phase: phases.Phase, reason: str) -> State:
    return msgspec.structs.replace(state, phase=phase, reason=reason)


def say(state: State, kind: str, reason: str) -> Action:
    return node_messages.Publish(state.rules.job_id, JobEvent(kind, reason, max(state.cycle, 0)))


def tell(state: State, report: cluster_messages.Event) -> Action:
    return node_messages.TellCoordinator(state.rules.job_id, report)
