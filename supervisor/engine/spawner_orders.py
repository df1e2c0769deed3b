"""Which order to the spawner does an action of the machines become?"""

from __future__ import annotations

from typing import assert_never

from holdfast_wire import spawner_link as link

from supervisor.config import JobSpec
from supervisor.core.node import node_messages

SpawnerAction = (
    node_messages.PrepareStore
    | node_messages.ForkAhead
    | node_messages.SignalWorkers
    | node_messages.KillTree
    | node_messages.MoveFence
    | node_messages.EndSpawner
)


def order_of(action: SpawnerAction, spec: JobSpec, *, now_s: float) -> link.Order:
    match action:
        case node_messages.PrepareStore(cycle=cycle):
            first, last = spec.store_ports or (0, 0)
            return link.PrepareStore(
                cycle, spec.master_addr, spec.master_port, serve=spec.agent_store, first_port=first, last_port=last
            )
        case node_messages.ForkAhead(cycle=cycle, workers=workers):
            return link.ForkAhead(cycle, workers)
        case node_messages.SignalWorkers(_, cycle, signal, local_ranks, tree, resume, sessions, grace_s):
            return link.Signal(cycle, signal, local_ranks, tree, resume, sessions, grace_s)
        case node_messages.KillTree(cycle=cycle):
            return link.KillTree(cycle)
        case node_messages.MoveFence(until_s=until_s):
            return link.Fence(int(until_s * 1e9), int(now_s * 1e9))
        case node_messages.EndSpawner():
            return link.End()
        case _:
            assert_never(action)
