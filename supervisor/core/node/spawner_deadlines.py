"""By when must a job's spawner answer, and what follows if it does not?

Only this machine has deadlines for a spawner's duties: to come up, to serve a store, to start workers, to report an end
that was seen, to empty a cycle, to end. It sees what the other machines order from the spawner and what comes back. A
spawner that does not answer (stopped, stuck in the kernel, in an endless loop) is killed with its process tree. One
that can't even be killed is given up: the job continues, or ends, without it. A spawner without duties is left alone,
so a slow one costs a healthy job nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never, cast, get_args

import msgspec

from supervisor.core.facts import JobEvent, JobRules
from supervisor.core.node import node_messages

START_S = 600.0  # torch from a slow network file system takes minutes
STORE_S = 30.0
SPAWN_S = 60.0
REPORT_S = 10.0  # from a worker's observed end to the spawner's report on it
EMPTY_S = 15.0  # the spawner itself gives up what it can't kill after 10 s
END_S = 8.0
_PUT_OFF_S = {"report": REPORT_S, "empty": EMPTY_S}
READ_S = 5.0  # for reading what it answered while no supervisor was there
KILL_S = 20.0  # from SIGKILL until nothing is left

# --- states --------------------------------------------------------------------------------------------------------


class Debt(msgspec.Struct, frozen=True):
    """Something that the spawner owes. `key` identifies a debt of one kind: a cycle, or a cycle and a rank."""

    kind: str
    key: tuple[int, ...]
    what: str
    since_s: float
    until_s: float
    local_ranks: frozenset[int] = frozenset()  # workers that have neither started nor been given up yet


class Absent(msgspec.Struct, frozen=True):
    pass


class Serving(msgspec.Struct, frozen=True):
    """The spawner is alive or being started."""

    number: int
    debts: tuple[Debt, ...] = ()
    is_ready: bool = False
    starts_workers: bool = True  # False: others do, whenever they like


class Killing(msgspec.Struct, frozen=True):
    """SIGKILL was sent; nothing more is requested."""

    number: int
    reason: str
    until_s: float


State = Absent | Serving | Killing

# --- events: what is asked, what is answered ----------------------------------------------------------------------

Asked = (
    node_messages.StartSpawner | node_messages.PrepareStore | node_messages.SpawnWorkers | node_messages.RespawnWorkers
    | node_messages.KillTree | node_messages.EndSpawner
)  # fmt: skip
Answered = (
    node_messages.SpawnerReady | node_messages.SpawnerLost | node_messages.StoreReady | node_messages.StoreFailed
    | node_messages.WorkerSpawned | node_messages.SpawnFailed | node_messages.WorkerEndSeen
    | node_messages.WorkerExited | node_messages.WorkersEmptied
)  # fmt: skip


class SpawnerBroken(msgspec.Struct, frozen=True):
    """An order could not be sent to the spawner."""

    reason: str


class SupervisorReturned(msgspec.Struct, frozen=True):
    """A supervisor has returned; answers to the previous one may still have to be read."""


Event = Asked | Answered | SpawnerBroken | SupervisorReturned | node_messages.DeadlineReached
_Charged = (
    node_messages.PrepareStore | node_messages.SpawnWorkers | node_messages.RespawnWorkers
    | node_messages.WorkerEndSeen | node_messages.KillTree | node_messages.EndSpawner
)  # fmt: skip
_Heard = (
    node_messages.StoreReady | node_messages.StoreFailed | node_messages.WorkerSpawned | node_messages.SpawnFailed
    | node_messages.WorkerExited | node_messages.WorkersEmptied
)  # fmt: skip
_Served = (
    node_messages.SpawnerReady | node_messages.EndSpawner | SpawnerBroken | SupervisorReturned
    | node_messages.DeadlineReached
)  # fmt: skip
_CHARGED = frozenset(get_args(_Charged))
_HEARD = frozenset(get_args(_Heard))

# --- actions -------------------------------------------------------------------------------------------------------


class GiveUp(msgspec.Struct, frozen=True):
    """The spawner counts as lost, though its process may still be there."""

    number: int
    reason: str


_Begins = (
    node_messages.SpawnerReady | node_messages.StoreReady | node_messages.StoreFailed | node_messages.WorkersEmptied
)
Action = node_messages.KillSpawner | node_messages.Publish | GiveUp
Outcome = tuple[State, tuple[Action, ...]]

# --- decisions -----------------------------------------------------------------------------------------------------


def initial_state() -> State:
    return Absent()


def step(state: State, event: Event, *, now_s: float, cycle: int, rules: JobRules) -> Outcome:
    kind = type(event)
    if kind is node_messages.StartSpawner:
        number = cast("node_messages.StartSpawner", event).number
        return Serving(number, (_debt("start", (), "come up", now_s, START_S),)), ()
    if kind is node_messages.SpawnerLost:
        return Absent(), ()
    match state:
        case Serving():
            if kind in _HEARD:
                return _hear(state, cast("_Heard", event), now_s), ()
            if kind in _CHARGED and (state.is_ready or kind is not node_messages.EndSpawner):
                return _charge(state, cast("_Charged", event), now_s, rules.local_world_size), ()
            return _serve(state, cast("_Served", event), now_s, cycle, rules)
        case Killing(number, reason, until_s):
            if kind is node_messages.DeadlineReached and now_s >= until_s:
                return Absent(), (GiveUp(number, f"{reason}; SIGKILL has not ended it within {KILL_S:.0f} s"),)
            return state, ()
        case Absent():
            return state, ()
        case _:
            assert_never(state)


def is_moot(state: State, event: node_messages.Event) -> bool:
    """Returns whether the event is moot because its spawner is being killed: the loss follows and empties its cycle."""
    return type(state) is Killing and isinstance(event, _Begins)


def next_deadline_s(state: State) -> float | None:
    match state:
        case Serving(debts=debts):
            return min([debt.until_s for debt in debts]) if debts else None
        case Absent():
            return None
        case Killing(until_s=until_s):
            return until_s
        case _:
            assert_never(state)


def _serve(state: Serving, event: _Served, now_s: float, cycle: int, rules: JobRules) -> Outcome:
    match event:
        case node_messages.DeadlineReached():
            due = next((debt for debt in state.debts if now_s >= debt.until_s), None)
            if due is None:
                return state, ()
            reason = f"it was asked to {due.what} and has not answered for {now_s - due.since_s:.0f} s"
            return _kill(state, reason, now_s, rules.job_id, cycle, is_fault=True)
        case node_messages.SpawnerReady(starts_workers=starts_workers):
            return msgspec.structs.replace(_paid(state, "start"), is_ready=True, starts_workers=starts_workers), ()
        case node_messages.EndSpawner():  # It is still loading, perhaps for minutes, without workers.
            return _kill(state, "the job has ended", now_s, rules.job_id, cycle, is_fault=False)
        case SpawnerBroken(reason):
            return _kill(state, reason, now_s, rules.job_id, cycle, is_fault=True)
        case SupervisorReturned():
            late = (msgspec.structs.replace(each, until_s=max(each.until_s, now_s + READ_S)) for each in state.debts)
            return msgspec.structs.replace(state, debts=tuple(late)), ()
        case _:
            assert_never(event)


def _charge(state: Serving, event: _Charged, now_s: float, local_world_size: int) -> Serving:
    """Adds a debt. A repeated one keeps its first deadline, except for workers, which may come in portions."""
    match event:
        case node_messages.PrepareStore(cycle=of_cycle):
            return _owe(state, _debt("store", (of_cycle,), f"serve the store of cycle {of_cycle}", now_s, STORE_S))
        case node_messages.SpawnWorkers(assignment=assignment):
            return _owe_workers(state, assignment.cycle, range(local_world_size), now_s)
        case node_messages.RespawnWorkers(cycle=of_cycle, local_ranks=local_ranks):
            return _owe_workers(state, of_cycle, local_ranks, now_s)
        case node_messages.WorkerEndSeen(cycle=of_cycle, local_rank=local_rank):
            what = f"report the end of the process of local rank {local_rank}"
            return _owe(state, _debt("report", (of_cycle, local_rank), what, now_s, REPORT_S))
        case node_messages.KillTree(cycle=of_cycle):
            return _owe(state, _debt("empty", (of_cycle,), f"end what is left of cycle {of_cycle}", now_s, EMPTY_S))
        case node_messages.EndSpawner():
            return _owe(state, _debt("end", (), "end", now_s, END_S))
        case _:
            assert_never(event)


def _hear(state: Serving, event: _Heard, now_s: float) -> Serving:
    match event:
        case (
            node_messages.WorkerSpawned(cycle=of_cycle, local_rank=local_rank)
            | node_messages.SpawnFailed(cycle=of_cycle, local_rank=local_rank)
        ):
            return _paid_worker(state, of_cycle, local_rank, now_s)
        case node_messages.WorkerExited(cycle=of_cycle, exit=exit_):
            return _paid(state, "report", of_cycle, exit_.local_rank)
        case node_messages.StoreReady(cycle=of_cycle) | node_messages.StoreFailed(cycle=of_cycle):
            return _paid(state, "store", of_cycle)
        case node_messages.WorkersEmptied(cycle=of_cycle):
            # Nothing of the cycle is left, so neither its starts nor its ends are owed any more.
            kept = tuple(debt for debt in state.debts if debt.key[:1] != (of_cycle,) or debt.kind == "store")
            return msgspec.structs.replace(state, debts=kept)
        case _:
            assert_never(event)


def _kill(state: Serving, reason: str, now_s: float, job_id: str, cycle: int, *, is_fault: bool) -> Outcome:
    kill = node_messages.KillSpawner(job_id, reason)
    killing = Killing(state.number, reason, now_s + KILL_S)
    if not is_fault:
        return killing, (kill,)
    text = f"the spawner is killed with all that it has started: {reason}"
    return killing, (node_messages.Publish(job_id, JobEvent("spawner_killed", text, max(cycle, 0))), kill)


def _debt(kind: str, key: tuple[int, ...], what: str, now_s: float, limit_s: float) -> Debt:
    return Debt(kind, key, what, now_s, now_s + limit_s)


def _owe(state: Serving, debt: Debt) -> Serving:
    if any((each.kind, each.key) == (debt.kind, debt.key) for each in state.debts):
        return state
    return msgspec.structs.replace(state, debts=(*state.debts, debt))


def _owe_workers(state: Serving, cycle: int, local_ranks: Iterable[int], now_s: float) -> Serving:
    if not state.starts_workers:
        return state
    owed = frozenset(local_ranks).union(*(debt.local_ranks for debt in state.debts if _is_spawn(debt, cycle)))
    debt = msgspec.structs.replace(
        _debt("spawn", (cycle,), f"start the workers of cycle {cycle}", now_s, SPAWN_S), local_ranks=owed
    )
    return msgspec.structs.replace(state, debts=(*_paid(state, "spawn", cycle).debts, debt))


def _is_spawn(debt: Debt, cycle: int) -> bool:
    return (debt.kind, debt.key) == ("spawn", (cycle,))


def _paid(state: Serving, kind: str, *key: int) -> Serving:
    debts = tuple(debt for debt in state.debts if (debt.kind, debt.key) != (kind, key))
    return msgspec.structs.replace(state, debts=debts)


def _paid_worker(state: Serving, cycle: int, local_rank: int, now_s: float) -> Serving:
    """Notes an answer for one rank. The debt stands until every rank has one; a repeated answer counts once.

    A spawner that starts a thousand workers is busy, not silent: each start extends its other deadlines of this cycle.
    """
    if not any(_is_spawn(debt, cycle) and local_rank in debt.local_ranks for debt in state.debts):
        return state
    debts = tuple(_after_a_worker(debt, cycle, local_rank, now_s) for debt in state.debts)
    return msgspec.structs.replace(
        state, debts=tuple(debt for debt in debts if debt.kind != "spawn" or debt.local_ranks)
    )


def _after_a_worker(debt: Debt, cycle: int, local_rank: int, now_s: float) -> Debt:
    if _is_spawn(debt, cycle):
        return msgspec.structs.replace(debt, local_ranks=debt.local_ranks - {local_rank})
    if debt.kind in _PUT_OFF_S and debt.key[0] == cycle:
        return msgspec.structs.replace(debt, until_s=max(debt.until_s, now_s + _PUT_OFF_S[debt.kind]))
    return debt
