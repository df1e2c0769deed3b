"""Which time counts against no rank, no spawner and no node, because this process did not run?

If a whole job or machine is suspended, no clock stops, and each silence would be too long at once. So would the time
that a spawner takes for its answer, a rank for its end or for its return to a wrapped call, a check of the node, GPU
memory until it is free, or a leader for its answer to a node that leaves. Nobody can tell when the pause began, so it
counts from the last moment at which this process is known to have run: a hang is found later, but none is declared
early. The ranks' pages are read as if no time had passed meanwhile.
"""

from __future__ import annotations

from typing import TypeVar, assert_never

import msgspec

from supervisor.core import job_phases
from supervisor.core.node import (
    call_watch,
    gpu_reclaim,
    hang_response,
    local_call,
    node_check_round,
    node_messages,
    rank_monitor,
    ranks_without_client,
    spawner_deadlines,
    worker_group,
)
from supervisor.core.node.job_machines import JobMachines
from supervisor.core.rank_silence import moved_s, without_absences

PAUSES_MAX = 32  # beyond it two are joined; none is forgotten, since the oldest may be the one that lasted for an hour

E = TypeVar("E")


def noted(machines: JobMachines, pause: node_messages.ProcessPaused, now_s: float) -> JobMachines:
    """Returns the machines after a pause that has just ended."""
    monitors = (
        rank_monitor.step(each, rank_monitor.ProcessPaused(pause.since_s), now_s=now_s)[0] for each in machines.monitors
    )
    earlier, since_s, paused_s = machines.pauses, pause.since_s, now_s - pause.since_s
    if earlier and earlier[-1][1] >= since_s:  # It has not run in between, so this is the same pause.
        earlier, since_s = earlier[:-1], earlier[-1][0]
    return msgspec.structs.replace(
        machines,
        job=_asked_later(machines.job, pause.since_s, now_s),
        monitors=tuple(monitors),
        pauses=_joined((*earlier, (since_s, now_s)), now_s),
        spawner=_answered_later(machines.spawner, pause.since_s, now_s),
        group=_ended_later(machines.group, paused_s),
        plain=_told_later(machines.plain, paused_s),
        hangs=_examined_later(machines.hangs, paused_s),
        watches=tuple(_watched_later(each, paused_s) for each in machines.watches),
        calls=_called_later(machines.calls, paused_s),
        fitness=_checked_later(machines.fitness, pause.since_s, now_s),
        reclaim=_freed_later(machines.reclaim, paused_s),
    )


def without_pauses(machines: JobMachines, event: E) -> E:
    """Returns the event; if it has the progress of a rank, as if no time had passed during the pauses."""
    if isinstance(event, node_messages.ClientJoined | node_messages.ProgressRead):
        return msgspec.structs.replace(event, progress=without_absences(event.progress, machines.pauses))
    return event


def _joined(pauses: tuple[tuple[float, float], ...], now_s: float) -> tuple[tuple[float, float], ...]:
    """Returns at most PAUSES_MAX pauses that are as long in all: a silence may be found late, but never early.

    Of two neighbours, the earlier is moved to where the later begins. The time between them still counts as silence:
    else no hang would be found on a node that pauses every few seconds. Only a silence that began there, or in the
    earlier one, gets too much. The two are chosen where that is least for the age of such a silence.
    """
    if len(pauses) <= PAUSES_MAX:
        return pauses

    def inaccuracy(index: int) -> float:
        exact_until_s, exact_from_s = pauses[index - 1][1], pauses[index + 1][1]
        return (exact_from_s - exact_until_s) / (now_s - exact_until_s)

    index = min(range(1, len(pauses) - 1), key=inaccuracy)
    (lost_s, back_s), (since_s, until_s) = pauses[index : index + 2]
    return (*pauses[:index], (since_s - (back_s - lost_s), until_s), *pauses[index + 2 :])


def _asked_later(state: job_phases.State, since_s: float, now_s: float) -> job_phases.State:
    """Returns the state with the time left that a leader has to answer a node that leaves.

    A signal whose echo comes after the pause is still one request: a second one would kill ranks that have time left.
    A stop that no leader has heard is kept no longer than without the pause: the job may have gone on elsewhere.
    """
    leaving = state.leaving
    if leaving is not None and leaving.alone_at_s is not None:
        leaving = msgspec.structs.replace(leaving, alone_at_s=leaving.alone_at_s + now_s - since_s)
    signalled_at_s = moved_s(state.last_signal_at_s, [(since_s, now_s)])
    return msgspec.structs.replace(state, leaving=leaving, last_signal_at_s=signalled_at_s)


def _answered_later(state: spawner_deadlines.State, since_s: float, now_s: float) -> spawner_deadlines.State:
    match state:
        case spawner_deadlines.Serving(debts=debts):
            return msgspec.structs.replace(state, debts=tuple(_owed_later(each, since_s, now_s) for each in debts))
        case spawner_deadlines.Killing(until_s=until_s):
            killed_at_s = moved_s(until_s - spawner_deadlines.KILL_S, [(since_s, now_s)])
            return msgspec.structs.replace(state, until_s=killed_at_s + spawner_deadlines.KILL_S)
        case spawner_deadlines.Absent():
            return state
        case _:
            assert_never(state)


def _owed_later(debt: spawner_deadlines.Debt, since_s: float, now_s: float) -> spawner_deadlines.Debt:
    begun_s = moved_s(debt.since_s, [(since_s, now_s)])
    return msgspec.structs.replace(debt, since_s=begun_s, until_s=debt.until_s + begun_s - debt.since_s)


def _ended_later(state: worker_group.State, paused_s: float) -> worker_group.State:
    if isinstance(state, worker_group.Empty | worker_group.Prepared):
        return state
    workers = tuple(
        each if each.kill_at_s is None else msgspec.structs.replace(each, kill_at_s=each.kill_at_s + paused_s)
        for each in state.workers
    )
    state = msgspec.structs.replace(state, workers=workers)
    match state:
        case worker_group.Terminating(kill_at_s=kill_at_s, lingers_at_s=lingers_at_s, since_s=since_s):
            return msgspec.structs.replace(
                state,
                kill_at_s=kill_at_s + paused_s,
                lingers_at_s=None if lingers_at_s is None else lingers_at_s + paused_s,
                since_s=since_s + paused_s,
            )
        case worker_group.Starting(grace_until_s=float(until_s)) | worker_group.Running(grace_until_s=float(until_s)):
            return msgspec.structs.replace(state, grace_until_s=until_s + paused_s)
        case _:
            return state


def _told_later(state: ranks_without_client.State, paused_s: float) -> ranks_without_client.State:
    """Returns the state with the time that people read ranks have left, as the group has moved it."""
    ending = state.ending
    if ending.since_s is None:
        return state
    ending = msgspec.structs.replace(
        ending,
        since_s=ending.since_s + paused_s,
        until_s=ending.until_s + paused_s,
        looks_until_s=None if ending.looks_until_s is None else ending.looks_until_s + paused_s,
    )
    return msgspec.structs.replace(state, ending=ending)


def _examined_later(state: hang_response.State, paused_s: float) -> hang_response.State:
    if isinstance(state, hang_response.Examining | hang_response.Ending):
        return msgspec.structs.replace(state, until_s=state.until_s + paused_s)
    return state


def _watched_later(state: call_watch.State, paused_s: float) -> call_watch.State:
    """Returns the state with the time left that a rank has to end, or its stacks to come; its page is read anyway."""
    match state:
        case call_watch.Terminating(kill_at_s=kill_at_s):
            return call_watch.Terminating(kill_at_s + paused_s)
        case call_watch.Examining(until_s=until_s, due_at_s=due_at_s):
            return msgspec.structs.replace(state, until_s=until_s + paused_s, due_at_s=due_at_s + paused_s)
        case _:
            return state


def _called_later(state: local_call.State, paused_s: float) -> local_call.State:
    """Returns the state with the time left that ranks without a connection have to come back."""
    ranks = tuple(
        each if each.away_until_s is None else msgspec.structs.replace(each, away_until_s=each.away_until_s + paused_s)
        for each in state.ranks
    )
    return msgspec.structs.replace(state, ranks=ranks)


def _checked_later(state: node_check_round.State, since_s: float, now_s: float) -> node_check_round.State:
    def moved(begun_s: float) -> float:
        return moved_s(begun_s, [(since_s, now_s)])

    standings = tuple(
        each if each.begun_s is None else msgspec.structs.replace(each, begun_s=moved(each.begun_s))
        for each in state.standings
    )
    under_way = state.round and msgspec.structs.replace(state.round, begun_s=moved(state.round.begun_s))
    return msgspec.structs.replace(state, standings=standings, round=under_way)


def _freed_later(state: gpu_reclaim.State, paused_s: float) -> gpu_reclaim.State:
    waits = state.waits
    if waits is None:
        return state
    waits = msgspec.structs.replace(waits, until_s=waits.until_s + paused_s, answer_by_s=waits.answer_by_s + paused_s)
    return msgspec.structs.replace(state, waits=waits)
