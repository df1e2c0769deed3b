"""The agents' rendezvous in its obvious form: all agents in one table, everything found by checking all of them.

The twin of elastic_round.py. It returns which rounds begin with whom and who is refused, without incremental state.
"""

from __future__ import annotations

import dataclasses

from supervisor.core.elastic.elastic_messages import ElasticRules


@dataclasses.dataclass
class Agent:
    name: str
    is_waiting: bool = False
    is_busy: bool = False
    was_member: bool = False
    since_s: float = 0.0
    turn: int = 0  # the number of this join
    join_timeout_s: float = 0.0


class SlowRendezvous:
    """Agents that differ only in how long each waits, without a scheduler; the store is served at once, or never."""

    def __init__(self, rules: ElasticRules) -> None:
        self.rules = rules
        self.agents: dict[str, Agent] = {}
        self.rounds: list[tuple[str, ...]] = []
        self.is_open = True  # no round is running
        self.opened_at_s = 0.0
        self.enough_since_s: float | None = None
        self.turns = 0

    def join(self, name: str, join_timeout_s: float, now_s: float) -> None:
        agent = self.agents.setdefault(name, Agent(name))
        if agent.is_busy:
            self._open(now_s)
            agent.was_member = True
        self.turns += 1
        agent.join_timeout_s = join_timeout_s
        agent.is_waiting, agent.is_busy, agent.since_s, agent.turn = True, False, now_s, self.turns
        self._look(now_s)

    def remove(self, name: str, now_s: float) -> None:
        agent = self.agents.pop(name, None)
        if agent is not None and agent.is_busy:
            self._open(now_s)
        self._look(now_s)

    def pass_time(self, now_s: float) -> list[str]:
        """Returns the agents whose time is over."""
        late: list[str] = []
        if self.is_open:
            for agent in sorted(self._waiting(), key=lambda each: each.turn):
                if max(agent.since_s, self.opened_at_s) + agent.join_timeout_s <= now_s:
                    agent.is_waiting = agent.was_member = False
                    late.append(agent.name)
        self._look(now_s)
        return late

    def has_spares(self) -> bool:
        """Returns whether agents wait that the running group has no room for."""
        return len(self.rounds[-1]) == self.rules.max_nodes and bool(self._waiting())

    def must_come(self) -> set[str]:
        """Returns the busy agents that must stop their workers and join."""
        has_room = bool(self.rounds) and len(self.rounds[-1]) < self.rules.max_nodes
        if self.is_open or (has_room and self._waiting()):
            return {agent.name for agent in self.agents.values() if agent.is_busy}
        return set()

    def _open(self, now_s: float) -> None:
        if not self.is_open:
            self.is_open, self.opened_at_s = True, now_s

    def _waiting(self) -> list[Agent]:
        return [agent for agent in self.agents.values() if agent.is_waiting]

    def _look(self, now_s: float) -> None:
        waiting = self._waiting()
        if not self.is_open:
            return
        if any(agent.is_busy for agent in self.agents.values()) or len(waiting) < self.rules.min_nodes:
            self.enough_since_s = None
            return
        if self.enough_since_s is None:
            self.enough_since_s = now_s
        is_full = len(waiting) >= self.rules.max_nodes
        all_are_here = bool(self.rounds) and len(waiting) == len(self.agents)
        if not is_full and not all_are_here and now_s < self.enough_since_s + self.rules.last_call_timeout_s:
            return
        ordered = sorted(waiting, key=lambda agent: (not agent.was_member, agent.turn))
        members = ordered[: self.rules.max_nodes]
        for agent in members:
            agent.is_waiting, agent.is_busy, agent.was_member = False, True, False
        self.rounds.append(tuple(sorted(agent.name for agent in members)))
        self.is_open, self.enough_since_s = False, None
