"""The earliest deadline is that of all machines; which coordinators moved is told once."""

from __future__ import annotations

from supervisor.core.cluster import coordinator
from supervisor.core.cluster.cluster_messages import JobOpened
from supervisor.core.facts import JobRules
from supervisor.core.node import node, node_messages
from supervisor.engine.engine_state import EngineState


def test_which_coordinators_moved_is_told_once() -> None:
    machines = EngineState("n0")
    led = coordinator.initial_state("j", leader="n0")
    machines.move("j", led)
    assert machines.coordinators == {"j": led}
    assert machines.take_moved() == {"j"}
    assert machines.take_moved() == set()


def test_the_next_deadline_is_the_earliest_of_all_machines() -> None:
    machines = EngineState("n0")
    assert machines.next_deadline_s() is None
    machines.node_state, _ = node.step(machines.node_state, node_messages.JobSubmitted(JobRules("j", 1)), now_s=1_000.0)
    of_node = machines.next_deadline_s()
    assert of_node is not None
    led, _ = coordinator.step(
        coordinator.initial_state("k", leader="n0"), JobOpened("n0", JobRules("k", 1)), now_s=0.0, jitter=0.5
    )
    machines.move("k", led)
    of_led = coordinator.next_deadline_s(led)
    assert of_led is not None
    assert machines.next_deadline_s() == min(of_led, of_node) == of_led
