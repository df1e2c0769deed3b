"""What do the machines of a job announce to the rest of its supervisor?

Records of cycles, log servers and the attribution service follow a job by these records. They are actions: the engine
passes each one on while it performs the decision that it belongs to.
"""

from __future__ import annotations

import msgspec

from supervisor.core.facts import Verdict


class LeadChanged(msgspec.Struct, frozen=True):
    """This node leads the job from now on, or no longer does."""

    leads: bool
    cycle: int = -1  # the last one that any leader has ordered; -1: none, or this node does not lead


class CycleBegan(msgspec.Struct, frozen=True):
    """The job's leader orders this cycle. An elected leader does not announce one that it continues."""

    cycle: int
    nodes: tuple[str, ...]  # by group rank
    standby: tuple[str, ...] = ()  # nodes that have joined and take no part


class PartsChanged(msgspec.Struct, frozen=True):
    """In the cycle that runs, other nodes have the parts of lost ones."""

    cycle: int
    nodes: tuple[str, ...]  # by group rank
    standby: tuple[str, ...] = ()


class CycleEnded(msgspec.Struct, frozen=True):
    """The job's leader has decided that the cycle is over; workers may still be stopping."""

    cycle: int
    nodes: tuple[str, ...]  # those that are not lost, which may still write to its log


class NodeLost(msgspec.Struct, frozen=True):
    """The job's leader hears that a node of the job is lost, perhaps once more."""

    node: str
    reason: str


class JobEnded(msgspec.Struct, frozen=True):
    """Every node announces this for itself: nothing of the job is left here."""

    verdict: Verdict


Announcement = LeadChanged | CycleBegan | PartsChanged | CycleEnded | NodeLost | JobEnded
