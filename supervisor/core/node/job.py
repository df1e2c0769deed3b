"""What does this node do next for one job, from its submission to its verdict?

The life of a job on one node: a spawner, a rendezvous, a store, workers, and after a fault the same again, until the
coordinator says how it ends. The node reports a fault first and then stops its workers, without waiting for an answer:
a group that has lost a worker is lost either way. Budgets and restarts are the coordinator's business. Its phases are
in job_phases.py, the ways from one to the next in job_moves.py.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from supervisor.core import job_phases as phases
from supervisor.core import workers as group
from supervisor.core.cluster import messages as cluster_messages
from supervisor.core.facts import JobEvent, JobRules, Verdict
from supervisor.core.job_phases import State
from supervisor.core.job_sentences import control_sentence, limits_sentence, stopped_verdict, succeeded_sentence
from supervisor.core.node import job_moves as moves
from supervisor.core.node import messages as node_messages

SAME_SIGNAL_S = 0.1  # signals this close are one request: timeout(1) and systemd send two at once

Event = (
    node_messages.SpawnerReady | node_messages.SpawnerLost | node_messages.StoreReady | node_messages.StoreFailed
    | node_messages.StopRequested | node_messages.RestartRequested
    | node_messages.CycleOrdered | node_messages.RestartAnnounced | node_messages.VerdictReached
    | node_messages.ControlRequested | node_messages.LimitsCalculated
    | group.GroupReport | group.HangReport
)  # fmt: skip
Action = moves.Action
Actions = moves.Actions
Outcome = moves.Outcome


def open_job(rules: JobRules, *, node: str) -> Outcome:
    """A job was submitted."""
    job_id = rules.job_id
    workers = "1 worker" if rules.local_world_size == 1 else f"{rules.local_world_size} workers"
    state = State(node, rules, phases.Pending(), reason="the spawner is being started", has_spawner=True)
    return state, (
        moves.say(state, "job_submitted", f"job {job_id} with {workers} on {node} was submitted"),
        moves.tell(state, cluster_messages.JobOpened(rules.restart, rules.local_world_size)),
        node_messages.StartSpawner(job_id),
    )


def step(state: State, event: Event, *, now_s: float) -> Outcome:  # noqa: C901 - one line for each event
    if isinstance(state.phase, phases.Ended):
        return state, ()
    match event:
        case node_messages.SpawnerReady():
            return moves.join(state) if isinstance(state.phase, phases.Pending) else (state, ())
        case node_messages.SpawnerLost(reason=reason):
            return _spawner_lost(state, reason)
        case node_messages.CycleOrdered():
            return _cycle_ordered(state, event, now_s)
        case node_messages.StoreReady():
            return _store_ready(state, event)
        case node_messages.StoreFailed(reason=reason):
            return _store_failed(state, reason)
        case group.WorkersRun():
            return _workers_run(state)
        case group.WorkersFaulted(reason, of_call):
            return _workers_faulted(state, reason, is_hang=False, first_failure="" if of_call else reason)
        case group.WorkersSucceeded(lost):
            return _workers_succeeded(state, lost)
        case group.WorkersGone():
            return moves.leave_stopping(state, event, now_s)
        case group.HangFound(reason):
            return msgspec.structs.replace(state, hang=reason, reason=reason), ()
        case group.HangEnded(reason):
            return msgspec.structs.replace(state, hang="", reason=reason), ()
        case group.HangFaulted(reason):
            return _workers_faulted(state, reason, is_hang=True, first_failure="")
        case group.RankExited():
            return state, ()
        case node_messages.RestartAnnounced():
            return _restart_announced(state, event)
        case node_messages.VerdictReached(verdict=verdict):
            return _verdict_reached(state, verdict)
        case node_messages.StopRequested():
            return _stop_requested(state, event, now_s)
        case node_messages.RestartRequested(reason=reason):
            return _restart_requested(state, reason)
        case node_messages.ControlRequested():
            return _control_requested(state, event)
        case node_messages.LimitsCalculated():
            return _limits_calculated(state, event)
        case _:
            assert_never(event)


def next_deadline_s(state: State) -> float | None:
    """A job waits for others, never for the clock: whoever must not take for ever has a deadline of its own."""
    return None


# --- towards a cycle -----------------------------------------------------------------------------------------------


def _cycle_ordered(state: State, event: node_messages.CycleOrdered, now_s: float) -> Outcome:
    if event.assignment.cycle <= state.cycle:
        return state, ()
    match state.phase:
        case phases.Rendezvous():
            return moves.begin(state, event.assignment, event.reason, now_s)
        case phases.Stopping(then=phases.Rejoin() | phases.StartNext()):
            return moves.enter(
                state, phases.Stopping(phases.StartNext(event.assignment, event.reason)), event.reason
            ), ()
        case phases.AwaitingStore() | phases.Starting() | phases.Running() | phases.Finished():
            return moves.stop_group(state, phases.StartNext(event.assignment, event.reason), event.reason)
        case phases.Pending() | phases.Down():
            # The order has crossed the news that the spawner is lost; answered in its own cycle, so it is not fenced.
            state = msgspec.structs.replace(state, cycle=event.assignment.cycle, assignment=event.assignment)
            state, told = moves.report(state, f"node {state.node} cannot start cycle {state.cycle}: it has no spawner")
            return state, (told,)
        case phases.AwaitingVerdict() | phases.Stopping() | phases.Ended():
            return state, ()  # The job ends here, and the coordinator is being told.
        case _:
            assert_never(state.phase)


def _store_ready(state: State, event: node_messages.StoreReady) -> Outcome:
    match state.phase:
        case phases.AwaitingStore(assignment):
            start = group.StartWorkers(assignment, event.host, event.port)
            return moves.enter(state, phases.Starting(), state.reason), (start,)
        case _:
            return state, ()


def _workers_run(state: State) -> Outcome:
    if not isinstance(state.phase, phases.Starting):
        return state, ()
    state = moves.enter(state, phases.Running(), f"all workers of cycle {state.cycle} have started")
    return state, (moves.say(state, "workers_started", state.reason),)


# --- faults --------------------------------------------------------------------------------------------------------


def _spawner_lost(state: State, reason: str) -> Outcome:
    state = msgspec.structs.replace(state, has_spawner=False)
    text = f"the spawner was lost: {reason}"
    said = moves.say(state, "spawner_lost", text)
    match state.phase:
        case phases.Pending() | phases.Rendezvous():
            state, told = moves.report(state, text)
            return moves.enter(state, phases.Down(), state.reason), (said, told)
        case phases.AwaitingStore() | phases.Starting() | phases.Running():
            state, told = moves.report(state, text)
            state = moves.enter(state, phases.Stopping(phases.Rejoin(announced=False)), state.reason)
            return state, (said, told, group.LoseWorkers())
        case phases.Finished():
            return state, (said,)  # The work is done; nothing of it can be lost any more.
        case phases.Stopping():
            return state, (said, group.LoseWorkers())  # Belongs to the round that is under way.
        case phases.Down() | phases.AwaitingVerdict() | phases.Ended():
            return state, ()
        case _:
            assert_never(state.phase)


def _store_failed(state: State, reason: str) -> Outcome:
    match state.phase:
        case phases.AwaitingStore() | phases.Starting() | phases.Running() if not state.hang:
            text = f"the store of cycle {state.cycle} failed: {reason}"
            state, actions = moves.fault(state, text)
            return state, (moves.say(state, "store_failed", text), *actions)
        case _:
            return state, ()  # Ended on purpose, or part of a fault that is known.


def _workers_faulted(state: State, reason: str, *, is_hang: bool, first_failure: str) -> Outcome:
    is_echo = bool(state.hang) and not is_hang  # A hang is being dealt with, and it came first.
    if is_echo or not isinstance(state.phase, phases.Starting | phases.Running):
        return state, ()
    return moves.fault(msgspec.structs.replace(state, first_failure=first_failure), reason)


def _workers_succeeded(state: State, lost: tuple[int, ...]) -> Outcome:
    match state.phase:
        case phases.Starting() | phases.Running():
            state = moves.enter(state, phases.Finished(), succeeded_sentence("of this node ", lost))
            return state, (moves.tell(state, cluster_messages.NodeSucceeded(state.node, state.cycle, lost)),)
        case _:
            return state, ()


# --- what the coordinator and people want ---------------------------------------------------------------------------


def _restart_announced(state: State, event: node_messages.RestartAnnounced) -> Outcome:
    if event.next_cycle <= state.cycle:
        return state, ()
    match state.phase:
        case phases.Pending() | phases.Rendezvous():
            return msgspec.structs.replace(state, reason=event.reason), ()
        case phases.Down():
            return moves.respawn(state, event.reason)
        case phases.Stopping(then=phases.Rejoin()):
            return moves.enter(state, phases.Stopping(phases.Rejoin(announced=True)), event.reason), ()
        case phases.AwaitingStore() | phases.Starting() | phases.Running() | phases.Finished():
            return moves.stop_group(state, phases.Rejoin(announced=True), event.reason)
        case phases.Stopping() | phases.AwaitingVerdict() | phases.Ended():
            return state, ()
        case _:
            assert_never(state.phase)


def _verdict_reached(state: State, verdict: Verdict) -> Outcome:
    match state.phase:
        case phases.Pending() | phases.Rendezvous() | phases.Down() | phases.AwaitingVerdict():
            return moves.finish(state, verdict)
        case phases.Stopping():
            return moves.enter(state, phases.Stopping(phases.Finish(verdict)), verdict.reason), ()
        case phases.AwaitingStore() | phases.Starting() | phases.Running() | phases.Finished():
            return moves.stop_group(state, phases.Finish(verdict), verdict.reason)
        case phases.Ended():
            return state, ()
        case _:
            assert_never(state.phase)


def _stop_requested(state: State, event: node_messages.StopRequested, now_s: float) -> Outcome:
    """The first request stops, a signal after it ends everything at once, as a second Ctrl-C does elsewhere."""
    asked_at_s = state.stop_asked_at_s
    if asked_at_s is not None and event.signal and now_s - asked_at_s < SAME_SIGNAL_S:
        return state, ()
    is_repeated = asked_at_s is not None and event.signal != 0
    state = msgspec.structs.replace(state, stop_asked_at_s=now_s)
    said = moves.say(state, "stop_requested", event.reason)
    match state.phase:
        case phases.Pending() | phases.Rendezvous() | phases.Down():
            verdict = stopped_verdict(event.signal, event.reason, all_succeeded=False)
            state = moves.enter(state, phases.AwaitingVerdict(verdict), event.reason)
            return state, (said, moves.tell(state, cluster_messages.StopOrdered(verdict)))
        case phases.AwaitingVerdict(verdict):
            if not is_repeated:
                return state, (said,)
            state, actions = moves.finish(state, verdict)
            return state, (said, *actions)
        case phases.Stopping(then):
            state, actions = _stop_again(state, then, event, is_repeated=is_repeated)
            return state, (said, *actions)
        case phases.AwaitingStore() | phases.Starting() | phases.Running() | phases.Finished():
            then = phases.FinishStopped(event.signal, event.reason)
            state, actions = moves.stop_group(state, then, event.reason, moves.stop_order(state, event.signal))
            return state, (said, *actions)
        case phases.Ended():
            return state, ()
        case _:
            assert_never(state.phase)


def _stop_again(
    state: State,
    then: phases.Then,
    event: node_messages.StopRequested,
    *,
    is_repeated: bool,
) -> Outcome:
    if isinstance(then, phases.Rejoin | phases.StartNext):
        stopped = phases.FinishStopped(event.signal, event.reason)
        state = moves.enter(state, phases.Stopping(stopped), event.reason)
    if is_repeated:
        return state, (group.KillWorkers(),)
    return state, (moves.stop_order(state, event.signal),)


def _restart_requested(state: State, reason: str) -> Outcome:
    match state.phase:
        case phases.Stopping(then=phases.Finish() | phases.FinishStopped()) | phases.AwaitingVerdict():
            return state, (moves.say(state, "restart_refused", f"cannot restart: the job is ending; {state.reason}"),)
        case _:
            said = moves.say(state, "restart_requested", reason)
            return state, (said, moves.tell(state, cluster_messages.RestartOrdered(reason)))


def _control_requested(state: State, event: node_messages.ControlRequested) -> Outcome:
    first_rank = state.assignment.first_rank if state.assignment is not None else 0
    rank = first_rank + event.local_rank
    text = control_sentence(event.action, event.description, rank=rank, node=state.node)
    told = JobEvent("control_requested", text, max(state.cycle, 0), rank, (("action", event.action),))
    said = node_messages.Publish(state.rules.job_id, told)
    match event.action:
        case "exclude_this_node":
            return state, (said, moves.tell(state, cluster_messages.NodeExcluded(state.node, text)))
        case "shutdown_workload":
            return msgspec.structs.replace(state, shutdown=state.shutdown or text), (said,)
        case _:
            return state, (said,)


def _limits_calculated(state: State, event: node_messages.LimitsCalculated) -> Outcome:
    if event.limits == state.limits:
        return state, ()  # Every rank of the node tells the same.
    state = msgspec.structs.replace(state, limits=event.limits)
    return state, (
        moves.say(state, "limits_calculated", f"the ranks calculated new limits: {limits_sentence(event.limits)}"),
    )


# --- towards the end -------------------------------------------------------------------------------------------------
