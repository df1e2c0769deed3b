"""Do two groups of a simulated job ever train at the same time?"""

from __future__ import annotations

import signal as signals
from typing import TYPE_CHECKING

from supervisor.core.fence_times import FENCE_S
from supervisor.core.node import node_messages
from tests.sim.checker import Checker, Cycle, cycle_of
from tests.sim.faults import DATA_LOST, Fault

if TYPE_CHECKING:
    from tests.sim.host import Host
    from tests.sim.processes import Rank
    from tests.sim.world import World

SLACK_S = 0.5  # for a kill, on top of the spawner's own time
LEARNS_S = 2.0  # a leader that reaches the backend again has learned whether it still leads


class Exclusivity(Checker):
    """Two groups of one job never train at the same time.

    A stopped supervisor is no excuse: its spawner ends the workers. Exceptions are a node whose spawner does not
    answer, and a node that is stopped as a whole. A rank that is stuck in the kernel does not train. Nor can anybody
    know of a group that reaches neither the backend nor the other nodes while the backend loses its data (decision 21).
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._unknown: dict[Host, Host] = {}  # nodes of a group of which nobody can know, and their leader
        self._living: dict[Cycle, dict[Rank, None]] = {}
        self._killed_at_s: dict[Host, float] = {}  # when its spawner was last ordered to

    def fault(self, fault: Fault, *, is_harmful: bool) -> None:
        backend = self.world.backend
        if backend is None or fault.kind not in DATA_LOST:
            return
        for host in self.world.hosts.values():
            leader = host.voter.leader if host.voter is not None else None
            if leader is not None and not backend.answers(host) and not backend.answers(leader):
                self._unknown[host] = leader

    def signal(self, host: Host, action: node_messages.SignalWorkers | node_messages.KillTree) -> None:
        if isinstance(action, node_messages.KillTree) or action.signal == signals.SIGKILL:
            self._killed_at_s[host] = self.world.timeline.now_s

    def rank(self, rank: Rank) -> None:
        own = cycle_of(rank)
        for group, ranks in self._living.items():
            if group == own:
                continue
            beside = next((each for each in ranks if self._trains(each)), None)
            if beside is not None:
                self.complain(
                    f"rank {rank.rank} of cycle {rank.cycle} starts on {rank.host.name} beside rank {beside.rank} of "
                    f"cycle {beside.cycle} on {beside.host.name}"
                )
        self._living.setdefault(own, {})[rank] = None

    def rank_end(self, rank: Rank) -> None:
        own = cycle_of(rank)
        ranks = self._living.get(own, {})
        ranks.pop(rank, None)
        if not ranks:
            self._living.pop(own, None)

    def _trains(self, rank: Rank) -> bool:
        processes = rank.host.processes
        killed_at_s = self._killed_at_s.get(rank.host, 0.0)
        until_s = max(processes.silent_until_s, processes.frozen_until_s, killed_at_s)
        slack_s = SLACK_S + 3 * self.world.setup.answer_max_s
        if (leader := self._unknown.get(rank.host)) is not None and self.world.backend is not None:
            until_s = max(until_s, self.world.backend.answers_from_s(leader) + LEARNS_S + FENCE_S)
        return not rank.is_stuck and self.world.timeline.now_s > until_s + slack_s

    def end(self) -> None:
        for ranks in self._living.values():
            for rank in ranks:
                if not rank.is_stuck and rank.host.verdict is not None:
                    self.complain(f"rank {rank.rank} of cycle {rank.cycle} is left behind on {rank.host.name}")
