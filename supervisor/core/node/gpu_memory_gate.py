"""Which events are held back from a job until the memory of its GPUs is free?

They are the end of its cycle's last process, and the readiness of a spawner that replaces a lost one. The gate comes
before the other machines of the job. The event itself, even held back, settles what the spawner owes.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from supervisor.core import job_phases
from supervisor.core.node import gpu_reclaim, spawner_deadlines
from supervisor.core.node.job_machines import JobMachines
from supervisor.core.node.node_messages import Action, Event, SpawnerReady, StartSpawner, WorkersEmptied

# The last item is the event that the job gets now; None: none.
Outcome = tuple[JobMachines, tuple[Action, ...], gpu_reclaim.Held | None]


def held_back(machines: JobMachines, event: Event) -> gpu_reclaim.Event | None:
    """Returns the event that waits here; None: it passes. The end of a cycle waits only if another one follows."""
    match event:
        case WorkersEmptied() if machines.reclaim.rules is not None and job_phases.is_to_go_on(machines.job):
            return gpu_reclaim.CycleEmptied(event)
        case SpawnerReady() if machines.reclaim.waits is not None and isinstance(
            machines.job.phase, job_phases.Pending
        ):  # Otherwise a successor is ready, and the job does not wait for it.
            return gpu_reclaim.SpawnerCame(event)
        case _:
            return None


def begun(machines: JobMachines, actions: Sequence[Action]) -> gpu_reclaim.Event | None:
    """Begins a wait after a lost spawner, too, because its workers may also leave memory behind."""
    life = machines.job
    if machines.reclaim.rules is None or life.cycle < 0 or not any(isinstance(each, StartSpawner) for each in actions):
        return None
    return gpu_reclaim.SpawnerReplaced(life.rules.job_id, life.cycle)


def is_in_vain(machines: JobMachines) -> bool:
    """Returns whether the gate waits although no other cycle follows any more."""
    if machines.reclaim.waits is None:
        return False
    is_without_spawner = isinstance(machines.job.phase, job_phases.Down | job_phases.Pending)
    return not is_without_spawner and not job_phases.is_to_go_on(machines.job)


def step(machines: JobMachines, event: gpu_reclaim.Event, now_s: float) -> Outcome:
    actions: list[Action] = []
    if isinstance(event, gpu_reclaim.CycleEmptied | gpu_reclaim.SpawnerCame):
        paid = event.emptied if isinstance(event, gpu_reclaim.CycleEmptied) else event.ready
        watch, owed = spawner_deadlines.step(
            machines.spawner, paid, now_s=now_s, cycle=machines.job.cycle, rules=machines.job.rules
        )
        actions += [each for each in owed if not isinstance(each, spawner_deadlines.GiveUp)]
        machines = msgspec.structs.replace(machines, spawner=watch)
    state, more = gpu_reclaim.step(machines.reclaim, event, now_s=now_s, node=machines.job.node)
    machines = msgspec.structs.replace(machines, reclaim=state)
    held: gpu_reclaim.Held | None = None
    for action in more:
        if isinstance(action, gpu_reclaim.LetGo):
            held = action.held
        else:
            actions.append(action)
    return machines, tuple(actions), held
