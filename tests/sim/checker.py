"""What does a promise see of a simulated run, and how does it complain?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from supervisor.core.cluster import coordinator
from supervisor.core.facts import JobEvent, Verdict
from supervisor.core.node import node_messages
from supervisor.core.orders import Order
from tests.sim.faults import Fault

if TYPE_CHECKING:
    from tests.sim.host import Host
    from tests.sim.processes import Rank
    from tests.sim.world import World


class Checker:
    """Watches events, and reports violations to the world."""

    def __init__(self, world: World) -> None:
        self.world = world

    def spawn(self, host: Host, action: node_messages.SpawnWorkers) -> None: ...
    def rank(self, rank: Rank) -> None: ...
    def rank_end(self, rank: Rank) -> None: ...
    def signal(self, host: Host, action: node_messages.SignalWorkers | node_messages.KillTree) -> None: ...
    def event(self, host: Host, event: JobEvent) -> None: ...
    def order(self, leader: Host, term: int, name: str, order: Order) -> None: ...
    def decision(self, state: coordinator.State, event: JobEvent) -> None: ...
    def verdict(self, host: Host, verdict: Verdict) -> None: ...
    def fault(self, fault: Fault, *, is_harmful: bool) -> None: ...
    def silence(self, host: Host, arrived_s: float, *, is_loss: bool) -> None: ...
    def fence(self, host: Host, known_s: float, heard_s: float) -> None: ...
    def end(self) -> None: ...

    def complain(self, text: str) -> None:
        self.world.complain(type(self).__name__, text)


class Listeners:
    """Which checker watches what: an event costs nothing to the others."""

    def __init__(self, checkers: Sequence[Checker]) -> None:
        def of(name: str) -> list[Any]:
            return [getattr(each, name) for each in checkers if getattr(type(each), name) is not getattr(Checker, name)]

        self.spawn, self.rank, self.rank_end, self.signal = of("spawn"), of("rank"), of("rank_end"), of("signal")
        self.event, self.order, self.decision = of("event"), of("order"), of("decision")
        self.verdict, self.fault, self.silence = of("verdict"), of("fault"), of("silence")
        self.fence = of("fence")


Cycle = tuple[int, int, int]  # run, history and cycle: a later run counts its cycles from 0 again


def cycle_of(rank: Rank) -> Cycle:
    return rank.run_number, rank.history, rank.cycle
