"""Which nodes of a simulated call are lost, when does the machine learn of it, and when is each replaced?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.cluster import wrapped_call
from supervisor.core.node import local_call

if TYPE_CHECKING:
    from tests.core.simulated_call import SimulatedCall

NOTICED_S = 5.0


class NodeLosses:
    def __init__(self, world: SimulatedCall) -> None:
        self.lost: set[int] = set()  # their processes are dead, and send nothing more
        self._given_up: set[int] = set()  # by the machine: only then may another node take their place
        self._world = world

    def plan(self) -> None:
        """Plans which nodes are lost; the first node leads, and stays."""
        world = self._world
        for number in range(1, len(world.nodes)):
            if world.chance(world.odds.nodes_lost):
                world.after(world.random.uniform(0.5, 20), lambda number=number: self._lose(number))

    def _lose(self, number: int) -> None:
        """Loses a node, which the machine gives up later; a spare may exist by then, or come afterwards."""
        world = self._world
        members = tuple(range(number * world.per_node, (number + 1) * world.per_node))
        for member in members:
            rank = world.ranks[member]
            rank.alive, rank.connection, rank.waits_for_decision = False, 0, False
        self.lost.add(number)
        world.up[number].clear()
        has_spare = world.chance(0.5)

        def give_up() -> None:
            self._given_up.add(number)
            world.tell_machine(wrapped_call.RanksGone(f"node{number}", members, "was lost with its node", has_spare))

        def offer() -> None:
            if number in self._given_up:
                world.tell_machine(wrapped_call.RanksOffered(f"node{number}", members))

        world.after(NOTICED_S, give_up)
        world.after(NOTICED_S + world.random.uniform(0, 20), offer)

    def given_up(self) -> dict[int, str]:
        """Returns the ranks of the nodes that the call goes on without."""
        size = self._world.per_node
        return {
            member: "was lost with its node"
            for number in sorted(self._given_up)
            for member in range(number * size, (number + 1) * size)
        }

    def fill(self, numbers: set[int]) -> None:
        """Lets other nodes take these vacant places; starts their processes."""
        world = self._world
        for number in numbers & self._given_up:
            self._given_up.discard(number)
            self.lost.discard(number)
            world.nodes[number] = local_call.initial_state()
            first_rank = number * world.per_node
            world.tell_node(number, local_call.CycleBegun(first_rank, world.per_node, world.world_size))
