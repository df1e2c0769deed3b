"""May a simulated job begin a cycle again that an earlier leader has ordered already, or end as if it had not begun?

Only a backend that has lost data allows it, and only while no process that knows better can tell the leader: each one
has ended, stands still, can't reach the backend and the leader, or has a slow link, by which a connection may take too
long. A leader may also know a ledger from before the loss, and go on with that one. What was ordered before is then
another history of the same run, and its cycles are others. Processes of both never train at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from supervisor.core.fence_times import TAKE_OVER_S
from supervisor.core.orders import StartCycle
from tests.sim.network import Path
from tests.sim.setup import JOB

if TYPE_CHECKING:
    from tests.sim.host import Host
    from tests.sim.world import World

Era = int  # how often the backend has lost data


@dataclass
class _Newest:
    """The newest cycle of a history."""

    cycle: int = -1
    era: Era = 0
    parts: dict[int, str] = field(default_factory=dict[int, str])  # nodes by group rank
    size: int = 0


class Histories:
    """`of_term` says to which history the orders of a leader belong."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.count = 1
        self.of_term: dict[int, int] = {}
        self._newest: dict[tuple[int, int], _Newest] = {}  # by run and history
        self._ended: dict[tuple[int, int], Era] = {}  # the same: in which era a leader has said so
        self._ended_by: set[int] = set()  # terms

    def lead(self, term: int) -> None:
        self.of_term[term] = self.count - 1

    def order(self, leader: Host, term: int, name: str, order: StartCycle, *, begins: bool) -> None:
        """Notes the order. `begins`: this leader knows of no cycle at all."""
        world, part = self._world, order.assignment
        run, era = world.run_of_term.get(term, 0), world.era_of_term.get(term, 0)
        newest = self._newest.setdefault((run, self.of_term.setdefault(term, 0)), _Newest())
        is_of_before = world.era_known_of.get(term, era) < newest.era
        known_as = newest.parts.get(part.group_rank, name), newest.size
        is_again = part.cycle == newest.cycle and (begins or known_as != (name, part.group_world_size))
        if part.cycle < newest.cycle or is_again:
            if (era > newest.era or is_of_before) and not self._knows_better(leader, run, part.cycle):
                self.of_term[term] = self.count
                self.count += 1
                newest = self._newest[run, self.of_term[term]] = _Newest()
            elif begins:
                world.complain("forgotten", f"{leader.name} begins the job again in term {term}")
        if part.cycle > newest.cycle:
            newest.cycle, newest.era, newest.size = part.cycle, era, part.group_world_size
            newest.parts = {}
        newest.parts[part.group_rank] = name

    def conclude(self, leader: Host, term: int) -> None:
        """Notes how a leader that knows of no cycle ends the job. What it can't know of is another history, too."""
        if term in self._ended_by:
            return
        world = self._world
        run, era = world.run_of_term.get(term, 0), world.era_of_term.get(term, 0)
        newest = self._newest.get((run, self.of_term[term]), _Newest())
        ended = self._ended.get((run, self.of_term[term]), 0)
        is_unknown = era > newest.era if newest.cycle >= 0 else world.era_known_of.get(term, era) < ended
        if is_unknown and not self._knows_better(leader, run, 0):
            self.of_term[term] = self.count
            self.count += 1
        self._ended_by.add(term)
        self._ended[run, self.of_term[term]] = era

    def _knows_better(self, leader: Host, run: int, cycle: int) -> Host | None:
        """Returns a process that knows that this cycle has begun, and could have told the leader."""
        return next(
            (
                host
                for host in self._world.hosts.values()
                if host is not leader and host.run_number == run and _cycle_of(host) >= cycle
                if self._can_tell(host, leader)
            ),
            None,
        )

    def _can_tell(self, host: Host, leader: Host) -> bool:
        """Returns whether nothing has been in the way for as long as a new leader waits for the nodes."""
        world = self._world
        if host.is_dead or host.verdict is not None:
            return False
        since_s = max(
            host.paused_until_s,
            host.reach.backend_from_s,
            host.reach.slow_until_s,
            leader.reach.slow_until_s,
            world.backend.lost_until_s if world.backend is not None else 0.0,
            Path(world, host, leader).open_from_s,
            Path(world, leader, host).open_from_s,
        )
        return world.timeline.now_s >= since_s + TAKE_OVER_S


def _cycle_of(host: Host) -> int:
    return host.state.jobs[JOB].job.cycle if JOB in host.state.jobs else -1
