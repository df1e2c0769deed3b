"""What does a new leader of a job know about the decisions of the leaders before it?

The ledger holds only what a new leader needs; the nodes report the rest. It is written before the orders that follow
from it are sent, so no order that reached a node is newer.
"""

from __future__ import annotations

import msgspec

from supervisor.core.facts import Verdict


class Former(msgspec.Struct, frozen=True):
    """How an earlier run of the job ended. Its processes are those whose first leader had this or an older term."""

    verdict: Verdict
    term: int


class Ledger(msgspec.Struct, frozen=True):
    cycle: int = -1  # the newest one ordered; -1: none
    opened: int = 0  # the newest round opened; if later than `cycle`, that fault is already counted
    restarts_used: int = 0  # of the job's budget
    verdict: Verdict | None = None  # how the job ends, once decided
    is_told: bool = False  # all nodes present have been sent that verdict
    told_by: int = 0  # term of the leader that sent it; 0: not sent, or sent by an older version
    stop_signal: int | None = None  # of a stop under way; the verdict depends on how the ranks end
    stop_reason: str = ""
    stop_is_final: bool = False  # an operator has stopped the job: no scheduler may start it again
    parts: tuple[str, ...] = ()  # the nodes of that cycle, by group rank
    processes: tuple[str, ...] = ()  # the node process that received each order, by group rank; "": unknown
    witnesses: tuple[str, ...] = ()  # nodes heard by the leader (see fence_times.py)
    resigned: tuple[str, ...] = ()  # nodes that have given up the lead since that cycle, as they heard too few others
    term: int = 0  # of the leader that wrote it; 0: none, or an older version
    leader: str = ""  # its node; "": none, or an older version, whose own workers may run longer (fence.ALONE_S)
    former: Former | None = None  # the previous run, if some of its nodes may not know its end
    epoch: int = 0  # of that cycle (fencing_epochs.py); 0: unknown
    leaving: tuple[str, ...] = ()  # nodes of that cycle that were asked to leave, and may
    vacant: tuple[str, ...] = ()  # nodes of that cycle that it goes on without
    may_be_stop: bool = False  # a stop that is asked for at once counts more than the verdict
    stop_grace_s: float | None = None  # how long the ranks may take; None: as configured
    stop_at_once: bool = False  # the ranks of all nodes are killed: by a second signal, or SIGKILL

    @property
    def is_running(self) -> bool:
        """Returns whether the cycle runs: no later round is open, and the job does not end."""
        is_ending = self.verdict is not None or self.stop_signal is not None
        return 0 <= self.opened <= self.cycle and not is_ending


def newer(one: Ledger, other: Ledger) -> Ledger:
    """Returns the one that was written later, whatever the backend has lost or got back since."""
    return max(one, other, key=lambda each: (each.term, each.cycle, each.opened, each.restarts_used, each.is_told))


def as_before(ledger: Ledger, term: int) -> Ledger:
    """Returns it as one written before the lead of `term`, even if that term is earlier: see term_numbers.py."""
    return msgspec.structs.replace(ledger, term=term - 1) if ledger.term > term else ledger


def after_all_know(ended: Ledger, term: int) -> Ledger:
    """Returns what is kept for a while once the nodes present know the verdict from the leader of `term`."""
    return msgspec.structs.replace(ended, is_told=True, told_by=term)
