"""What does this node do next for one job, from its submission to its verdict?

A job on one node goes through a spawner, a rendezvous, a store and workers, and again after a fault, until the
coordinator says how it ends. The node reports a fault first and then stops its workers without waiting for an answer: a
group that has lost a worker is lost either way. The coordinator decides on budgets, restarts, stops and the verdict.
job_phases.py has the phases, phase_transitions.py what leads from one to the next, job_commands.py what people and
ranks want.
"""

from __future__ import annotations

from typing import assert_never, cast, get_args

import msgspec

from supervisor.core import job_phases as phases
from supervisor.core import orders, worker_messages
from supervisor.core.cluster import cluster_messages
from supervisor.core.facts import JobEvent, JobRules, Verdict
from supervisor.core.job_phases import State
from supervisor.core.job_text import running_again_sentence, succeeded_sentence
from supervisor.core.node import job_commands, job_leaving, job_state_report, node_messages
from supervisor.core.node import phase_transitions as transitions
from supervisor.core.stop_verdict import has_left

Order = (
    orders.StartCycle | orders.JoinAgain | orders.UseStore | orders.WindDown | orders.Conclude | orders.Introduce
    | orders.Resign | orders.Stay | orders.StandBack | orders.EndDeadlocked
)  # fmt: skip
Report = worker_messages.GroupReport | worker_messages.HangReport
Event = node_messages.SpawnerReport | Order | job_commands.Command | Report | node_messages.DeadlineReached
Action = transitions.Action
Actions = transitions.Actions
Outcome = transitions.Outcome

# Events are looked up by kind: isinstance over so many kinds would cost more than the decision.
_ORDERS = frozenset(get_args(Order))
_COMMANDS = frozenset(get_args(job_commands.Command))
_REPORTS = frozenset(get_args(Report))
_RUNS = frozenset({phases.Starting, phases.Running})
_WORKS = _RUNS | {phases.Finished}


def open_job(rules: JobRules, *, node: str, settings: tuple[tuple[str, str], ...] = ()) -> Outcome:
    """Opens a submitted job."""
    job_id = rules.job_id
    workers = "1 worker" if rules.local_world_size == 1 else f"{rules.local_world_size} workers"
    submitted = f"job {job_id} with {workers} on {node} was submitted"
    state, start = transitions.start_spawner(State(node, rules, phases.Pending()), "the spawner is being started")
    return state, (
        node_messages.Publish(job_id, JobEvent("job_submitted", submitted, details=settings)),
        transitions.tell(state, cluster_messages.JobOpened(node, rules)),
        *start,
    )


def step(state: State, event: Event, *, now_s: float) -> Outcome:
    ran = type(state.phase) in _RUNS
    state, actions = _decide(state, event, now_s)
    if ran and type(state.phase) not in _WORKS:
        lost_at_s = now_s if state.lost_at_s is None else state.lost_at_s
        state = msgspec.structs.replace(state, lost_at_s=lost_at_s)
    return job_leaving.waiting(state, type(event), now_s), actions


def _decide(state: State, event: Event, now_s: float) -> Outcome:
    kind = type(event)
    if type(state.phase) is phases.Ended:
        return state, ()
    if type(state.phase) is phases.Closing:  # Only its spawner is left.
        if kind is orders.Introduce:
            if has_left(state.phase.verdict) or state.phase.is_alone:
                return state, ()  # It is no longer one of the job's nodes.
            return state, (transitions.tell(state, job_state_report.state_report(state)),)
        lost = kind is node_messages.SpawnerLost
        return transitions.finish(_without_spawner(state), state.phase.verdict) if lost else (state, ())
    if kind in _ORDERS:
        return _obey(state, cast("Order", event), now_s)
    if kind in _REPORTS:
        return _hear_of_workers(state, cast("Report", event), now_s)
    if kind in _COMMANDS:
        return job_commands.take(state, cast("job_commands.Command", event), now_s)
    if kind is node_messages.DeadlineReached:
        return job_leaving.pass_deadline(state, now_s)
    return _hear_of_spawner(state, cast("node_messages.SpawnerReport", event))


def _hear_of_spawner(state: State, event: node_messages.SpawnerReport) -> Outcome:
    match event:
        case node_messages.SpawnerReady():
            return _spawner_ready(state, event)
        case node_messages.SpawnerLost(reason=reason):
            return _spawner_lost(state, reason)
        case node_messages.StoreReady():
            return _store_ready(state, event)
        case node_messages.StoreFailed():
            return _store_failed(state, event)
        case _:
            assert_never(event)


def _hear_of_workers(state: State, event: Report, now_s: float) -> Outcome:
    match event:
        case worker_messages.RankExited():
            return state, ()
        case worker_messages.WorkersGone():
            return transitions.leave_stopping(state, event, now_s)
        case worker_messages.WorkersLinger():
            return state, (transitions.tell(state, cluster_messages.WorkersLinger(state.node, state.cycle)),)
        case worker_messages.WorkersRun():
            return _workers_run(state, now_s)
        case worker_messages.WorkersFaulted(reason, of_call, may_be_stop):
            return _workers_faulted(state, reason, first_failure="" if of_call else reason, may_be_stop=may_be_stop)
        case worker_messages.WorkersSucceeded(lost):
            return _workers_succeeded(state, lost)
        case worker_messages.HangFound(reason):
            return msgspec.structs.replace(state, hang=reason, reason=reason), ()
        case worker_messages.HangEnded(reason):
            return _hang_ended(state, reason)
        case worker_messages.HangFaulted(reason):
            return _hang_faulted(state, reason)
        case _:
            assert_never(event)


def _obey(state: State, event: Order, now_s: float) -> Outcome:
    match event:
        case orders.StartCycle():
            return _start_cycle(state, event, now_s)
        case orders.UseStore(cycle, host, port):
            return transitions.use_store(state, host, port) if cycle == state.cycle else (state, ())
        case orders.JoinAgain():
            return _join_again(state, event, now_s)
        case orders.WindDown():
            return transitions.wind_down(state, event)
        case orders.Conclude(verdict):
            return _conclude(state, verdict)
        case orders.Introduce():
            state, said = job_leaving.drop_old_stop(state, now_s)
            return state, (*said, *_introduction(state))
        case orders.Resign(reason):
            waits = isinstance(state.phase, phases.Pending | phases.Rendezvous | phases.Down)
            return (msgspec.structs.replace(state, reason=reason) if waits else state), ()
        case orders.Stay(reason):
            return job_leaving.stay(state, reason)
        case orders.StandBack(reason):
            return _stand_back(state, reason)
        case orders.EndDeadlocked(cycle):
            return _end_deadlocked(state, cycle)
        case _:
            assert_never(event)


def _introduction(state: State) -> Actions:
    stands = transitions.tell(state, job_state_report.state_report(state))
    if isinstance(state.phase, phases.Pending) and state.phase.refusal:
        return stands, transitions.refusal(state, state.phase)
    return (stands,)


def next_deadline_s(state: State) -> float | None:
    """Returns when a node that was asked to leave, or to stop the job, no longer waits for its leader.

    spawner_deadlines.py has the deadlines of a job's spawner, worker_group.py those of its workers, the coordinator
    those of other nodes.
    """
    return job_leaving.next_deadline_s(state)


# --- towards a cycle -----------------------------------------------------------------------------------------------


def _spawner_ready(state: State, event: node_messages.SpawnerReady) -> Outcome:
    if not isinstance(state.phase, phases.Pending):
        return state, ()
    if not event.refusal or state.cycle >= 0:  # What has run before may run again: its workers will show.
        return transitions.join(state)
    return transitions.refuse(state, event.refusal, event.refusal_code)


def _start_cycle(state: State, event: orders.StartCycle, now_s: float) -> Outcome:
    if event.assignment.cycle <= state.cycle:
        return state, ()
    lost_at_s = None if event.is_running else state.lost_at_s  # The job continued meanwhile.
    state = msgspec.structs.replace(state, restarts_used=event.restarts_used, lost_at_s=lost_at_s)
    match state.phase:
        case phases.Rendezvous():
            return transitions.begin(state, event.assignment, event.reason, now_s)
        case phases.Stopping(then=phases.Rejoin() | phases.StartNext()):
            return transitions.enter(
                state, phases.Stopping(phases.StartNext(event.assignment, event.reason)), event.reason
            ), ()
        case phases.AwaitingStore() | phases.Starting() | phases.Running() | phases.Finished():
            return transitions.stop_group(state, phases.StartNext(event.assignment, event.reason), event.reason)
        case phases.Pending() | phases.Down():
            return transitions.cannot_start(state, event.assignment, "it has no spawner")
        case phases.Stopped() | phases.Stopping() | phases.Closing() | phases.Ended():
            return state, ()  # The job ends here, and the coordinator is being told.
        case _:
            assert_never(state.phase)


def _store_ready(state: State, event: node_messages.StoreReady) -> Outcome:
    """Handles a ready store, perhaps that of the next cycle, which was requested ahead."""
    if state.store is None or state.store.cycle != event.cycle:
        return state, ()
    state = msgspec.structs.replace(state, store=phases.Store(event.cycle, event.host, event.port))
    is_used = event.cycle == state.cycle and _serves_store(state)
    return transitions.use_store(state, event.host, event.port) if is_used else (state, ())


def _store_failed(state: State, event: node_messages.StoreFailed) -> Outcome:
    if state.store is not None and state.store.cycle == event.cycle:
        state = msgspec.structs.replace(state, store=None)
    if event.cycle != state.cycle:
        return state, ()  # Requested ahead: resources may be free once the old workers are gone. Requested again.
    if not _serves_store(state):
        return state, ()  # Requested ahead in vain: another node serves the cycle.
    match state.phase:
        case phases.AwaitingStore() | phases.Starting() | phases.Running() if not state.hang:
            text = f"the store of cycle {state.cycle} failed: {event.reason}"
            state, actions = transitions.fault(state, text)
            return state, (transitions.say(state, "store_failed", text), *actions)
        case phases.Starting() | phases.Running():
            text = f"the store of cycle {state.cycle} failed: {event.reason}"
            return msgspec.structs.replace(state, echo=state.echo or text), ()
        case _:
            return state, ()  # Ended on purpose, or part of a known fault.


def _serves_store(state: State) -> bool:
    return state.assignment is not None and state.assignment.group_rank == 0


def _workers_run(state: State, now_s: float) -> Outcome:
    if not isinstance(state.phase, phases.Starting):
        return state, ()
    lost_at_s = state.lost_at_s
    state = transitions.enter(state, phases.Running(), f"all workers of cycle {state.cycle} have started")
    state = msgspec.structs.replace(state, lost_at_s=None)
    started = transitions.say(state, "workers_started", state.reason)
    if lost_at_s is None:
        return state, (started,)
    again = running_again_sentence(
        state.cycle, now_s - lost_at_s, state.restarts_used, state.rules.restart.max_restarts
    )
    return state, (started, transitions.say(state, "running_again", again))


# --- faults --------------------------------------------------------------------------------------------------------


def _spawner_lost(state: State, reason: str) -> Outcome:
    state = _without_spawner(state)
    text = f"the spawner was lost: {reason}"
    if isinstance(state.phase, phases.Pending | phases.Rendezvous):
        said = transitions.say(state, "spawner_lost", text)
        state, told = transitions.report(state, text)
        state, down = transitions.go_down(state, state.reason)
        return state, (said, told, *down)
    lost = f"{text}; its workers end with it, and what they printed last may be lost"
    said = transitions.say(state, "spawner_lost", lost)
    match state.phase:
        case phases.AwaitingStore() | phases.Starting() | phases.Running():
            state, told = transitions.report(state, text)
            state = transitions.enter(state, phases.Stopping(phases.Rejoin(announced=False)), state.reason)
            return state, (said, told, worker_messages.LoseWorkers())
        case phases.Finished():
            return state, (said, worker_messages.LoseWorkers())  # The work is done; nothing can be lost any more.
        case phases.Stopping():
            return state, (said, worker_messages.LoseWorkers())  # Belongs to the round that is under way.
        case phases.Down() | phases.Stopped() | phases.Closing() | phases.Ended():
            return state, ()
        case _:
            assert_never(state.phase)


def _without_spawner(state: State) -> State:
    """Removes the spawner and its store, which dies with it."""
    return msgspec.structs.replace(state, has_spawner=False, store=None)


def _workers_faulted(state: State, reason: str, *, first_failure: str, may_be_stop: bool = False) -> Outcome:
    if type(state.phase) not in _RUNS:
        return state, ()
    if state.hang:  # A hang is being dealt with, and it came first.
        return msgspec.structs.replace(state, echo=state.echo or reason), ()
    state = msgspec.structs.replace(state, first_failure=first_failure)
    return transitions.fault(state, reason, may_be_stop=may_be_stop)


def _hang_faulted(state: State, reason: str) -> Outcome:
    if type(state.phase) not in _RUNS:
        return state, ()
    return transitions.fault(msgspec.structs.replace(state, first_failure=""), reason)


def _hang_ended(state: State, reason: str) -> Outcome:
    """Handles a hang that proved false: a failure meanwhile was not its consequence but the fault."""
    echo = state.echo
    state = msgspec.structs.replace(state, hang="", echo="", reason=reason)
    return _workers_faulted(state, echo, first_failure=echo) if echo else (state, ())


def _workers_succeeded(state: State, lost: tuple[int, ...]) -> Outcome:
    match state.phase:
        case phases.Starting() | phases.Running():
            state = transitions.enter(state, phases.Finished(lost), succeeded_sentence("of this node ", lost))
            return state, (transitions.tell(state, cluster_messages.NodeSucceeded(state.node, state.cycle, lost)),)
        case _:
            return state, ()


# --- what the coordinator wants --------------------------------------------------------------------------------------


def _join_again(state: State, event: orders.JoinAgain, now_s: float) -> Outcome:
    if event.next_cycle <= state.cycle:
        return state, ()
    if event.next_cycle > state.cycle + 1:  # The cycle that is lost ran without this node.
        state = msgspec.structs.replace(state, lost_at_s=now_s)
    match state.phase:
        case phases.Pending():
            return msgspec.structs.replace(state, reason=event.reason), ()
        case phases.Rendezvous():
            state = msgspec.structs.replace(state, reason=event.reason)
            return transitions.prepare_ahead(state, event.next_cycle) if state.cycle >= 0 else (state, ())
        case phases.Down():
            return transitions.start_spawner(state, event.reason)
        case phases.Stopping(then=phases.Rejoin()):
            state = transitions.enter(state, phases.Stopping(phases.Rejoin(announced=True)), event.reason)
            return transitions.prepare_ahead(state, event.next_cycle)
        case phases.AwaitingStore() | phases.Starting() | phases.Running() | phases.Finished():
            state, stop = transitions.stop_group(state, phases.Rejoin(announced=True), event.reason)
            state, ahead = transitions.prepare_ahead(state, event.next_cycle)
            return state, (*stop, *ahead)
        case phases.Stopping() | phases.Stopped() | phases.Closing() | phases.Ended():
            return state, ()
        case _:
            assert_never(state.phase)


def _stand_back(state: State, reason: str) -> Outcome:
    match state.phase:
        case phases.AwaitingStore() | phases.Starting() | phases.Running() | phases.Finished():
            state, told = transitions.report(state, reason)  # A silent leader may still lead, even on this node.
            state, actions = transitions.stop_group(
                state, phases.Rejoin(announced=False), state.reason, worker_messages.KillWorkers()
            )
            return state, (told, *actions)
        case phases.Stopping(then):
            waits = phases.Rejoin(announced=False) if isinstance(then, phases.StartNext) else then
            return transitions.enter(state, phases.Stopping(waits), reason), (worker_messages.KillWorkers(),)
        case (
            phases.Pending() | phases.Rendezvous() | phases.Down() | phases.Stopped() | phases.Closing()
            | phases.Ended()
        ):  # fmt: skip
            return state, ()
        case _:
            assert_never(state.phase)


def _end_deadlocked(state: State, cycle: int) -> Outcome:
    """Ends what a restart waits for in vain. A stop of the job gives its ranks their time."""
    match state.phase:
        case phases.Stopping(phases.Rejoin() | phases.StartNext()) if cycle == state.cycle:
            return state, (worker_messages.KillWorkers(),)
        case _:
            return state, ()


def _conclude(state: State, verdict: Verdict) -> Outcome:
    match state.phase:
        case phases.Pending() | phases.Rendezvous() | phases.Down() | phases.Stopped():
            return transitions.conclude(state, verdict)
        case phases.AwaitingStore() | phases.Starting() | phases.Running() | phases.Finished() | phases.Stopping():
            # The coordinator did not wait for this node, and may lead the next run by the time that nothing is left.
            return transitions.wind_down(state, orders.WindDown(verdict.reason), verdict)
        case phases.Closing() | phases.Ended():
            return state, ()
        case _:
            assert_never(state.phase)
