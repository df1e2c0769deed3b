"""One simulated job on many nodes: the unchanged production core, in one heap of (time, what).

Messages go directly to their node, and each node has one timer, so an event costs the same for any number of nodes. The
checkers write violations to `complaints`. The same setup and schedule give the same run.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from supervisor.core.cluster import coordinator
from supervisor.core.cluster.coordinator_states import Running
from supervisor.core.facts import JobEvent, Verdict
from supervisor.core.leader_ledger import Former, Ledger
from supervisor.core.node import node_messages
from supervisor.core.orders import Conclude, Order, StartCycle
from supervisor.programs.simulation.simulated_timeline import Timeline
from tests.sim import checker, checkers
from tests.sim.backend import Backend
from tests.sim.faults import CUTS, DATA_LOST, Fault, Kind, harmless_s
from tests.sim.following import Client
from tests.sim.histories import Histories
from tests.sim.host import Host
from tests.sim.processes import Rank
from tests.sim.setup import Setup
from tests.sim.striking import strike
from tests.sim.voting import Voter

BEYOND_S = 5000.0  # after the last fault; every run has ended by then
PROMPT_S = 0.1
HARMLESS_TO_LEADER_S = 1.0
ORDERS_ARRIVE_S = 3.0
TOUCHES_S = 3.0  # two interruptions this close count as one
EVENT_LOG_MAX = 400  # events kept for a failure's report


class World:
    """`run()` plays the job to its end on all nodes."""

    def __init__(self, setup: Setup, schedule: Sequence[Fault]) -> None:
        self.setup = setup
        self.schedule = schedule
        self.random = random.Random(f"world {setup.seed}")
        self.timeline = Timeline()
        self.complaints: list[str] = []
        self.event_log: list[tuple[float, str, JobEvent]] = []
        self.struck: list[Fault] = []
        self.clients: dict[str, Client] = {}  # of the leader, if it is not elected, by node
        self.hosts = {name: Host(self, name, self.clock(index)) for index, name in enumerate(setup.names)}
        self.backend = Backend(self) if setup.is_elected else None
        self._leader = self.hosts[setup.names[0]]  # or the last one
        if self.backend is None:
            self._leader.lead()
        self.lost: set[Host] = set()  # given up by the leader
        self.checkers = checkers.all_of(self)
        self._told = checker.Listeners(self.checkers)
        self._pids = 100
        self._processes = 0
        self._passing: list[Fault] = []
        self._undecided = set(self.hosts.values())
        self.run_of_term: dict[int, int] = {}
        self.era_of_term: dict[int, int] = {}  # of the backend's data
        self.era_known_of: dict[int, int] = {}  # by term: of the ledger with which its leader began
        self.era_before_run: dict[int, int] = {}  # of the leader that said how the run before has ended
        self.histories = Histories(self)
        self.ordered_s = -math.inf  # the last part of a cycle
        self._starters: set[int] = set()  # terms whose leader has found or ordered a cycle
        self._run_after: dict[int, int] = {}  # the last term of a run, and the next run
        self.had_ended = False

    @property
    def leader(self) -> Host:
        if self.backend is not None and self.backend.leader is not None:
            self._leader = self.backend.leader.leader_term.host
        return self._leader

    def clock(self, index: int) -> tuple[float, float]:
        return self.setup.clocks[index] if self.setup.clocks else (0.0, 1.0)

    def chance(self, odds: float) -> bool:
        return self.random.random() < odds

    def next_process(self) -> int:
        self._processes += 1
        return self._processes

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
        timeline = self.timeline
        while self._undecided or not self._is_led_to_its_end:
            liveness.look()
            if not timeline.happen():
                self.complain("liveness", "nothing happens any more")
                break
            if timeline.now_s > end_s:
                self.complain("liveness", "the job does not end")
                break
        for each in self.checkers:
            each.end()
        return self

    def submit(self, host: Host, delay_s: float) -> None:
        if self.backend is not None:
            host.voter = Voter(host, self.backend)
        elif host is not self._leader:
            client = self.clients[host.name] = host.follow(self._leader)
            join_timeout_s = self.setup.rules.rendezvous.join_timeout_s
            self.timeline.after(delay_s, lambda: host.receive(lambda: client.begin(join_timeout_s)))
        self.timeline.after(delay_s, lambda: host.take(node_messages.JobSubmitted(self.setup.rules)))

    def replace(self, name: str) -> None:
        """Starts a new process of that name after a crash. The network belongs to the machine."""
        former = self.hosts[name]
        self._undecided.discard(former)
        host = self.hosts[name] = Host(self, name, self.clock(self.setup.names.index(name)))
        host.reach = former.reach
        self._undecided.add(host)
        self.submit(host, 0.0)

    def bury(self, host: Host) -> None:
        self._undecided.discard(host)

    @property
    def _is_led_to_its_end(self) -> bool:
        return self.backend is not None or self._leader.is_dead or self._leader.is_led_to_its_end

    # --- what the checkers look at

    def complain(self, checker: str, text: str) -> None:
        self.complaints.append(f"{checker}: {text}, at {self.timeline.now_s:.3f} s")

    def note_event(self, host: Host, event: JobEvent) -> None:
        self._tell(host.name, event)
        for each in self._told.event:
            each(host, event)

    def note_decision(self, state: coordinator.State, event: JobEvent) -> None:
        self._tell("coordinator", event)
        for each in self._told.decision:
            each(state, event)

    def _tell(self, who: str, event: JobEvent) -> None:
        if len(self.event_log) < EVENT_LOG_MAX:
            self.event_log.append((self.timeline.now_s, who, event))

    def note_verdict(self, host: Host, verdict: Verdict) -> None:
        self._undecided.discard(host)
        self.had_ended |= not host.lost_leader  # else it ends alone, and the job may go on
        for each in self._told.verdict:
            each(host, verdict)

    def note_lead(self, leader: Host, term: int, ledger: Ledger, former: Former | None) -> None:
        """Notes a leader. A process that saw no end may use the job's id again: that is another run."""
        newest, era = max(self.run_of_term.values(), default=0), self.backend.era if self.backend is not None else 0
        if former is not None:
            newest = self._run_after.setdefault(former.term, newest + 1)
            self.era_before_run[newest] = self.era_of_term.get(former.term, 0)
        elif self.had_ended and ledger == Ledger():  # nothing is known of the previous run any more
            newest += 1
            self.era_before_run[newest] = era
        else:
            leader.newest_era = era
        self.run_of_term[term] = newest
        self.histories.lead(term)
        if ledger.cycle >= 0:
            self._starters.add(term)  # nodes that the order did not reach get it again
        self.era_of_term[term] = era
        self.era_known_of[term] = self.era_of_term.get(ledger.term, era)

    def note_meeting(self, host: Host, term: int) -> None:
        if host.first_run is None:
            host.first_run = self.run_of_term[term]
        if host.first_run == self.run_of_term[term]:
            host.newest_era = max(host.newest_era, self.era_of_term[term])

    def note_order(self, leader: Host, term: int, name: str, order: Order) -> None:
        if isinstance(order, StartCycle):
            self.histories.order(leader, term, name, order, begins=term not in self._starters)
            self.ordered_s = self.timeline.now_s
            self._starters.add(term)
            host = self.hosts[name]
            host.run_number, host.history = self.run_of_term.get(term, 0), self.histories.of_term[term]
        elif isinstance(order, Conclude) and term in self.run_of_term and term not in self._starters:
            self.histories.conclude(leader, term)
        for each in self._told.order:
            each(leader, term, name, order)

    def note_silence(self, host: Host, arrived_s: float, *, is_loss: bool = False) -> None:
        """Notes that this host ends a connection for its silence, or gives up a node. `arrived_s`: see Stream."""
        for each in self._told.silence:
            each(host, arrived_s, is_loss=is_loss)

    def note_fence(self, host: Host, known_s: float, heard_s: float) -> None:
        """Notes from when the fence of this node counts, and when its leader last heard it."""
        for each in self._told.fence:
            each(host, known_s, heard_s)

    def note_loss(self, host: Host) -> None:
        self.lost.add(host)

    def note_spawn(self, host: Host, action: node_messages.SpawnWorkers) -> None:
        for each in self._told.spawn:
            each(host, action)

    def note_rank(self, rank: Rank) -> None:
        for each in self._told.rank:
            each(rank)

    def note_rank_end(self, rank: Rank) -> None:
        for each in self._told.rank_end:
            each(rank)

    def note_signal(self, host: Host, action: node_messages.SignalWorkers | node_messages.KillTree) -> None:
        for each in self._told.signal:
            each(host, action)

    def note_fault(self, fault: Fault) -> None:
        is_harmful = fault.is_harmful or self._lasts_too_long(fault) or self._adds_up(fault)
        is_harmful |= fault.kind in DATA_LOST and self._is_between_cycles
        is_harmful |= fault.is_of_election and self._is_split
        self.struck.append(fault)
        for each in self._told.fault:
            each(fault, is_harmful=is_harmful)

    @property
    def _is_split(self) -> bool:
        """Returns whether a node is cut off now, which the next election may choose."""
        return any(each.kind in CUTS and each.at_s + each.lasts_s > self.timeline.now_s for each in self.struck)

    @property
    def _is_between_cycles(self) -> bool:
        """Returns whether the ledger knows what no node does: which node has its order, or which restart counts."""
        state = self.leader.coordinator
        runs = state is not None and isinstance(state.phase, Running)
        leader_term = self.leader.voter.leader_term if self.leader.voter is not None else None
        waits = leader_term is not None and leader_term.order_waits_s > 0.0  # for the ledger
        return not runs or waits or self.timeline.now_s < self.ordered_s + ORDERS_ARRIVE_S

    def _lasts_too_long(self, fault: Fault) -> bool:
        """Returns whether the fault is too long. A slow spawner leaves less time, and so does another election."""
        if fault.kind is Kind.SLOW_LINK:
            return bool(self.setup.fan_out)  # finding another way takes more messages than there is time for
        if not fault.passes:
            return False
        most_s = harmless_s(self.setup) - (self.setup.answer_max_s if self.setup.answer_max_s > PROMPT_S else 0.0)
        if self.backend is not None and self.leader.name in fault.nodes:
            most_s = min(most_s, HARMLESS_TO_LEADER_S)
        return fault.lasts_s > most_s

    def _adds_up(self, fault: Fault) -> bool:
        """Returns whether a short fault follows a similar one so closely that both together are too long."""
        if not fault.passes and not fault.is_of_election and fault.kind is not Kind.SLOW_LINK:
            return False
        self._passing = [each for each in self._passing if each.is_over_s + TOUCHES_S > fault.at_s]
        concerned = {*fault.nodes, self.leader.name}
        concerns_all = self.backend is not None or self.setup.fan_out or self.leader.name in fault.nodes
        is_added = any(concerns_all or concerned.intersection(each.nodes) for each in self._passing)
        self._passing.append(fault)
        return is_added
