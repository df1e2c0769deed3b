"""Which news does a job not hear before the memory of its GPUs is free? That nothing of its cycle is left.

Stands before the other machines of the job. What the spawner owes is paid with the news itself.
"""

from __future__ import annotations

import msgspec

from supervisor.core import job_phases
from supervisor.core.node import gpu_reclaim, spawner_watch
from supervisor.core.node.job_machines import JobMachines
from supervisor.core.node.messages import Action, WorkersEmptied

# What the job hears now: None, nothing.
Outcome = tuple[JobMachines, tuple[Action, ...], WorkersEmptied | None]


def holds(machines: JobMachines) -> bool:
    """Whether the end of a cycle is to wait here: only where another one follows."""
    return machines.reclaim.rules is not None and job_phases.is_to_go_on(machines.job)


def is_in_vain(machines: JobMachines) -> bool:
    """Whether it waits although no other cycle follows any more."""
    return machines.reclaim.waits is not None and not job_phases.is_to_go_on(machines.job)


def step(machines: JobMachines, event: gpu_reclaim.Event, now_s: float) -> Outcome:
    actions: list[Action] = []
    if isinstance(event, gpu_reclaim.CycleEmptied):
        watch, owed = spawner_watch.step(
            machines.spawner, event.emptied, now_s=now_s, cycle=machines.job.cycle, rules=machines.job.rules
        )
        actions += [each for each in owed if not isinstance(each, spawner_watch.GiveUp)]
        machines = msgspec.structs.replace(machines, spawner=watch)
    state, more = gpu_reclaim.step(machines.reclaim, event, now_s=now_s)
    machines = msgspec.structs.replace(machines, reclaim=state)
    emptied: WorkersEmptied | None = None
    for action in more:
        if isinstance(action, gpu_reclaim.LetGo):
            emptied = action.emptied
        else:
            actions.append(action)
    return machines, tuple(actions), emptied
