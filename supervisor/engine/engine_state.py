"""What is the state of the machines of this supervisor's jobs?

Only the engine's loop writes it. What performs, keeps or shows it reads it, and is made before the loop.
"""

from __future__ import annotations

from supervisor.core.cluster import coordinator
from supervisor.core.node import node


class EngineState:
    """The node's machines, and the coordinators of the jobs that it leads."""

    def __init__(self, node_name: str) -> None:
        self.node_name = node_name
        self.node_state = node.initial_state(node_name)
        self.coordinators: dict[str, coordinator.State] = {}
        self._moved: set[str] = set()

    def move(self, job_id: str, led: coordinator.State) -> None:
        """Sets the state of a job's coordinator after a decision."""
        self.coordinators[job_id] = led
        self._moved.add(job_id)

    def take_moved(self) -> set[str]:
        """Returns the jobs whose coordinator has moved since the last call."""
        moved, self._moved = self._moved, set()
        return moved

    def next_deadline_s(self) -> float | None:
        deadlines = [node.next_deadline_s(self.node_state)]
        deadlines += [coordinator.next_deadline_s(state) for state in self.coordinators.values()]
        return min((each for each in deadlines if each is not None), default=None)
