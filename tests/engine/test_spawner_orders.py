"""Does each action for the spawner become the matching order?"""

from __future__ import annotations

import pytest
from holdfast_wire import spawner_link as link

from supervisor.config import JobSpec
from supervisor.core.node import node_messages
from supervisor.engine.spawner_orders import SpawnerAction, order_of

SPEC = JobSpec("j", ("t.py",), master_addr="10.0.0.1", master_port=5)


def test_a_range_of_ports_goes_with_the_order() -> None:
    spec = JobSpec("j", ("t.py",), store_ports=(20_000, 20_999))
    order = order_of(node_messages.PrepareStore("j", 0), spec, now_s=0.5)
    assert order == link.PrepareStore(0, spec.master_addr, 0, first_port=20_000, last_port=20_999)


@pytest.mark.parametrize(
    ("action", "order"),
    [
        (node_messages.PrepareStore("j", 3), link.PrepareStore(3, "10.0.0.1", 5, serve=SPEC.agent_store)),
        (node_messages.ForkAhead("j", 3, 8), link.ForkAhead(3, 8)),
        (
            node_messages.SignalWorkers("j", 3, 15, (1,), tree=False, resume=True, sessions=(7,), grace_s=9.0),
            link.Signal(3, 15, (1,), False, True, (7,), 9.0),
        ),
        (node_messages.KillTree("j", 3), link.KillTree(3)),
        (node_messages.MoveFence("j", 1.5), link.Fence(1_500_000_000, 500_000_000)),
        (node_messages.EndSpawner("j"), link.End()),
    ],
)
def test_it_says_the_same(action: SpawnerAction, order: link.Order) -> None:
    assert order_of(action, SPEC, now_s=0.5) == order
