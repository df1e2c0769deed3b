"""What can the coordinator of a job order a node to do?

Orders have only this vocabulary: the coordinator addresses these records to nodes, the peers carry them, and the
node's machines receive them unchanged.
"""

from __future__ import annotations

import msgspec

from supervisor.core.facts import Assignment, Verdict
from supervisor.core.wrapped_calls.call_messages import ToRank


class StartCycle(msgspec.Struct, frozen=True):
    """The rendezvous is complete: stop what still runs, then run this part of the cycle."""

    assignment: Assignment
    reason: str
    restarts_used: int = 0  # of the job's budget
    is_running: bool = False  # the other nodes already run the cycle and have continued without this part


class JoinAgain(msgspec.Struct, frozen=True):
    """Stop the workers and join: another cycle will be ordered."""

    next_cycle: int
    reason: str


class UseStore(msgspec.Struct, frozen=True):
    """Use this store in the cycle; the node of group rank 0 serves it."""

    cycle: int
    host: str
    port: int


class TakeStacks(msgspec.Struct, frozen=True):
    """Take the stacks of all ranks within the budget, those of the `accused` first."""

    cycle: int
    accused: tuple[int, ...]  # global ranks
    budget_s: float
    apart_s: float = 0.0  # at least this long between the two looks at each process


class ActOnHang(msgspec.Struct, frozen=True):
    """The evidence has arrived or is overdue: the hung ranks may be terminated.

    `verdict`: which ranks hang and which wait for them, the same on all nodes; "": the evidence is inconclusive.
    """

    cycle: int
    verdict: str = ""


class TellMembers(msgspec.Struct, frozen=True):
    """Pass this to these ranks of the cycle (global ranks of this node)."""

    cycle: int
    members: tuple[int, ...]
    order: ToRank


class ReplaceRanks(msgspec.Struct, frozen=True):
    """Start new processes for ranks that were lost in a wrapped call (global ranks of this node)."""

    cycle: int
    members: tuple[int, ...]
    reason: str


class SettleCall(msgspec.Struct, frozen=True):
    """A wrapped call has ended. `stands`: it succeeded without its lost ranks; else their ends are failures."""

    cycle: int
    call: int
    stands: bool
    reason: str


class WindDown(msgspec.Struct, frozen=True):
    """The job ends: stop what runs and report NodeStopped; the verdict follows.

    `signal` 0: SIGTERM with the grace period of a restart; else that signal, with the grace period of a launcher's end.
    """

    reason: str
    signal: int = 0
    at_once: bool = False  # SIGKILL now, without a grace period
    grace_s: float | None = None  # None: as configured
    verdict: Verdict | None = None  # that is decided, in case no leader is left who knows it; None: none yet


class EndDeadlocked(msgspec.Struct, frozen=True):
    """A restart waits for ranks of which none can go on: kill what is left of the cycle now."""

    cycle: int
    reason: str


class Conclude(msgspec.Struct, frozen=True):
    """The job has ended with this verdict, the same on every node."""

    verdict: Verdict


class Introduce(msgspec.Struct, frozen=True):
    """Report this node's state (NodeStands) to a new leader. The node's own side sends this order."""


class Resign(msgspec.Struct, frozen=True):
    """The leader gives up its lead, once what it has decided is recorded. Only its own node gets this order."""

    reason: str


class Stay(msgspec.Struct, frozen=True):
    """The node cannot leave the job (answer to LeaveAsked)."""

    reason: str


class StandBack(msgspec.Struct, frozen=True):
    """Kill the workers, because another node may soon take this one's place; then wait for a leader.

    The node's own side sends this order when it hears no leader.
    """

    reason: str


Order = (
    StartCycle | JoinAgain | UseStore | TakeStacks | ActOnHang | TellMembers | ReplaceRanks | SettleCall | WindDown
    | EndDeadlocked | Conclude | Introduce | Resign | Stay | StandBack
)  # fmt: skip
