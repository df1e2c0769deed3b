"""What always holds, whatever was recorded, ordered and heard when a leader is lost, and whichever nodes join the next?

One group runs at a time, cycles and budget only grow, a fault uses one restart at most, and the job goes on or ends.
What the leaders announce of the cycles is in order, and nothing that follows from a kept record is announced twice.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.core.announcements import CycleBegan, CycleEnded, PartsChanged
from supervisor.core.cluster import coordinator, job_termination, leader_takeover
from supervisor.core.cluster.cluster_messages import (
    Action,
    DeadlineReached,
    Event,
    JobOpened,
    LeadershipTaken,
    MemberState,
    NodeFailed,
    NodeJoined,
    NodeLost,
    NodeStands,
    NodeStopped,
    Publish,
    Record,
    Send,
    VerdictTaken,
)
from supervisor.core.cluster.coordinator_states import Ended, Running
from supervisor.core.facts import Assignment, JobRules, NodeFacts, RendezvousRules, RestartRules
from supervisor.core.leader_ledger import Ledger
from supervisor.core.orders import Conclude, JoinAgain, Order, StartCycle, WindDown

NAMES = "abcd"
MIN_NODES, MAX_RESTARTS = 2, 100
_processes = itertools.count()
RULES = JobRules(
    "job",
    1,
    restart=RestartRules(max_restarts=MAX_RESTARTS, min_nodes=MIN_NODES),
    rendezvous=RendezvousRules(len(NAMES), last_call_s=0.0),
)


class Node:
    """A node that does at once what core/node/job.py does."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = MemberState.JOINED
        self.assignment: Assignment | None = None
        self.used = 0
        self.inbox: deque[Order] = deque()
        self.rules = msgspec.structs.replace(RULES, facts=NodeFacts(process=f"{name}{next(_processes)}"))

    @property
    def cycle(self) -> int:
        return self.assignment.cycle if self.assignment is not None else -1

    @property
    def running(self) -> int | None:
        return self.cycle if self.state is MemberState.RUNNING else None

    def stands(self) -> NodeStands:
        return NodeStands(self.name, self.rules, self.state, self.cycle, self.assignment, self.used, met_term=1)

    def take(self, order: Order) -> tuple[Event, ...]:
        ends = self.state in (MemberState.STOPPED, MemberState.INFORMED)
        match order:
            case StartCycle(assignment, _, used) if assignment.cycle > self.cycle and not ends:
                assert self.state is MemberState.JOINED, "a cycle is ordered of a node that is not ready for it"
                self.state, self.assignment, self.used = MemberState.RUNNING, assignment, used
                return ()
            case JoinAgain(next_cycle) if next_cycle > self.cycle and self.state is MemberState.RUNNING:
                self.state = MemberState.JOINED
                return (NodeJoined(self.name, self.cycle),)
            case WindDown() if not ends:
                self.state = MemberState.STOPPED
                return (NodeStopped(self.name, all_succeeded=False),)
            case Conclude():
                self.state = MemberState.INFORMED
                return (VerdictTaken(self.name),)
            case _:
                return ()

    def fail(self) -> tuple[Event, ...]:
        self.state = MemberState.JOINED
        return (
            NodeFailed(self.name, self.cycle, f"a rank on node {self.name} died"),
            NodeJoined(self.name, self.cycle),
        )


class Job:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.nodes = {name: Node(name) for name in NAMES}
        self.heard = dict(self.nodes)  # heard by the leader
        self.ledger = Ledger()
        self.gate: deque[Action] = deque()  # decided messages that have not left yet
        self.newest, self.used, self.faults = -1, 0, 0
        self.begun: int | None = None  # the cycle of which the beginning was announced, and the end was not
        self.last_begun = -1
        self.lead()
        for name in NAMES:
            self.tell(JobOpened(name, self.nodes[name].rules))
            self.tell(NodeJoined(name, -1))

    def lead(self) -> None:
        self.gate.clear()
        self.leader = leader_takeover.initial_state("job", LeadershipTaken(2, self.ledger), leader="", now_s=self.now_s)

    def tell(self, event: Event) -> None:
        self.leader, actions = coordinator.step(self.leader, event, now_s=self.now_s, jitter=0.0)
        self.gate += [each for each in actions if not isinstance(each, Publish)]
        if any(isinstance(each, CycleBegan | CycleEnded) for each in actions):
            assert isinstance(actions[0], Record), "the next leader would not know what was announced"

    # --- possible events; `number` chooses among the candidates

    def let_out(self, number: int) -> None:
        """See election/order_delivery.py."""
        for _ in range(number % 8 + 1):
            if not self.gate:
                return
            first = self.gate.popleft()
            if isinstance(first, Record):
                assert first.ledger.cycle >= self.ledger.cycle
                assert first.ledger.restarts_used >= self.ledger.restarts_used
                self.ledger = first.ledger
                while self.gate and isinstance(self.gate[0], CycleBegan | CycleEnded | PartsChanged):
                    self.announced(self.gate.popleft())
            elif isinstance(first, Send) and first.node in self.heard:
                self.nodes[first.node].inbox.append(first.order)

    def announced(self, announcement: Action) -> None:
        """Checks an announcement whose record is kept, so that every later leader knows it."""
        match announcement:
            case CycleBegan(cycle):
                assert self.begun is None, f"cycle {cycle} begins before the end of cycle {self.begun}"
                assert cycle == self.last_begun + 1, "no cycle is left out, and none begins twice"
                self.begun = self.last_begun = cycle
            case PartsChanged(cycle):
                assert cycle == self.begun
            case CycleEnded(cycle):
                assert cycle == self.begun, f"cycle {cycle} ends, but cycle {self.begun} was begun"
                self.begun = None
            case _:
                raise AssertionError(f"nobody announces {announcement}")

    def deliver(self, number: int) -> None:
        node = self.nodes[NAMES[number % len(NAMES)]]
        if node.inbox and node.name in self.heard:
            order = node.inbox.popleft()
            if isinstance(order, StartCycle):
                self.begin(node, order)
            for event in node.take(order):
                self.tell(event)

    def begin(self, node: Node, order: StartCycle) -> None:
        cycle = order.assignment.cycle
        if cycle > node.cycle and node.state is MemberState.JOINED:
            assert cycle >= self.newest, "cycles only grow"
            assert order.restarts_used >= self.used, "the budget only grows"
            assert self.ledger.cycle >= cycle, "what is not recorded is not ordered"
            self.newest, self.used = cycle, order.restarts_used

    def fail(self, number: int) -> None:
        running = [each for each in self.heard.values() if each.running is not None]
        if running:
            self.faults += 1
            for event in running[number % len(running)].fail():
                self.tell(event)

    def lose(self, number: int) -> None:
        if len(self.heard) > 1:
            name = sorted(self.heard)[number % len(self.heard)]
            self.faults += name in (*self.leader.parts, *self.ledger.parts)
            self.drop(name)
            self.tell(NodeLost(name, f"node {name} is lost"))

    def drop(self, name: str) -> None:
        """Drops a node: its fence ends its workers before a leader takes it for lost."""
        node = self.heard.pop(name)
        node.inbox.clear()
        self.gate = deque(each for each in self.gate if not isinstance(each, Send) or each.node != name)
        if node.state is MemberState.RUNNING:
            node.state = MemberState.JOINED

    def come_back(self, number: int) -> None:
        away = sorted(set(NAMES) - set(self.heard))
        if away:
            name = away[number % len(away)]
            if number % 2:
                self.nodes[name] = Node(name)
            self.heard[name] = self.nodes[name]
            self.tell(self.nodes[name].stands())

    def change_leader(self, number: int) -> None:
        """Changes the leader: nodes whose bit is set join the next one; messages on their way are lost."""
        survivors = [name for bit, name in enumerate(NAMES) if number >> bit & 1 and name in self.heard]
        parts = (*self.leader.parts, *self.ledger.parts)
        self.faults += any(name in parts for name in set(NAMES) - set(survivors))
        for name in set(self.heard) - set(survivors):
            self.drop(name)
        self.lead()
        for name in sorted(survivors, reverse=bool(number & 16)):
            self.nodes[name].inbox.clear()
            self.tell(self.nodes[name].stands())

    def wait(self, number: int) -> None:
        self.now_s += 1.0 + number % 8
        self.tell(DeadlineReached())

    # --- what must hold

    def check(self) -> None:
        running = {each.running for each in self.nodes.values() if each.running is not None}
        assert len(running) <= 1, f"cycles {running} run at once"
        assert coordinator.restarts_used(self.leader) <= self.faults, "a restart was used, and there was no fault"

    def settle(self) -> None:
        """Brings all nodes back; checks that the job then runs on or has ended."""
        while set(NAMES) - set(self.heard):
            self.come_back(0)
        for _ in range(20):
            self.wait(0)
            while self.gate:
                self.let_out(0)
            for number, name in enumerate(NAMES):
                while self.nodes[name].inbox:
                    self.deliver(number)
            self.check()
        if isinstance(self.leader.phase, Ended):
            assert job_termination.is_over(self.leader)
            return
        assert isinstance(self.leader.phase, Running), f"it stands still: {self.leader.phase}"
        assert {self.nodes[name].running for name in self.leader.parts} == {self.leader.cycle}
        assert len(self.leader.parts) == MIN_NODES


HAPPENINGS = (Job.let_out, Job.deliver, Job.fail, Job.lose, Job.come_back, Job.change_leader, Job.wait)
LIVES = st.lists(st.tuples(st.sampled_from(HAPPENINGS), st.integers(0, 31)), max_size=40)


@settings(max_examples=400)
@given(LIVES)
def test_one_group_one_budget_and_no_standstill(life: list[tuple[Callable[[Job, int], None], int]]):
    job = Job()
    for happens, number in life:
        happens(job, number)
        job.check()
    job.settle()


def test_a_ledger_of_a_version_that_named_no_nodes_is_read():
    assert msgspec.json.decode(b'{"cycle": 3, "opened": 4, "restarts_used": 1}', type=Ledger) == Ledger(3, 4, 1)
