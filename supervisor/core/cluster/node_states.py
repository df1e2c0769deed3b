"""Which nodes does a job have, what state is each in, and are enough of them ready for a cycle?

A private dictionary holds the nodes, with counters that every change keeps correct. So an event of one node costs the
same in a job of ten thousand, and only a change that concerns all nodes looks at all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import ItemsView, Iterator, ValuesView

import msgspec

from supervisor.core.cluster.cluster_messages import MemberState
from supervisor.core.facts import Cause, NodeFacts, RendezvousRules
from supervisor.core.fence_times import WITNESSES_MAX

# The job's end does not wait for these.
GONE = frozenset({MemberState.INFORMED, MemberState.LOST, MemberState.REFUSED})

# These get no orders.
UNHEARD = frozenset({MemberState.LOST, MemberState.REFUSED})

# Part of the last cycle may still run there, so no other node may begin the next one.
BUSY = frozenset({MemberState.RUNNING, MemberState.SUCCEEDED, MemberState.FAILED})

# They run, or may join a round.
PRESENT = frozenset({MemberState.OPENED, MemberState.JOINED, MemberState.DOWN, *BUSY})

# Prefix of a group rank: names a part of the cycle whose node a new leader does not know. No node has such a name.
ABSENTEE = "of group rank "


class Member(msgspec.Struct, frozen=True):
    state: MemberState
    cycle: int = -1  # the last one it took part in
    excluded: str = ""  # why it takes part in no later cycle
    cordoned: str = ""  # why an operator keeps it out of later cycles for now
    leaves: str = ""  # why it leaves the job as soon as nothing runs there
    refused: str = ""  # why it takes no part, or none any more, if nobody has asked for that
    is_silent: bool = False  # nothing is heard from it now, and it is not lost yet
    comes_again: bool = False  # it was lost, but its next process is connected
    lost: tuple[int, ...] = ()  # ranks that a wrapped call has continued without
    cause: Cause | None = None  # of the first failure on it, when it stopped
    caused_at_s: float | None = None  # when that failure left its error file, by the clock of the leader; None: unknown
    all_succeeded: bool = False  # when it stopped for good
    facts: NodeFacts = NodeFacts()

    @property
    def is_ready(self) -> bool:
        return self.state is MemberState.JOINED and self.may_take_part and not self.is_silent

    @property
    def may_join(self) -> bool:
        """Whether the node may be ready for the next cycle in time."""
        return self.state in PRESENT and self.may_take_part and not self.is_silent

    @property
    def is_returning(self) -> bool:
        """Whether the node has no spawner at present and may be back soon."""
        return self.state is MemberState.DOWN and self.may_take_part

    @property
    def is_awaited(self) -> bool:
        """Whether the node does not answer now, and will soon be heard or be lost."""
        return self.comes_again if self.state is MemberState.LOST else self.is_silent and self.state not in GONE

    @property
    def may_take_part(self) -> bool:
        """Whether nobody keeps the node out of later cycles."""
        return not self.excluded and not self.cordoned and not self.leaves

    def with_cause(self, cause: Cause | None, now_s: float) -> Member:
        """Returns the node's state with the first failure on it, if the report that the leader receives now has one."""
        if cause is None:
            return self
        written_at_s = None if cause.age_s is None else now_s - cause.age_s
        return msgspec.structs.replace(self, cause=cause, caused_at_s=written_at_s)


class Members(msgspec.Struct):
    """All nodes of the job. Only `put` changes it, in place."""

    segment: int | None = None
    group_size: int | None = None
    ready: int = 0
    awaited: int = 0
    candidates: int = 0  # ready nodes whose replacement group is complete
    segments: int = 0  # complete ones among the candidates, where `segment` is set
    witnesses: tuple[str, ...] = ()  # some nodes that are heard: the first ones, while they stay (see fence_times.py)
    changed: dict[str, None] = msgspec.field(default_factory=dict[str, None])  # since the last `take_changed`
    _by_name: dict[str, Member] = msgspec.field(default_factory=dict[str, Member])
    _counts: dict[MemberState, int] = msgspec.field(default_factory=lambda: dict.fromkeys(MemberState, 0))
    _excluded: dict[MemberState, int] = msgspec.field(default_factory=lambda: dict.fromkeys(MemberState, 0))
    _by_rank: dict[int, str] = msgspec.field(default_factory=dict[int, str])
    _groups: dict[str, dict[str, str]] = msgspec.field(default_factory=dict[str, dict[str, str]])  # node → domain
    _domains: dict[str, int] = msgspec.field(default_factory=dict[str, int])  # candidates in it
    _returning: dict[int, int] = msgspec.field(default_factory=dict[int, int])  # by their last cycle

    def put(self, node: str, member: Member) -> None:
        """Sets the node's state. Costs O(1), O(its group), or O(n) for a lost witness."""
        if (known := self._by_name.get(node)) is not None:
            self._tally(node, known, -1)
        self._by_name[node] = member
        self.changed[node] = None
        self._tally(node, member, 1)
        if member.state in UNHEARD:
            self._dismiss(node)
        elif len(self.witnesses) < WITNESSES_MAX and node not in self.witnesses:
            self.witnesses = (*self.witnesses, node)

    def take_changed(self) -> dict[str, None]:
        """Returns the nodes that `put` has changed since the last call, for a reader that has the others already."""
        changed, self.changed = self.changed, {}
        return changed

    # --- all nodes

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __contains__(self, node: object) -> bool:
        return node in self._by_name

    def __getitem__(self, node: str) -> Member:
        return self._by_name[node]

    def get(self, node: str) -> Member | None:
        return self._by_name.get(node)

    def items(self) -> ItemsView[str, Member]:
        return self._by_name.items()

    def values(self) -> ValuesView[Member]:
        return self._by_name.values()

    # --- without looking at all nodes

    def count(self, *states: MemberState) -> int:
        return sum(self._counts[state] for state in states)

    def are_all(self, *states: MemberState) -> bool:
        return self.count(*states) == len(self._by_name)

    @property
    def busy(self) -> int:
        counts = self._counts
        return counts[MemberState.RUNNING] + counts[MemberState.SUCCEEDED] + counts[MemberState.FAILED]

    @property
    def excluded(self) -> int:
        """Returns how many take part in no later cycle, including those that have left."""
        return sum(self._excluded.values())

    @property
    def leaving(self) -> int:
        """Returns how many excluded nodes still have workers of the last cycle."""
        return sum(self._excluded[state] for state in BUSY)

    @property
    def turned_away(self) -> int:
        """Returns how many were refused but never excluded, which count as if they had never come."""
        return self._counts[MemberState.REFUSED] - self._excluded[MemberState.REFUSED]

    @property
    def placeable(self) -> int:
        """Returns how many nodes could take part in a cycle now."""
        return self.candidates if self.segment is None else self.segments * self.segment

    def returning(self, cycle: int | None = None) -> int:
        """Returns how many nodes, of that cycle or of any, have no spawner at present and may take part later."""
        return sum(self._returning.values()) if cycle is None else self._returning.get(cycle, 0)

    def with_rank(self, infrastructure_rank: int | None) -> str | None:
        """Returns the node that reports this rank and may still be present."""
        return None if infrastructure_rank is None else self._by_rank.get(infrastructure_rank)

    # --- counting

    def _dismiss(self, node: str) -> None:
        if node not in self.witnesses:
            return
        rest = tuple(each for each in self.witnesses if each != node)
        heard = (name for name, each in self._by_name.items() if each.state not in UNHEARD and name not in rest)
        self.witnesses = (*rest, *itertools.islice(heard, 1))

    def _tally(self, node: str, member: Member, by: int) -> None:
        state, facts = member.state, member.facts
        self._counts[state] += by
        if member.excluded:
            self._excluded[state] += by
        if member.is_awaited:
            self.awaited += by
        rank = facts.infrastructure_rank
        if rank is not None and state not in GONE:
            if by > 0:
                self._by_rank[rank] = node
            elif self._by_rank.get(rank) == node:
                del self._by_rank[rank]
        if state is MemberState.JOINED and member.is_ready:
            self.ready += by
            self._tally_ready(node, facts, by)
        elif state is MemberState.DOWN and member.is_returning:
            self._returning[member.cycle] = self._returning.get(member.cycle, 0) + by

    def _tally_ready(self, node: str, facts: NodeFacts, by: int) -> None:
        if self.group_size is None:
            self._tally_candidate(facts.domain, by)
            return
        if not facts.replacement_group:
            return
        group = self._groups.setdefault(facts.replacement_group, {})
        before = group.copy()
        if by > 0:
            group[node] = facts.domain
        else:
            del group[node]
        # All nodes of a group become candidates together, and stop together.
        for each in before.values() if len(before) >= self.group_size else ():
            self._tally_candidate(each, -1)
        for each in group.values() if len(group) >= self.group_size else ():
            self._tally_candidate(each, 1)

    def _tally_candidate(self, domain: str, by: int) -> None:
        self.candidates += by
        if self.segment is None or not domain:
            return
        nodes = self._domains.get(domain, 0)
        self._domains[domain] = nodes + by
        self.segments += (nodes + by) // self.segment - nodes // self.segment


def for_rules(rules: RendezvousRules) -> Members:
    return Members(rules.segment, rules.replacement_group_size)
