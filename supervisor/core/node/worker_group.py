"""How are the workers of one cycle doing on this node, and how are they brought to an end?

The workers start and end together. The first failure is reported at once; later ones belong to the same fault. A stop
sends a signal to every process tree, waits exactly the given grace period, then kills everything that is left,
including escaped processes. A process that even SIGKILL can't end (state D) is named and left behind. Restarts are not
decided here.
"""

from __future__ import annotations

import signal as signals
from typing import assert_never

import msgspec

from supervisor.core.facts import Cause, JobEvent, JobRules
from supervisor.core.node import node_messages
from supervisor.core.root_cause import root_cause
from supervisor.core.worker_messages import (
    Excuse,
    ExcuseRank,
    GroupReport,
    KillRanks,
    KillWorkers,
    LoseWorkers,
    Order,
    PrepareWorkers,
    RankExited,
    RespawnRanks,
    SettleExcuses,
    StartWorkers,
    StopWorkers,
    Worker,
    WorkersFaulted,
    WorkersGone,
    WorkersLinger,
    WorkersRun,
    WorkersSucceeded,
)  # fmt: skip

LINGERS_S = 0.3  # after a restart's signal: by then, a worker without a handler has ended
LINGERS_FACTOR = 3.0  # and so much longer until the next report

# --- states --------------------------------------------------------------------------------------------------------


class Empty(msgspec.Struct, frozen=True):
    """Nothing of any cycle is left. `workers`: how the last ones ended."""

    workers: tuple[Worker, ...] = ()


class Prepared(msgspec.Struct, frozen=True):
    """A store may exist already, but no workers."""

    cycle: int


class Starting(msgspec.Struct, frozen=True):
    cycle: int
    workers: tuple[Worker, ...]
    grace_until_s: float | None = None  # when a rank that has exited 0 becomes a fault


class Running(msgspec.Struct, frozen=True):
    cycle: int
    workers: tuple[Worker, ...]
    grace_until_s: float | None = None


class Done(msgspec.Struct, frozen=True):
    """All workers have exited 0 or are excused; processes that they left running live until the job ends."""

    cycle: int
    workers: tuple[Worker, ...]


class Faulted(msgspec.Struct, frozen=True):
    """The fault was reported; `first` is the local rank that showed it."""

    cycle: int
    workers: tuple[Worker, ...]
    first: int


class Terminating(msgspec.Struct, frozen=True):
    cycle: int
    workers: tuple[Worker, ...]
    signal: int
    kill_at_s: float
    first: int | None = None
    lingers_at_s: float | None = None  # then it is reported that workers linger; None: nobody wants to know
    lingers_again_s: float = 0.0  # how much later again
    since_s: float = 0.0  # when the first signal was sent


class Killing(msgspec.Struct, frozen=True):
    cycle: int
    workers: tuple[Worker, ...]
    first: int | None = None


Living = Starting | Running | Done | Faulted | Terminating | Killing
State = Empty | Prepared | Living

Event = (
    Order | node_messages.WorkerSpawned | node_messages.SpawnFailed | node_messages.WorkerExited
    | node_messages.WorkersEmptied | node_messages.DeadlineReached
)  # fmt: skip
Action = (
    GroupReport
    | node_messages.SpawnWorkers
    | node_messages.RespawnWorkers
    | node_messages.SignalWorkers
    | node_messages.KillTree
    | node_messages.Publish
)
Outcome = tuple[State, tuple[Action, ...]]

# --- decisions -----------------------------------------------------------------------------------------------------


def initial_state() -> State:
    return Empty()


def step(state: State, event: Event, *, now_s: float, rules: JobRules) -> Outcome:
    match event:  # the most frequent first
        case node_messages.WorkerExited() | node_messages.WorkerSpawned() | node_messages.SpawnFailed():
            return _note(state, event, now_s, rules)
        case node_messages.WorkersEmptied(stuck_pids=stuck_pids):
            return _empty(state, stuck_pids, now_s) if isinstance(state, Killing) else (state, ())
        case node_messages.DeadlineReached():
            return _pass_deadlines(state, now_s, rules)
        case PrepareWorkers(cycle):
            return (Prepared(cycle), ()) if isinstance(state, Empty) else (state, ())
        case StartWorkers():
            return _spawn(state, event, rules)
        case StopWorkers():
            return _stop(state, event, now_s, rules)
        case KillWorkers():
            return _kill(state, rules)
        case KillRanks():
            return _kill_ranks(state, event, now_s, rules)
        case LoseWorkers():
            return _lose(state, now_s)
        case ExcuseRank(local_rank, excuse):
            return _excuse(state, local_rank, excuse), ()
        case SettleExcuses(stands, reason):
            return _settle_excuses(state, reason, stands=stands)
        case RespawnRanks(local_ranks):
            return _respawn(state, local_ranks, rules)
        case _:
            assert_never(event)


def next_deadline_s(state: State) -> float | None:
    match state:
        case Starting(workers=workers, grace_until_s=until_s) | Running(workers=workers, grace_until_s=until_s):
            earliest_s = until_s
        case Terminating(workers=workers, kill_at_s=kill_at_s, lingers_at_s=lingers_at_s):
            earliest_s = kill_at_s if lingers_at_s is None else min(kill_at_s, lingers_at_s)
        case Faulted(workers=workers):
            earliest_s = None
        case Empty() | Prepared() | Done() | Killing():
            return None
        case _:
            assert_never(state)
    for worker in workers:
        if worker.kill_at_s is not None and (earliest_s is None or worker.kill_at_s < earliest_s):
            earliest_s = worker.kill_at_s
    return earliest_s


def workers_of(state: State) -> tuple[Worker, ...]:
    return () if isinstance(state, Prepared) else state.workers


def is_alive(state: State, local_rank: int) -> bool:
    """Returns whether the worker is alive, as far as reported."""
    return any(worker.local_rank == local_rank and not worker.ended for worker in workers_of(state))


def starting(state: State) -> tuple[int, ...]:
    """Returns the local ranks whose process was ordered and has not been reported yet."""
    return tuple(each.local_rank for each in workers_of(state) if each.pid is None and not each.ended)


def _spawn(state: State, event: StartWorkers, rules: JobRules) -> Outcome:
    if not isinstance(state, Prepared) or state.cycle != event.assignment.cycle:
        return state, ()
    first_rank = event.assignment.first_rank
    workers = tuple(Worker(each, first_rank + each) for each in range(rules.local_world_size))
    spawn = node_messages.SpawnWorkers(rules.job_id, event.assignment, event.store_host, event.store_port)
    return Starting(state.cycle, workers), (spawn,)


# --- what workers do -----------------------------------------------------------------------------------------------


def _note(
    state: State,
    event: node_messages.WorkerSpawned | node_messages.SpawnFailed | node_messages.WorkerExited,
    now_s: float,
    rules: JobRules,
) -> Outcome:
    if isinstance(state, Empty | Prepared):
        return state, ()
    local_rank = event.exit.local_rank if isinstance(event, node_messages.WorkerExited) else event.local_rank
    worker = next((each for each in state.workers if each.local_rank == local_rank), None)
    if worker is None or worker.ended:
        return state, ()
    match event:
        case node_messages.WorkerSpawned(pid=pid):
            changed = msgspec.structs.replace(worker, pid=pid)
            kind, text = "worker_started", f"rank {worker.rank} (pid {pid}) started"
            actions: tuple[Action, ...] = ()
        case node_messages.SpawnFailed(reason=why):
            changed = msgspec.structs.replace(worker, not_started=f"rank {worker.rank} was not started: {why}")
            kind, text, actions = "spawn_failed", changed.not_started, ()
        case node_messages.WorkerExited(exit=exit_):
            changed = msgspec.structs.replace(worker, exit=exit_, pid=exit_.pid, kill_at_s=None)
            own_failure = not exit_.succeeded and not worker.signalled
            own_failure = own_failure or (worker.excuse is Excuse.OPEN and not exit_.succeeded)
            kind, text = "worker_failed" if own_failure else "worker_exited", exit_.describe()
            actions = (RankExited(exit_),)
        case _:
            assert_never(event)
    said = node_messages.Publish(rules.job_id, JobEvent(kind, text, state.cycle, worker.rank))
    workers = tuple(changed if each is worker else each for each in state.workers)
    state, follow_up = _judge(msgspec.structs.replace(state, workers=workers), changed, now_s, rules)
    return state, (said, *actions, *follow_up)


def _judge(state: Living, changed: Worker, now_s: float, rules: JobRules) -> Outcome:
    """Decides what a change of one worker means for the group."""
    match state:
        case Starting(cycle, workers, grace_until_s) | Running(cycle, workers, grace_until_s):
            if changed.failed:
                reason = changed.exit.describe() if changed.exit is not None else changed.not_started
                may_be_stop = changed.exit is not None and changed.exit.may_be_stop
                return Faulted(cycle, workers, changed.local_rank), (WorkersFaulted(reason, may_be_stop=may_be_stop),)
            if all(worker.is_done for worker in workers):
                return _done(cycle, workers)
            if (
                changed.succeeded
                and changed.excuse is Excuse.NONE
                and grace_until_s is None
                and rules.completion_grace_s is not None
            ):
                state = msgspec.structs.replace(state, grace_until_s=now_s + rules.completion_grace_s)
            if type(state) is Starting and all(worker.pid is not None or worker.ended for worker in workers):
                return Running(cycle, workers, state.grace_until_s), (WorkersRun(),)
            return state, ()
        case Terminating(workers=workers):
            return _kill(state, rules) if all(worker.beyond_waiting for worker in workers) else (state, ())
        case Done() | Faulted() | Killing():
            return state, ()
        case _:
            assert_never(state)


def _pass_deadlines(state: State, now_s: float, rules: JobRules) -> Outcome:
    if isinstance(state, Empty | Prepared | Done | Killing):
        return state, ()
    if isinstance(state, Terminating) and now_s >= state.kill_at_s:
        return _kill(state, rules)
    lingering: tuple[Action, ...] = ()
    if isinstance(state, Terminating) and state.lingers_at_s is not None and now_s >= state.lingers_at_s:
        again_s = LINGERS_FACTOR * state.lingers_again_s
        state = msgspec.structs.replace(state, lingers_at_s=now_s + again_s, lingers_again_s=again_s)
        lingering = (WorkersLinger(),)
    due = tuple(each.local_rank for each in state.workers if each.kill_at_s is not None and now_s >= each.kill_at_s)
    actions = lingering
    if due:
        workers = tuple(
            msgspec.structs.replace(each, kill_at_s=None, killed=True) if each.local_rank in due else each
            for each in state.workers
        )
        state = msgspec.structs.replace(state, workers=workers)
        kill = node_messages.SignalWorkers(rules.job_id, state.cycle, int(signals.SIGKILL), due, tree=True)
        actions = (*actions, kill)
    if isinstance(state, Starting | Running) and state.grace_until_s is not None and now_s >= state.grace_until_s:
        done = next(each for each in state.workers if each.succeeded and each.excuse is Excuse.NONE)
        alive = ", ".join(str(each.rank) for each in state.workers if not each.ended)
        reason = (
            f"rank {done.rank} exited with code 0 and rank {alive} still ran after {rules.completion_grace_s} s "
            f"(completion grace)"
        )
        return Faulted(state.cycle, state.workers, done.local_rank), (*actions, WorkersFaulted(reason))
    return state, actions


# --- ranks that were lost in a wrapped call ------------------------------------------------------------------------


def _done(cycle: int, workers: tuple[Worker, ...]) -> Outcome:
    lost = tuple(worker.rank for worker in workers if worker.excuse is Excuse.STANDS)
    return Done(cycle, workers), (WorkersSucceeded(lost),)


def _excuse(state: State, local_rank: int, excuse: Excuse) -> State:
    if isinstance(state, Empty | Prepared):
        return state
    workers = tuple(
        msgspec.structs.replace(each, excuse=excuse) if each.local_rank == local_rank and not each.ended else each
        for each in state.workers
    )
    return msgspec.structs.replace(state, workers=workers)


def _settle_excuses(state: State, reason: str, *, stands: bool) -> Outcome:
    if not isinstance(state, Starting | Running):
        return state, ()
    settled = Excuse.STANDS if stands else Excuse.NONE
    workers = tuple(
        msgspec.structs.replace(each, excuse=settled) if each.excuse is Excuse.OPEN else each for each in state.workers
    )
    failed = next((each for each in workers if each.failed), None)
    if failed is not None:
        return Faulted(state.cycle, workers, failed.local_rank), (WorkersFaulted(reason, of_call=True),)
    if all(worker.is_done for worker in workers):
        return _done(state.cycle, workers)
    return msgspec.structs.replace(state, workers=workers), ()


def _respawn(state: State, local_ranks: tuple[int, ...], rules: JobRules) -> Outcome:
    if not isinstance(state, Starting | Running):
        return state, ()
    due = tuple(each.local_rank for each in state.workers if each.local_rank in local_ranks and each.ended)
    workers = tuple(Worker(each.local_rank, each.rank) if each.local_rank in due else each for each in state.workers)
    spawn = (node_messages.RespawnWorkers(rules.job_id, state.cycle, due),) if due else ()
    return msgspec.structs.replace(state, workers=workers), spawn


# --- how they are ended --------------------------------------------------------------------------------------------


def _stop(state: State, order: StopWorkers, now_s: float, rules: JobRules) -> Outcome:
    """Signals every process tree, including stopped processes."""
    signal, kill_at_s, since_s = order.signal, now_s + order.grace_s, now_s
    lingers_at_s = now_s + LINGERS_S if order.for_restart else None
    match state:
        case Empty(workers):
            return state, (_gone(workers),)  # The spawner was lost, and they with it.
        case Killing():
            return state, ()
        case Prepared() | Done():
            return _kill(state, rules)
        case Terminating():
            kill_at_s = order.kill_at_s(now_s, first_at_s=state.since_s, before_s=state.kill_at_s)
            if signal == state.signal:
                lingers_at_s = state.lingers_at_s if order.for_restart else None
                return msgspec.structs.replace(state, kill_at_s=kill_at_s, lingers_at_s=lingers_at_s), ()
            first, since_s = state.first, state.since_s
        case Faulted():
            first = state.first
        case Starting() | Running():
            first = None
        case _:
            assert_never(state)
    if all(worker.beyond_waiting for worker in state.workers):
        return _kill(state, rules)
    workers = tuple(each if each.ended else msgspec.structs.replace(each, signalled=True) for each in state.workers)
    grace_s = kill_at_s - now_s
    send = node_messages.SignalWorkers(rules.job_id, state.cycle, signal, resume=True, grace_s=grace_s)
    return Terminating(state.cycle, workers, signal, kill_at_s, first, lingers_at_s, LINGERS_S, since_s), (send,)


def _kill(state: State, rules: JobRules) -> Outcome:
    if isinstance(state, Empty):
        return state, (_gone(state.workers),)
    if isinstance(state, Killing):
        return state, ()
    workers = tuple(
        each if each.ended else msgspec.structs.replace(each, signalled=True, kill_at_s=None)
        for each in workers_of(state)
    )
    first = state.first if isinstance(state, Faulted | Terminating) else None
    return Killing(state.cycle, workers, first), (node_messages.KillTree(rules.job_id, state.cycle),)


def _kill_ranks(state: State, event: KillRanks, now_s: float, rules: JobRules) -> Outcome:
    if isinstance(state, Empty | Prepared | Done | Killing):
        return state, ()
    ranks = tuple(each.local_rank for each in state.workers if each.local_rank in event.local_ranks and not each.ended)
    if not ranks:
        return state, ()
    kills = event.signal == signals.SIGKILL
    kill_at_s = None if kills else now_s + event.escalation_s
    workers = tuple(
        msgspec.structs.replace(each, signalled=True, kill_at_s=kill_at_s, killed=kills)
        if each.local_rank in ranks
        else each
        for each in state.workers
    )
    send = node_messages.SignalWorkers(rules.job_id, state.cycle, event.signal, ranks, tree=False, resume=True)
    return msgspec.structs.replace(state, workers=workers), (send,)


def _lose(state: State, now_s: float) -> Outcome:
    return (state, ()) if isinstance(state, Empty) else _empty(state, (), now_s)


def _empty(state: Prepared | Living, stuck_pids: tuple[int, ...], now_s: float) -> Outcome:
    workers = workers_of(state)
    first = state.first if isinstance(state, Faulted | Terminating | Killing) else None
    blamed = tuple(each for each in workers if each.excuse is Excuse.NONE)
    return Empty(workers), (_gone(workers, root_cause(blamed, first, now_s), stuck_pids),)


def _gone(workers: tuple[Worker, ...], cause: Cause | None = None, stuck_pids: tuple[int, ...] = ()) -> WorkersGone:
    all_succeeded = bool(workers) and all(each.succeeded for each in workers)
    return WorkersGone(cause, all_succeeded, stuck_pids)
