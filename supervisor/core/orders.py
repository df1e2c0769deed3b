"""What can the coordinator of a job order a node to do?

The one vocabulary for it: the coordinator addresses these records to nodes, the peers carry them, and the machines of
the node take them as they are.
"""

from __future__ import annotations

import msgspec

from supervisor.core.calls.words import ToRank
from supervisor.core.facts import Assignment, Verdict


class StartCycle(msgspec.Struct, frozen=True):
    """The rendezvous is complete: run this part of the cycle, after stopping what still runs."""

    assignment: Assignment
    reason: str
    restarts_used: int = 0  # of the job's budget
    is_running: bool = False  # the others run the cycle already, and have gone on without this part of it


class JoinAgain(msgspec.Struct, frozen=True):
    """Stop the workers and join: a next cycle will be ordered."""

    next_cycle: int
    reason: str


class UseStore(msgspec.Struct, frozen=True):
    """The store of the cycle, which the node of group rank 0 serves."""

    cycle: int
    host: str
    port: int


class TakeStacks(msgspec.Struct, frozen=True):
    """Take the stacks of all ranks within the budget, those of the `accused` first."""

    cycle: int
    accused: tuple[int, ...]  # global ranks
    budget_s: float


class ActOnHang(msgspec.Struct, frozen=True):
    """The evidence is in, or late: the ranks that hang may be ended.

    `verdict`: who hangs and who waits for it, the same for all nodes; "": the evidence tells nothing.
    """

    cycle: int
    verdict: str = ""


class TellMembers(msgspec.Struct, frozen=True):
    """Pass this on to these ranks of the cycle (global ranks of this node)."""

    cycle: int
    members: tuple[int, ...]
    order: ToRank


class ReplaceRanks(msgspec.Struct, frozen=True):
    """Start new processes for ranks that were lost in a wrapped call (global ranks of this node)."""

    cycle: int
    members: tuple[int, ...]
    reason: str


class SettleCall(msgspec.Struct, frozen=True):
    """A wrapped call has ended. `stands`: without those it has lost; else their ends are failures after all."""

    cycle: int
    call: int
    stands: bool
    reason: str


class WindDown(msgspec.Struct, frozen=True):
    """The job ends: stop what runs and report NodeStopped; the verdict follows.

    `signal` 0: SIGTERM with the grace of a restart; else that signal, with the grace that the launcher's end has.
    """

    reason: str
    signal: int = 0
    at_once: bool = False  # SIGKILL now, without any grace


class Conclude(msgspec.Struct, frozen=True):
    """How the job ended, the same on every node."""

    verdict: Verdict


class Introduce(msgspec.Struct, frozen=True):
    """Say how this node stands (NodeStands): the leader is new to it. Comes from the node's own side."""


class StandBack(msgspec.Struct, frozen=True):
    """Kill the workers: another node may take this one's place soon. Then wait for a leader.

    Comes from the node's own side, where no leader is heard.
    """

    reason: str


Order = (
    StartCycle | JoinAgain | UseStore | TakeStacks | ActOnHang | TellMembers | ReplaceRanks | SettleCall | WindDown
    | Conclude | Introduce | StandBack
)  # fmt: skip
