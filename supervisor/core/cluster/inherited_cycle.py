"""What does a new leader find of the newest cycle: which nodes have a part in it, wait for it, or are missing?

The ledger says which cycle was ordered last and on which nodes, unless it was lost. The nodes report the rest.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from supervisor.core import term_numbers
from supervisor.core.cluster import node_states
from supervisor.core.cluster.cluster_messages import MemberState, NodeStands
from supervisor.core.facts import Verdict
from supervisor.core.leader_ledger import Ledger

_IDLE = (MemberState.OPENED, MemberState.JOINED, MemberState.DOWN)
_AT_WORK = (MemberState.RUNNING, MemberState.SUCCEEDED)


class InheritedCycle(msgspec.Struct, frozen=True):
    number: int  # -1: none was ordered
    names: tuple[str, ...]  # its nodes by group rank; () where that is not known
    parts: dict[int, NodeStands]  # by group rank: nodes that have begun it
    waiting: dict[int, NodeStands]  # nodes that the order did not reach, which is not their fault
    vacant: dict[int, str]  # by group rank: nodes that it goes on without
    size: int  # how many nodes it has; 0: unknown

    @property
    def is_complete(self) -> bool:
        """Whether all of its nodes have reported their state, but for those that it goes on without."""
        return 0 < self.size == len(self.parts) + len(self.waiting) + len(self.vacant)

    @property
    def is_at_work(self) -> bool:
        """Whether all of its nodes run it, or have run it to its end. Then there is no newer one."""
        return 0 < self.size == len(self.parts) and all(
            each.state in _AT_WORK or _has_ended_well(each) for each in self.parts.values()
        )

    @property
    def has_succeeded(self) -> bool:
        """Whether all ranks of all of its nodes have succeeded, but for those that it goes on without."""
        return 0 < len(self.parts) == self.size - len(self.vacant) and all(
            each.state is MemberState.SUCCEEDED or _has_ended_well(each) for each in self.parts.values()
        )

    def may_be_beyond(self, ledger: Ledger, term: int) -> bool:
        """Returns whether the ledger that the leader of `term` has found may lack a decision that the nodes know."""
        return self.number > ledger.cycle or term_numbers.is_of_earlier_era(ledger.term, now=term)

    def verdict_beyond(self, ledger: Ledger, term: int) -> Verdict | None:
        """Returns how the job ends, as a leader has told its nodes; the final one, which names the cause, first.

        An intact ledger has every verdict but those that a leader could not record, which count for its nodes only.
        """
        if not self.may_be_beyond(ledger, term):
            return None
        told = sorted(self.parts.values(), key=lambda each: each.state is not MemberState.INFORMED)
        return next((each.verdict for each in told if each.verdict is not None), None)

    def missing(self, group_size: int) -> tuple[int, ...]:
        there = {*self.parts, *self.waiting, *self.vacant}
        return tuple(rank for rank in range(group_size) if rank not in there)

    def absentee(self, group_rank: int, stands: Mapping[str, NodeStands]) -> str:
        """Returns the node that had this part, or a placeholder name if that node is present without a part."""
        name = self.names[group_rank] if self.names else ""
        return name if name and name not in stands else f"{node_states.ABSENTEE}{group_rank}"


def find(ledger: Ledger, stands: Mapping[str, NodeStands]) -> InheritedCycle:
    number = max(ledger.cycle, *(each.cycle for each in stands.values()))
    names = ledger.parts if ledger.cycle == number else ()
    vacant = {rank: name for rank, name in enumerate(names) if name in ledger.vacant}
    taken = tuple("" if name in ledger.vacant else name for name in names)
    parts = _parts(stands, number, taken)
    sizes = (each.assignment.group_world_size for each in parts.values() if each.assignment is not None)
    waiting = _waiting(stands, number, taken, ledger.processes)
    return InheritedCycle(number, names, parts, waiting, vacant, len(names) or max(sizes, default=0))


def is_at_work(stands: Mapping[str, NodeStands]) -> bool:
    """Returns whether any of these nodes runs its part of a cycle, or has run it to its end."""
    return any(each.state in _AT_WORK for each in stands.values())


def never_began(stands: Mapping[str, NodeStands], inherited: InheritedCycle, missing: tuple[int, ...]) -> bool:
    """Returns whether the order did not reach the missing nodes; which of them had which part is unknown."""
    if inherited.names:
        return False
    idle = sum(
        each.state is MemberState.JOINED and each.assignment is not None and each.cycle < inherited.number
        for each in stands.values()
    )
    return 0 < len(missing) <= idle


def _has_ended_well(stands: NodeStands) -> bool:
    return stands.state is MemberState.STOPPED and stands.all_succeeded


def _parts(stands: Mapping[str, NodeStands], cycle: int, names: tuple[str, ...]) -> dict[int, NodeStands]:
    taking_part = (
        (each.assignment.group_rank, each)
        for each in stands.values()
        if each.assignment is not None and each.assignment.cycle == cycle == each.cycle
    )
    return {
        rank: each for rank, each in taking_part if not names or each.node in names[rank : rank + 1]
    }  # Else a spare has its place.


def _waiting(
    stands: Mapping[str, NodeStands], cycle: int, names: tuple[str, ...], processes: tuple[str, ...]
) -> dict[int, NodeStands]:
    """Returns the nodes that wait for the order. A new process of a node does not: it has replaced a lost one."""
    named = ((rank, stands.get(name)) for rank, name in enumerate(names))
    return {
        rank: each
        for rank, each in named
        if each and each.cycle < cycle and each.state in _IDLE
        if each.rules.facts.process in processes[rank : rank + 1] and each.rules.facts.process
    }
