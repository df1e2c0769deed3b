"""What does this node do next? Folds the machines of all its jobs into one step.

job_fold.py folds the machines of one job. This module decides which job an event belongs to and what is fenced, and has
the one timer and the view of a job.
"""

from __future__ import annotations

from typing import assert_never, cast, get_args

import msgspec

from supervisor.core import job_phases, worker_messages
from supervisor.core.cluster.cluster_messages import NodeFailed, NodeStopped, VerdictTaken
from supervisor.core.defects import defect_sentence
from supervisor.core.facts import JobEvent, JobState, JobView, RankView, Verdict
from supervisor.core.node import (
    call_watch,
    gpu_memory_gate,
    gpu_reclaim,
    hang_response,
    job,
    node_check_gate,
    node_check_round,
    process_pauses,
    rank_monitor,
    script_seen,
    worker_group,
)
from supervisor.core.node.earliest_deadline import Deadlines
from supervisor.core.node.job_fold import JobFold
from supervisor.core.node.job_machines import JobMachines
from supervisor.core.node.node_messages import (
    Accepted,
    Action,
    ClientJoined,
    ClientLeft,
    ControlRequested,
    DeadlineReached,
    Event,
    EventOfNode,
    EvidenceCollected,
    FenceMoved,
    FinishJob,
    GpuMemorySeen,
    JobAbandoned,
    JobSubmitted,
    KillSpawner,
    LimitsCalculated,
    NodeChecked,
    ProcessPaused,
    ProgressRead,
    Publish,
    RankContinued,
    RankPrinted,
    RankSaid,
    RanksLookedAt,
    RankStopped,
    ReportOfJob,
    SpawnerLost,
    SpawnerReady,
    SpawnerReport,
    SpawnFailed,
    StoreFailed,
    StoreReady,
    TellCoordinator,
    TellRanks,
    WorkerEndSeen,
    WorkerExited,
    WorkersEmptied,
    WorkerSpawned,
)  # fmt: skip
from supervisor.core.node_check_facts import CheckView

ENDED_JOBS_MAX = 100  # ended jobs that can still be viewed

_OfJob = ReportOfJob | NodeChecked | GpuMemorySeen
_OfCycle = (
    WorkerSpawned | SpawnFailed | WorkerExited | WorkerEndSeen | WorkersEmptied | ClientJoined | ClientLeft
    | ProgressRead | LimitsCalculated | ControlRequested | EvidenceCollected | RankSaid | RankStopped | RankContinued
    | RankPrinted | RanksLookedAt
)  # fmt: skip

# Events are looked up by kind: isinstance over so many kinds would cost more than the decision.
_OF_NODE = frozenset(get_args(EventOfNode))
_OF_CYCLE = frozenset(get_args(_OfCycle))
_OF_SPAWNER = frozenset(get_args(SpawnerReport))
_AT_GATES = frozenset({NodeChecked, GpuMemorySeen, WorkersEmptied, SpawnerReady})


class State(msgspec.Struct, frozen=True):
    """The node's jobs. Never changed in place, except the deadline cache; each step copies a small dict."""

    node: str
    jobs: dict[str, JobMachines] = msgspec.field(default_factory=dict[str, JobMachines])
    asked: Deadlines = msgspec.field(default_factory=Deadlines)


def initial_state(node: str) -> State:
    return State(node)


def step(state: State, event: Event, *, now_s: float) -> tuple[State, tuple[Action, ...]]:
    state, actions = _step(state, event, now_s)
    if type(event) is ControlRequested and event.request_id:  # Also if it changes nothing: the rank waits.
        accepted = TellRanks(event.job_id, event.cycle, (event.local_rank,), Accepted(event.request_id))
        return state, (*actions, accepted)
    return state, actions


def _step(state: State, event: Event, now_s: float) -> tuple[State, tuple[Action, ...]]:
    if type(event) in _OF_NODE:
        return _step_node(state, cast("EventOfNode", event), now_s)
    event = cast("_OfJob", event)
    job_id = event.job_id
    machines = state.jobs.get(job_id)
    if machines is None or _is_outdated(event, machines):
        return state, ()
    if type(event) in _AT_GATES:
        if isinstance(event, NodeChecked):
            machines, told = node_check_gate.take(machines, event, now_s)
            return _with(state, job_id, machines), told
        if isinstance(event, GpuMemorySeen):
            return _at_memory_gate(state, job_id, event, now_s)
        if (held := gpu_memory_gate.held_back(machines, event)) is not None:
            return _at_memory_gate(state, job_id, held, now_s)
    if type(event) is FenceMoved and not machines.job.has_met_leader:
        machines = msgspec.structs.replace(machines, job=msgspec.structs.replace(machines.job, has_met_leader=True))
    if machines.pauses:
        event = process_pauses.without_pauses(machines, event)
    return _fold(state, job_id, machines, cast("ReportOfJob", event), now_s)


def next_deadline_s(state: State) -> float | None:
    earliest_s: float | None = None
    for job_id, machines in state.jobs.items():
        due_s = state.asked.of(job_id, machines)
        if due_s is not None and (earliest_s is None or due_s < earliest_s):
            earliest_s = due_s
    return earliest_s


def job_due_s(state: State, job_id: str) -> float | None:
    """Returns the earliest deadline of a job. Only machines that have changed are asked again."""
    return state.asked.of(job_id, state.jobs[job_id])


def is_fenced(state: State, job_id: str) -> bool:
    """Returns whether another node may take this one's place in the job."""
    machines = state.jobs.get(job_id)
    return machines is not None and machines.job.has_met_leader


def with_job(state: State, job_id: str, machines: JobMachines) -> State:
    """Adds a job with the state of its machines under another supervisor."""
    return _with(state, job_id, machines)


def view(state: State, job_id: str) -> JobView | None:
    """Returns the job as status shows it; None if it is unknown here, or no longer known."""
    machines = state.jobs.get(job_id)
    if machines is None:
        return None
    life = machines.job
    return JobView(
        job_id=job_id,
        state=job_phases.shown_state(life),
        cycle=life.cycle,
        reason=life.reason,
        assignment=life.assignment,
        cycle_started_at_s=life.cycle_started_at_s,
        ranks=tuple(_rank_view(machines, worker) for worker in worker_group.workers_of(machines.group)),
        limits=life.limits or life.rules.hang_limits,
        verdict=job_phases.verdict_of(life),
        checks=checks(state, job_id),
        script=script_seen.shown(machines.plain.seen),
    )


def checks(state: State, job_id: str) -> tuple[CheckView, ...]:
    """Returns what the checks of this node have found last for the job, which may have ended."""
    machines = state.jobs.get(job_id)
    return (*node_check_round.checks_of(machines.fitness), *machines.reclaim.seen) if machines is not None else ()


def _step_node(state: State, event: EventOfNode, now_s: float) -> tuple[State, tuple[Action, ...]]:
    match event:
        case DeadlineReached():
            return _pass_deadlines(state, now_s)
        case JobSubmitted():
            return _submit(state, event, now_s)
        case JobAbandoned(job_id, reason):
            return _abandon(state, job_id, reason)
        case ProcessPaused():
            for job_id, machines in state.jobs.items():
                state = _with(state, job_id, process_pauses.noted(machines, event, now_s))
            return state, ()
        case _:
            assert_never(event)


def _submit(state: State, event: JobSubmitted, now_s: float) -> tuple[State, tuple[Action, ...]]:
    rules = event.rules
    known = state.jobs.get(rules.job_id)
    if known is not None and not isinstance(known.job.phase, job_phases.Ended):
        return state, ()
    life, actions = job.open_job(rules, node=event.node or state.node, settings=event.settings)
    machines = JobMachines(
        life,
        worker_group.initial_state(),
        hang_response.initial_state(),
        fitness=node_check_round.initial_state(event.checks),
        reclaim=gpu_reclaim.initial_state(event.memory),
    )
    fold = JobFold(machines, now_s)
    fold.carry(actions)
    machines, opened = node_check_gate.open_gate(None, fold.machines(), fold.actions, now_s)
    kept = dict(state.jobs)
    kept.pop(rules.job_id, None)
    ended = [job_id for job_id, each in kept.items() if isinstance(each.job.phase, job_phases.Ended)]
    for job_id in ended[: max(0, len(ended) - ENDED_JOBS_MAX)]:
        del kept[job_id]
    return _with(State(state.node, kept, state.asked.without(state.jobs.keys() - kept)), rules.job_id, machines), opened


def _pass_deadlines(state: State, now_s: float) -> tuple[State, tuple[Action, ...]]:
    actions: list[Action] = []
    for job_id, machines in state.jobs.items():
        due_s = job_due_s(state, job_id)
        if due_s is not None and due_s <= now_s:
            state, more = _fold(state, job_id, machines, DeadlineReached(), now_s)
            actions += more
            if node_check_round.next_deadline_s(state.jobs[job_id].fitness) is not None:
                machines, late = node_check_gate.take(state.jobs[job_id], DeadlineReached(), now_s)
                state = _with(state, job_id, machines)
                actions += late
            if state.jobs[job_id].reclaim.waits is not None:
                state, waited = _at_memory_gate(state, job_id, DeadlineReached(), now_s)
                actions += waited
    return state, tuple(actions)


def _fold(
    state: State, job_id: str, machines: JobMachines, event: ReportOfJob | DeadlineReached, now_s: float
) -> tuple[State, tuple[Action, ...]]:
    """Steps the machines of one job. A bug in them ends only this job."""
    fold = JobFold(machines, now_s)
    try:
        fold.take(event)
    except Exception as error:  # noqa: BLE001 - the bulkhead between jobs, inside the core
        return _abandon(state, job_id, defect_sentence(error))
    after, actions = node_check_gate.open_gate(machines, fold.machines(), fold.actions, now_s)
    state = _with(state, job_id, after)
    if after.reclaim.rules is None:
        return state, actions
    waits = gpu_reclaim.WaitDropped() if gpu_memory_gate.is_in_vain(after) else gpu_memory_gate.begun(after, actions)
    if waits is None:
        return state, actions
    state, more = _at_memory_gate(state, job_id, waits, now_s)
    return state, (*actions, *more)


def _at_memory_gate(
    state: State, job_id: str, event: gpu_reclaim.Event, now_s: float
) -> tuple[State, tuple[Action, ...]]:
    machines, actions, held = gpu_memory_gate.step(state.jobs[job_id], event, now_s)
    state = _with(state, job_id, machines)
    if held is None or _is_outdated(held, machines):
        return state, actions
    state, more = _fold(state, job_id, machines, held, now_s)
    return state, (*actions, *more)


def _abandon(state: State, job_id: str, reason: str) -> tuple[State, tuple[Action, ...]]:
    """Ends the job here at once. Its coordinator, if still working, ends it on all other nodes.

    A known verdict stands, because the job has ended the same on every node.
    """
    machines = state.jobs.get(job_id)
    if machines is None or isinstance(machines.job.phase, job_phases.Ended):
        return state, ()
    known = job_phases.verdict_of(machines.job)
    verdict = known or Verdict(JobState.FAILED, 1, reason)
    kind = "job_failed" if known is None else "defect_met"
    life = msgspec.structs.replace(machines.job, phase=job_phases.Ended(verdict), reason=reason)
    ended = JobMachines(life, worker_group.initial_state(), hang_response.initial_state())
    failed = NodeFailed(life.node, life.cycle, reason, restart_allowed=False)
    told = (failed, NodeStopped(life.node, all_succeeded=False), VerdictTaken(life.node))
    return _with(state, job_id, ended), (
        Publish(job_id, JobEvent(kind, reason, max(life.cycle, 0))),
        *(TellCoordinator(job_id, report) for report in told),
        KillSpawner(job_id, reason),
        FinishJob(job_id, verdict),
    )


def _is_outdated(event: _OfJob, machines: JobMachines) -> bool:
    """Returns whether a report is from another cycle or an earlier spawner, so changes nothing. Machines fence orders.

    A report on the next cycle's store passes, because it may be requested ahead.
    """
    if type(event) in _OF_CYCLE:
        return cast("_OfCycle", event).cycle != machines.job.cycle
    if type(event) not in _OF_SPAWNER:
        return False
    match event := cast("SpawnerReport", event):
        case SpawnerReady() | SpawnerLost():
            return not machines.job.has_spawner or event.number != machines.job.spawners
        case StoreReady() | StoreFailed():
            return event.cycle < machines.job.cycle
        case _:
            assert_never(event)


def _with(state: State, job_id: str, machines: JobMachines) -> State:
    return State(state.node, {**state.jobs, job_id: machines}, state.asked)


def _rank_view(machines: JobMachines, worker: worker_messages.Worker) -> RankView:
    monitor: rank_monitor.State = rank_monitor.initial_state()
    if worker.local_rank < len(machines.monitors):
        monitor = machines.monitors[worker.local_rank]
    watched = isinstance(monitor, rank_monitor.Watching | rank_monitor.Reading | rank_monitor.Hung)
    is_over = isinstance(machines.group, worker_group.Empty)
    if worker.exit is None and not worker.not_started:
        shown = "starting" if worker.pid is None else "running"
        shown = "hung" if _is_hung(machines, monitor, worker.local_rank) else shown
        shown = "stopped" if is_over else shown
    elif worker.succeeded:
        shown = "exited"
    else:
        shown = "stopped" if worker.signalled else "failed"
    return RankView(
        local_rank=worker.local_rank,
        rank=worker.rank,
        state=shown,
        pid=worker.pid,
        exit=worker.exit,
        limits=monitor.limits if watched else None,
        progress=monitor.progress if watched else None,
        in_call=_is_in_call(machines, worker.local_rank),
    )


def _is_in_call(machines: JobMachines, local_rank: int) -> bool:
    watches = machines.watches
    return local_rank < len(watches) and not isinstance(watches[local_rank], call_watch.Idle)


def _is_hung(machines: JobMachines, monitor: rank_monitor.State, local_rank: int) -> bool:
    """Returns whether the rank hangs, also while it is being ended for that."""
    if isinstance(monitor, rank_monitor.Hung) or hang_response.is_hung(machines.hangs, local_rank):
        return True
    watch = machines.watches[local_rank] if local_rank < len(machines.watches) else call_watch.initial_state()
    return isinstance(watch, call_watch.Examining | call_watch.Confirming)
