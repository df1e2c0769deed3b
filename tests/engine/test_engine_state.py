"""The earliest deadline is that of all machines; which coordinators moved is told once."""

from __future__ import annotations

from supervisor.core.cluster import coordinator
from supervisor.core.cluster.cluster_messages import JobOpened
from supervisor.core.facts import JobRules
from supervisor.core.node import node, node_messages
from supervisor.engine.engine_state import EngineState


def test_which_coordinators_moved_is_told_once() -> None:
    engine_state = EngineState("n0")
    led = coordinator.initial_state("j", leader="n0")
    engine_state.move("j", led)
    assert engine_state.coordinators == {"j": led}
    assert engine_state.take_moved() == {"j"}
    assert engine_state.take_moved() == set()


def test_the_next_deadline_is_the_earliest_of_all_machines() -> None:
    engine_state = EngineState("n0")
    assert engine_state.next_deadline_s() is None
    engine_state.node_state, _ = node.step(
        engine_state.node_state, node_messages.JobSubmitted(JobRules("j", 1)), now_s=1_000.0
    )
    of_node = engine_state.next_deadline_s()
    assert of_node is not None
    led, _ = coordinator.step(
        coordinator.initial_state("k", leader="n0"), JobOpened("n0", JobRules("k", 1)), now_s=0.0, jitter=0.5
    )
    engine_state.move("k", led)
    of_led = coordinator.next_deadline_s(led)
    assert of_led is not None
    assert engine_state.next_deadline_s() == min(of_led, of_node) == of_led
