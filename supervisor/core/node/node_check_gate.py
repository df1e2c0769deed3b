"""When is this node checked for a job, and what does the leader hear of it until the answer is there?

The gate comes after the other machines of the job (job_fold.py): it sees the job's new state and its reports.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from supervisor.core import job_phases
from supervisor.core.cluster.cluster_messages import (
    MemberState,
    NodeDown,
    NodeExcluded,
    NodeFailed,
    NodeJoined,
    NodeStands,
    NodeStopped,
    VerdictTaken,
)
from supervisor.core.node import node_check_round
from supervisor.core.node.job_machines import JobMachines
from supervisor.core.node.node_messages import Action, StartSpawner, TellCoordinator

Outcome = tuple[JobMachines, tuple[Action, ...]]


def open_gate(before: JobMachines | None, after: JobMachines, actions: Sequence[Action], now_s: float) -> Outcome:
    """Returns the job's actions, without those that wait for a check, and with those that follow from one."""
    if not after.fitness.standings:
        return after, tuple(actions)
    through: list[Action] = []
    was_to_go_on = before is not None and job_phases.is_to_go_on(before.job)
    if job_phases.is_to_go_on(after.job) and not was_to_go_on:
        after = _step(after, node_check_round.RoundBegun(), now_s, through)
    for action in actions:
        match action:
            case TellCoordinator(report=NodeJoined() as joined):
                after = _step(after, node_check_round.JoinWanted(joined), now_s, through)
                continue
            case TellCoordinator(report=NodeDown() | NodeStopped() | NodeFailed() | VerdictTaken()):
                after = _step(after, node_check_round.JoinDropped(), now_s, through)
            case StartSpawner():
                after = _step(after, node_check_round.RoundBegun(), now_s, through)
            case TellCoordinator(report=NodeStands(state=MemberState.JOINED) as stands) if (
                after.fitness.joins is not None
            ):
                opened = msgspec.structs.replace(stands, state=MemberState.OPENED)
                action = TellCoordinator(after.job.rules.job_id, opened)
            case _:
                pass
        through.append(action)
    if job_phases.verdict_of(after.job) is not None and not after.fitness.is_over:
        after = _step(after, node_check_round.JobOver(), now_s, through)
    return after, tuple(through)


def take(machines: JobMachines, event: node_check_round.Event, now_s: float) -> Outcome:
    actions: list[Action] = []
    return _step(machines, event, now_s, actions), tuple(actions)


def _step(machines: JobMachines, event: node_check_round.Event, now_s: float, actions: list[Action]) -> JobMachines:
    life = machines.job
    state, more = node_check_round.step(
        machines.fitness, event, now_s=now_s, job_id=life.rules.job_id, node=life.node, cycle=life.cycle
    )
    actions += more
    for action in more:
        match action:
            case TellCoordinator(report=NodeExcluded(reason=reason)):
                life = msgspec.structs.replace(life, excluded=life.excluded or reason)
            case _:
                pass
    return msgspec.structs.replace(machines, job=life, fitness=state)
