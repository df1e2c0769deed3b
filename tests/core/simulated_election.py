"""Do two groups ever train at once? Nodes elect leaders and train; only the rules of core/fence.py are real.

Time goes in steps. Which nodes reach each other and the backend changes at random; messages are delayed.
The backend is sound: one leader at a time, whose lease ends TTL_S after it was renewed, or earlier.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from supervisor.core import fence

STEP_S = 0.1
TTL_S = 2.0
RENEW_EVERY_S, BEAT_EVERY_S, LOOK_EVERY_S = 0.5, 1.0, 0.5
LOST_S = 5.0
DELAY_MAX_S = 0.3
MIN_NODES = 2
BACKEND = -1


@dataclass
class Ledger:
    group: tuple[int, int] = (-1, 0)  # cycle, and the term of its order
    parts: frozenset[int] = frozenset()
    witnesses: frozenset[int] = frozenset()


@dataclass
class Lead:
    term: int
    ledger: Ledger
    from_s: float
    valid_until_s: float
    answers_until_s: float = 0.0
    heard_at_s: dict[int, float] = field(default_factory=dict[int, float])
    left_at_s: dict[int, float] = field(default_factory=dict[int, float])
    runs: dict[int, tuple[int, int] | None] = field(default_factory=dict[int, "tuple[int, int] | None"])
    ordered_at_s: float = 0.0
    is_clear: bool = False  # it has taken the job over


@dataclass
class Node:
    name: int
    follows: int | None = None  # the term of the leader
    newest: int = 0
    safe_until_s: float = 0.0
    known_at_s: float = 0.0
    said_at_s: float = 0.0  # the last message that may have reached a leader
    left_at_s: float = 0.0  # the same for the leader before
    runs: tuple[int, int] | None = None
    lead: Lead | None = None


class World:
    def __init__(self, seed: int, nodes: int = 5) -> None:
        self.dice = random.Random(seed)
        self.now_s = 0.0
        self.nodes = [Node(name) for name in range(nodes)]
        self.ledger = Ledger()
        self.leader: tuple[int, int] | None = None  # name, term
        self.lease_until_s = 0.0
        self.terms = 0
        self.cut: set[tuple[int, int]] = set()
        self.on_the_way: list[tuple[float, Callable[[], None]]] = []
        self.wrong: list[str] = []
        self.cycles = 0
        self.ended_by_fence = 0

    # --- the network

    def reaches(self, a: int, b: int) -> bool:
        return a == b or (a, b) not in self.cut

    def send(self, a: int, b: int, what: Callable[[], None]) -> None:
        if self.reaches(a, b):
            delay_s = 0.0 if a == b else self.dice.uniform(0.0, DELAY_MAX_S)
            self.on_the_way.append((self.now_s + delay_s, what))

    def tear(self) -> None:
        """Splits the network in two, cuts all nodes off from the backend, or heals everything."""
        everybody = [BACKEND, *range(len(self.nodes))]
        self.cut.clear()
        if self.dice.random() < 0.1:
            self.leader = None  # all leases are revoked
        match self.dice.randrange(5):
            case 0:
                pass
            case 1:
                self.cut |= {(each, BACKEND) for each in everybody}
            case 2:
                self.cut |= {(each, BACKEND) for each in self.dice.sample(everybody, len(everybody) // 2)}
            case 3:
                side = set(self.dice.sample(everybody, self.dice.randrange(1, len(everybody))))
                self.cut |= {(a, b) for a in everybody for b in everybody if (a in side) != (b in side)}
            case _:
                self.cut |= {(a, b) for a in everybody for b in everybody if self.dice.random() < 0.2}

    # --- time

    def run(self, seconds: float, *, tears: bool = True) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += STEP_S
            if tears and self.dice.random() < STEP_S / 6:
                self.tear()
            if self.leader is not None and self.now_s >= self.lease_until_s:
                self.leader = None
            due = [what for at_s, what in self.on_the_way if at_s <= self.now_s]
            self.on_the_way = [each for each in self.on_the_way if each[0] > self.now_s]
            for what in due:
                what()
            for node in self.nodes:
                self.live(node)
            running = {node.runs for node in self.nodes if node.runs is not None}
            if len(running) > 1:
                self.wrong.append(f"{self.now_s:.1f} s: {running}")

    def is_time(self, node: Node, every_s: float) -> bool:
        """Returns whether it is time; each node has its own moments."""
        return int((self.now_s + node.name * 0.13) / every_s) != int((self.now_s - STEP_S + node.name * 0.13) / every_s)

    # --- a node

    def live(self, node: Node) -> None:
        if node.lead is not None:
            self.reign(node, node.lead)
        elif node.follows is not None and self.is_time(node, BEAT_EVERY_S):
            self.beat(node, node.follows)
        if node.lead is None and self.is_time(node, LOOK_EVERY_S) and self.reaches(node.name, BACKEND):
            self.look(node)
        if node.runs is not None and self.now_s >= node.safe_until_s:
            node.runs = None
            self.ended_by_fence += 1

    def look(self, node: Node) -> None:
        if self.leader is None:
            node.safe_until_s = max(node.safe_until_s, self.now_s + fence.FENCE_S)
            self.leave(node)
            if self.dice.random() < 0.5:
                self.elect(node)
        elif self.leader[1] > node.newest:
            self.leave(node)
            node.left_at_s = node.said_at_s
            node.follows = node.newest = self.leader[1]
            self.beat(node, node.follows)

    def leave(self, node: Node) -> None:
        node.follows = None

    def elect(self, node: Node) -> None:
        self.terms += 1
        self.leader, self.lease_until_s = (node.name, self.terms), self.now_s + TTL_S
        node.newest, node.left_at_s = self.terms, node.said_at_s
        node.lead = Lead(self.terms, self.ledger, self.now_s + fence.TAKE_OVER_S, self.now_s + TTL_S)
        self.hear(node.lead, node, node.left_at_s, node.runs, self.now_s)

    def beat(self, node: Node, term: int) -> None:
        leader = next((each for each in self.nodes if each.lead is not None and each.lead.term == term), None)
        if leader is None:
            return
        said_at_s, left_at_s, runs = self.now_s, node.left_at_s, node.runs
        if self.reaches(node.name, leader.name):
            node.said_at_s = self.now_s

        def arrive() -> None:
            if leader.lead is None or leader.lead.term != term:
                return
            self.hear(leader.lead, node, left_at_s, runs, said_at_s)
            if self.now_s < self.answers_until_s(leader.lead):
                self.send(leader.name, node.name, answered)

        def answered() -> None:
            if node.follows == term:
                node.safe_until_s = max(node.safe_until_s, said_at_s + fence.FENCE_S)

        self.send(node.name, leader.name, arrive)

    # --- a leader

    def hear(self, lead: Lead, node: Node, left_at_s: float, runs: tuple[int, int] | None, said_at_s: float) -> None:
        lead.heard_at_s[node.name] = self.now_s
        lead.left_at_s.setdefault(node.name, left_at_s)
        if said_at_s > lead.ordered_at_s + DELAY_MAX_S:  # otherwise the order may not have reached the node
            lead.runs[node.name] = runs

    def answers_until_s(self, lead: Lead) -> float:
        heard = (lead.heard_at_s.get(each) for each in lead.ledger.witnesses)
        return fence.answers_until_s(lead.valid_until_s - TTL_S, TTL_S, heard)

    def reign(self, node: Node, lead: Lead) -> None:
        self.hear(lead, node, node.left_at_s, node.runs, self.now_s)
        if self.now_s < self.answers_until_s(lead):
            node.safe_until_s = max(node.safe_until_s, self.now_s + fence.FENCE_S)
        if self.is_time(node, RENEW_EVERY_S) and self.reaches(node.name, BACKEND):
            if self.leader != (node.name, lead.term):
                node.lead, node.said_at_s = None, self.now_s
                return
            self.lease_until_s = lead.valid_until_s = self.now_s + TTL_S
        for name, at_s in list(lead.heard_at_s.items()):
            if self.now_s - at_s >= LOST_S:
                del lead.heard_at_s[name]
        if not lead.is_clear:
            self.take_over(lead)
        elif (
            not lead.ledger.parts
            or lead.ledger.parts - lead.heard_at_s.keys()
            or any(lead.runs.get(part) != lead.ledger.group for part in lead.ledger.parts)
        ):
            self.order(node, lead)
        elif lead.ledger.witnesses != frozenset(lead.heard_at_s):
            self.write(node, lead, Ledger(lead.ledger.group, lead.ledger.parts, frozenset(lead.heard_at_s)))

    def take_over(self, lead: Lead) -> None:
        is_whole = all(lead.runs.get(part) == lead.ledger.group for part in lead.ledger.parts)
        from_s = fence.replaces_from_s(
            lead.from_s, [str(each) for each in lead.ledger.witnesses],
            {str(name): at_s for name, at_s in lead.left_at_s.items()},
        )  # fmt: skip
        lead.is_clear = (bool(lead.ledger.parts) and is_whole) or (from_s is not None and self.now_s >= from_s)

    def write(self, node: Node, lead: Lead, ledger: Ledger) -> bool:
        if not self.reaches(node.name, BACKEND) or self.leader != (node.name, lead.term):
            return False
        self.ledger = lead.ledger = ledger
        return True

    def order(self, node: Node, lead: Lead) -> None:
        """Stops all nodes that can be heard; then starts the next cycle on some of them."""
        heard = sorted(lead.heard_at_s)
        if self.now_s >= lead.valid_until_s or len(heard) < MIN_NODES:
            return
        if any(lead.runs.get(each) is not None for each in heard):
            for each in heard:
                self.send(node.name, each, lambda name=each: self.stop(name, lead.term))
            return
        parts = self.dice.sample(heard, self.dice.randrange(MIN_NODES, len(heard) + 1))
        group = (lead.ledger.group[0] + 1, lead.term)
        if self.write(node, lead, Ledger(group, frozenset(parts), frozenset(heard))):
            self.cycles += 1
            lead.ordered_at_s = self.now_s
            for each in parts:
                lead.runs[each] = group
                self.send(node.name, each, lambda name=each: self.start(name, group))

    def stop(self, name: int, term: int) -> None:
        node = self.nodes[name]
        if node.follows == term or (node.lead is not None and node.lead.term == term):
            node.runs = None

    def start(self, name: int, group: tuple[int, int]) -> None:
        node = self.nodes[name]
        term = node.lead.term if node.lead is not None else node.follows
        if term == group[1] and self.now_s < node.safe_until_s:
            node.runs = group
