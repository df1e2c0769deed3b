"""Which machines does one job have on a node?"""

from __future__ import annotations

import msgspec

from supervisor.core import job_phases
from supervisor.core.node import (
    call_watch,
    gpu_reclaim,
    hang_response,
    local_call,
    node_check_round,
    rank_monitor,
    ranks_without_client,
    spawner_deadlines,
    worker_group,
)


class JobMachines(msgspec.Struct, frozen=True):
    """The machines of one job; `monitors` and `watches` by local rank, none before the first cycle."""

    job: job_phases.State
    group: worker_group.State
    hangs: hang_response.State
    calls: local_call.State = msgspec.field(default_factory=local_call.initial_state)
    spawner: spawner_deadlines.State = msgspec.field(default_factory=spawner_deadlines.initial_state)
    plain: ranks_without_client.State = msgspec.field(default_factory=ranks_without_client.initial_state)
    monitors: tuple[rank_monitor.State, ...] = ()
    watches: tuple[call_watch.State, ...] = ()
    fitness: node_check_round.State = msgspec.field(default_factory=node_check_round.initial_state)
    reclaim: gpu_reclaim.State = msgspec.field(default_factory=gpu_reclaim.initial_state)
    pauses: tuple[tuple[float, float], ...] = ()  # of this process: from, until
