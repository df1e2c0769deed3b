"""One simulated job on many nodes: the production core, unchanged, in one heap of (time, what).

Messages go to the node that they are for, and each node has one timer, so an event costs the same however many nodes
there are. What is wrong is written to `complaints` by the checkers. The same setup and schedule give the same run.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from supervisor.core.cluster import coordinator
from supervisor.core.facts import JobEvent, Verdict
from supervisor.core.node import messages
from supervisor.simulation.timeline import Timeline
from tests.sim import checkers
from tests.sim.faults import Fault
from tests.sim.host import Host
from tests.sim.network import Link
from tests.sim.processes import Rank
from tests.sim.setup import Setup
from tests.sim.striking import strike

BEYOND_S = 5000.0  # after the last fault, by when every run has ended
STORY_MAX = 400  # events kept for the report of a failure


class World:
    """`run()` plays the job to its end on all nodes."""

    def __init__(self, setup: Setup, schedule: Sequence[Fault]) -> None:
        self.setup = setup
        self.schedule = schedule
        self.random = random.Random(f"world {setup.seed}")
        self.timeline = Timeline()
        self.complaints: list[str] = []
        self.story: list[tuple[float, str, JobEvent]] = []
        self.struck: list[Fault] = []
        self.links: dict[str, Link] = {}
        self.hosts = {name: Host(self, name, self.clock(index)) for index, name in enumerate(setup.names)}
        self.leader = self.hosts[setup.names[0]]
        self.leader.lead()
        self.lost: set[Host] = set()  # given up by the leader
        self.checkers = checkers.all_of(self)
        self._pids = 100
        self._undecided = set(self.hosts.values())

    def clock(self, index: int) -> tuple[float, float]:
        return self.setup.clocks[index] if self.setup.clocks else (0.0, 1.0)

    def chance(self, odds: float) -> bool:
        return self.random.random() < odds

    def next_pid(self) -> int:
        self._pids += 1
        return self._pids

    def run(self) -> World:
        for host in self.hosts.values():
            self.submit(host, self.random.uniform(0.0, 0.5))
        for fault in self.schedule:
            self.timeline.at(fault.at_s, lambda fault=fault: strike(self, fault))
        end_s = max([self.setup.horizon_s, *(fault.is_over_s for fault in self.schedule)]) + BEYOND_S
        end_s += self.setup.life_s[1]
        liveness = next(each for each in self.checkers if isinstance(each, checkers.Liveness))
        while not self._is_over():
            liveness.look()
            if not self.timeline.happen():
                self.complain("liveness", "nothing happens any more")
                break
            if self.timeline.now_s > end_s:
                self.complain("liveness", "the job does not end")
                break
        for checker in self.checkers:
            checker.end()
        return self

    def submit(self, host: Host, delay_s: float) -> None:
        if host is not self.leader:
            host.link = self.links[host.name] = Link(self, self.leader, host)
        self.timeline.after(delay_s, lambda: host.take(messages.JobSubmitted(self.setup.rules)))

    def replace(self, name: str) -> None:
        """A new process of that name, after a crash."""
        self._undecided.discard(self.hosts[name])
        host = self.hosts[name] = Host(self, name, self.clock(self.setup.names.index(name)))
        self._undecided.add(host)
        self.submit(host, 0.0)

    def bury(self, host: Host) -> None:
        self._undecided.discard(host)

    def links_of(self, host: Host) -> list[Link]:
        if host is self.leader:
            return list(self.links.values())
        return [host.link] if host.link is not None else []

    def _is_over(self) -> bool:
        return not self._undecided and (self.leader.is_dead or self.leader.is_led_to_its_end)

    # --- what the checkers look at

    def complain(self, checker: str, text: str) -> None:
        self.complaints.append(f"{checker}: {text}, at {self.timeline.now_s:.3f} s")

    def note_event(self, host: Host, event: JobEvent) -> None:
        self._tell(host.name, event)
        for checker in self.checkers:
            checker.event(host, event)

    def note_decision(self, state: coordinator.State, event: JobEvent) -> None:
        self._tell("coordinator", event)
        for checker in self.checkers:
            checker.decision(state, event)

    def _tell(self, who: str, event: JobEvent) -> None:
        if len(self.story) < STORY_MAX:
            self.story.append((self.timeline.now_s, who, event))

    def note_verdict(self, host: Host, verdict: Verdict) -> None:
        self._undecided.discard(host)
        for checker in self.checkers:
            checker.verdict(host, verdict)

    def note_loss(self, host: Host) -> None:
        self.lost.add(host)

    def note_spawn(self, host: Host, action: messages.SpawnWorkers) -> None:
        for checker in self.checkers:
            checker.spawn(host, action)

    def note_rank(self, rank: Rank) -> None:
        for checker in self.checkers:
            checker.rank(rank)

    def note_rank_end(self, rank: Rank) -> None:
        for checker in self.checkers:
            checker.rank_end(rank)

    def note_signal(self, host: Host, action: messages.SignalWorkers | messages.KillTree) -> None:
        for checker in self.checkers:
            checker.signal(host, action)

    def note_fault(self, fault: Fault) -> None:
        self.struck.append(fault)
