"""What does this node do next? Folds the machines of all its jobs into one step.

job_fold.py folds the machines of one job. This module decides which job an event belongs to and what is fenced, and has
the one timer and the view of a job.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from supervisor.core import job_phases
from supervisor.core import workers as group_messages
from supervisor.core.cluster.messages import NodeFailed, NodeStopped, VerdictTaken
from supervisor.core.defects import defect_sentence
from supervisor.core.facts import JobEvent, JobState, JobView, RankView, Verdict
from supervisor.core.node import (
    call_watch,
    fitness,
    gpu_reclaim,
    hang_response,
    job,
    job_gate,
    local_call,
    memory_gate,
    rank_monitor,
    spawner_watch,
    worker_group,
)
from supervisor.core.node.job_fold import JobFold
from supervisor.core.node.job_machines import JobMachines
from supervisor.core.node.messages import (
    Action,
    ClientJoined,
    ClientLeft,
    ControlRequested,
    DeadlineReached,
    Event,
    EvidenceCollected,
    FinishJob,
    GpuMemorySeen,
    JobAbandoned,
    JobSubmitted,
    KillSpawner,
    LimitsCalculated,
    NodeChecked,
    ProgressRead,
    Publish,
    RankSaid,
    SpawnerLost,
    SpawnerReady,
    SpawnFailed,
    StoreFailed,
    StoreReady,
    TellCoordinator,
    WorkerEndSeen,
    WorkerExited,
    WorkersEmptied,
    WorkerSpawned,
)  # fmt: skip

ENDED_JOBS_MAX = 100  # ended jobs that can still be viewed

_OF_CYCLE = (
    WorkerSpawned, SpawnFailed, WorkerExited, WorkerEndSeen, WorkersEmptied, ClientJoined, ClientLeft, ProgressRead,
    LimitsCalculated, ControlRequested, EvidenceCollected, RankSaid,
)  # fmt: skip


class Deadlines(dict[str, float | None]):
    """A cache of the earliest deadline of each job whose machines were asked since their last change."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Deadlines)

    __hash__ = None  # pyright: ignore[reportAssignmentType]


class State(msgspec.Struct, frozen=True):
    """The node's jobs. Never changed in place, except the deadline cache; each step copies two small dicts."""

    node: str
    jobs: dict[str, JobMachines] = msgspec.field(default_factory=dict[str, JobMachines])
    asked: Deadlines = msgspec.field(default_factory=Deadlines)


def initial_state(node: str) -> State:
    return State(node)


def step(state: State, event: Event, *, now_s: float) -> tuple[State, tuple[Action, ...]]:
    match event:
        case JobSubmitted():
            return _submit(state, event, now_s)
        case JobAbandoned(job_id, reason):
            return _abandon(state, job_id, reason)
        case DeadlineReached():
            return _pass_deadlines(state, now_s)
        case _:
            machines = state.jobs.get(event.job_id)
            if machines is None or _is_fenced(event, machines):
                return state, ()
            if isinstance(event, NodeChecked):
                machines, told = job_gate.take(machines, event, now_s)
                return _with(state, event.job_id, machines), told
            if isinstance(event, GpuMemorySeen):
                return _at_memory_gate(state, event.job_id, event, now_s)
            if (held := memory_gate.held_back(machines, event)) is not None:
                return _at_memory_gate(state, event.job_id, held, now_s)
            return _fold(state, event.job_id, machines, now_s, lambda fold: fold.take(event))


def next_deadline_s(state: State) -> float | None:
    earliest_s: float | None = None
    for job_id in state.jobs:
        due_s = job_due_s(state, job_id)
        if due_s is not None and (earliest_s is None or due_s < earliest_s):
            earliest_s = due_s
    return earliest_s


def job_due_s(state: State, job_id: str) -> float | None:
    """Returns the earliest deadline of a job. Its machines are asked once after a change, because thousands of events
    may come between two calls.
    """
    if job_id not in state.asked:
        state.asked[job_id] = _due_s(state.jobs[job_id])
    return state.asked[job_id]


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
        checks=(*fitness.checks_of(machines.fitness), *machines.reclaim.seen),
    )


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
        fitness=fitness.initial_state(event.checks),
        reclaim=gpu_reclaim.initial_state(event.memory),
    )
    fold = JobFold(machines, now_s)
    fold.carry(actions)
    machines, opened = job_gate.open_gate(None, fold.machines(), fold.actions, now_s)
    kept = dict(state.jobs)
    kept.pop(rules.job_id, None)
    ended = [job_id for job_id, each in kept.items() if isinstance(each.job.phase, job_phases.Ended)]
    for job_id in ended[: max(0, len(ended) - ENDED_JOBS_MAX)]:
        del kept[job_id]
    asked = Deadlines({job_id: each for job_id, each in state.asked.items() if job_id in kept})
    return _with(State(state.node, kept, asked), rules.job_id, machines), opened


def _pass_deadlines(state: State, now_s: float) -> tuple[State, tuple[Action, ...]]:
    actions: list[Action] = []
    for job_id, machines in state.jobs.items():
        due_s = job_due_s(state, job_id)
        if due_s is not None and due_s <= now_s:
            state, more = _fold(state, job_id, machines, now_s, JobFold.pass_deadlines)
            machines, late = job_gate.take(state.jobs[job_id], DeadlineReached(), now_s)
            state = _with(state, job_id, machines)
            state, waited = _at_memory_gate(state, job_id, DeadlineReached(), now_s)
            actions += (*more, *late, *waited)
    return state, tuple(actions)


def _fold(
    state: State, job_id: str, machines: JobMachines, now_s: float, do: Callable[[JobFold], None]
) -> tuple[State, tuple[Action, ...]]:
    """Steps the machines of one job. A bug in them ends only this job."""
    fold = JobFold(machines, now_s)
    try:
        do(fold)
    except Exception as error:  # noqa: BLE001 - the bulkhead between jobs, inside the core
        return _abandon(state, job_id, defect_sentence(error))
    after, actions = job_gate.open_gate(machines, fold.machines(), fold.actions, now_s)
    state = _with(state, job_id, after)
    waits = gpu_reclaim.WaitDropped() if memory_gate.is_in_vain(after) else memory_gate.begun(after, actions)
    if waits is None:
        return state, actions
    state, more = _at_memory_gate(state, job_id, waits, now_s)
    return state, (*actions, *more)


def _at_memory_gate(
    state: State, job_id: str, event: gpu_reclaim.Event, now_s: float
) -> tuple[State, tuple[Action, ...]]:
    machines, actions, held = memory_gate.step(state.jobs[job_id], event, now_s)
    state = _with(state, job_id, machines)
    if held is None or _is_fenced(held, machines):
        return state, actions
    state, more = _fold(state, job_id, machines, now_s, lambda fold: fold.take(held))
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


def _due_s(machines: JobMachines) -> float | None:
    """Returns the earliest deadline of all machines of a job."""
    earliest_s: float | None = None
    for moment_s in (
        worker_group.next_deadline_s(machines.group),
        hang_response.next_deadline_s(machines.hangs),
        local_call.next_deadline_s(machines.calls),
        spawner_watch.next_deadline_s(machines.spawner),
        fitness.next_deadline_s(machines.fitness),
        gpu_reclaim.next_deadline_s(machines.reclaim),
        *map(rank_monitor.next_deadline_s, machines.monitors),
        *map(call_watch.next_deadline_s, machines.watches),
    ):
        if moment_s is not None and (earliest_s is None or moment_s < earliest_s):
            earliest_s = moment_s
    return earliest_s


def _is_fenced(event: Event, machines: JobMachines) -> bool:
    """Whether a report is from another cycle or an earlier spawner, and so changes nothing. Machines fence orders.

    A report on the next cycle's store passes, because it may be requested ahead.
    """
    if isinstance(event, _OF_CYCLE):
        return event.cycle != machines.job.cycle
    match event:
        case SpawnerReady() | SpawnerLost():
            return not machines.job.has_spawner or event.number != machines.job.spawners
        case StoreReady() | StoreFailed():
            return event.cycle < machines.job.cycle
        case _:
            return False


def _with(state: State, job_id: str, machines: JobMachines) -> State:
    asked = Deadlines(state.asked) if len(state.jobs) > 1 else Deadlines()
    asked.pop(job_id, None)
    return State(state.node, {**state.jobs, job_id: machines}, asked)


def _rank_view(machines: JobMachines, worker: group_messages.Worker) -> RankView:
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
    )


def _is_hung(machines: JobMachines, monitor: rank_monitor.State, local_rank: int) -> bool:
    """Whether the rank hangs, also while it is being ended for that."""
    if isinstance(monitor, rank_monitor.Hung) or hang_response.is_hung(machines.hangs, local_rank):
        return True
    watch = machines.watches[local_rank] if local_rank < len(machines.watches) else call_watch.initial_state()
    return isinstance(watch, call_watch.Examining | call_watch.Confirming)
