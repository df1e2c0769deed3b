"""What do the supervisors of one job ask each other on behalf of people, and what do they answer?

A question or its answer may be lost: then the person learns that a node has not answered. Nothing that a job needs to
run travels this way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from supervisor.core.facts import Evidence
from supervisor.core.stragglers.straggler_messages import RankSections
from supervisor.ports.edges import Peers
from supervisor.ports.reports import JobReport, LogBytes, NodeReport, RecordedEvent

LEADER = ""  # as the addressee: the node that coordinates the job, whichever it is

# --- questions -----------------------------------------------------------------------------------------------------


class ShowPart(msgspec.Struct, frozen=True):
    """To a node: its own part of the job and the node itself, in their current state."""


class ShowWhole(msgspec.Struct, frozen=True):
    """To the leader: the job on all its nodes."""


class NodeEvents(msgspec.Struct, frozen=True):
    """Events of one node in its order, for a node that may not have them."""

    node: str
    submitted_at_ns: int  # there, which tells its runs apart
    events: tuple[RecordedEvent, ...] = ()
    gone_through: int = 0  # older events, up to this sequence, were dropped because too many waited
    after: int = 0  # the event of the node that came before the first of these; 0: none, or not known
    told_at_ns: int = 0  # by the clock of the node that tells; 0: not known


class TellUpdate(msgspec.Struct, frozen=True):
    """To the leader: a node's new events in order, and its part of the job. The answer confirms them."""

    part: JobReport
    node: NodeReport
    events: tuple[RecordedEvent, ...] = ()
    gone_through: int = 0  # older events, up to this sequence, were dropped because too many waited
    sent_at_ns: int = 0  # by the node's clock
    after: int = 0  # the event of the node that came before the first of these; 0: none, or not known
    leader_submitted_at_ns: int = 0  # the leader whose own events the node has, by its submission; 0: it has none
    leader_through: int = 0  # the newest of them, by the leader's sequence
    others: tuple[NodeEvents, ...] = ()  # of earlier leaders


class ReadEvents(msgspec.Struct, frozen=True):
    """To the leader: the whole job's next events; if there are none yet, it waits for one."""

    after_sequence: int
    wait_s: float = 0.0


class ShowStacks(msgspec.Struct, frozen=True):
    """To a node: the stacks of its ranks, or of one."""

    budget_s: float
    rank: int | None = None


class ReadLogs(msgspec.Struct, frozen=True):
    """To a node: the next output of its ranks. The first `step` opens a reader, each later one advances it."""

    reader: str  # chosen by the asker; unique
    step: int  # from 1; repeating the last step returns the same answer
    rank: int | None = None
    cycle: int | None = None
    tail_lines: int = 0
    follow: bool = False
    wait_s: float = 0.0
    first_cycle: int = 0  # the asker has all output of earlier ones


class CloseLogs(msgspec.Struct, frozen=True):
    reader: str


class SetCordon(msgspec.Struct, frozen=True):
    """To a node: take part in no further cycle, or take part again."""

    cordoned: bool
    reason: str = ""
    leaves: bool = False  # the jobs that it shares with other nodes are to go on without it


class TellSections(msgspec.Struct, frozen=True):
    """To the leader: how often the node's ranks have closed their sections, and how long these were open in total."""

    cycle: int
    names: tuple[str, ...]
    ranks: tuple[RankSections, ...]  # with new values


Question = ShowPart | ShowWhole | TellUpdate | ReadEvents | ShowStacks | ReadLogs | CloseLogs | SetCordon | TellSections

# --- answers -------------------------------------------------------------------------------------------------------


class Part(msgspec.Struct, frozen=True):
    part: JobReport
    node: NodeReport


class Whole(msgspec.Struct, frozen=True):
    job: JobReport
    nodes: tuple[NodeReport, ...]


class UpdateTaken(msgspec.Struct, frozen=True):
    through: int  # the newest event of the node that the leader has, by the node's own sequence
    pace_s: float = 0.0  # the minimum until the node's next news: a leader of many nodes has little time for each
    own: NodeEvents | None = None  # the leader's own events, for the node to keep; None: an older version


class Events(msgspec.Struct, frozen=True):
    events: tuple[RecordedEvent, ...]
    is_last: bool = False  # the job has ended, and nothing will follow


class Stacks(msgspec.Struct, frozen=True):
    evidence: Evidence


class Logs(msgspec.Struct, frozen=True):
    pieces: tuple[LogBytes, ...]  # one without output: the disk was read, and none was found yet
    is_last: bool = False


class Done(msgspec.Struct, frozen=True):
    node: NodeReport


class SectionsTaken(msgspec.Struct, frozen=True):
    pace_s: float  # the minimum until the node sends the next


class Refused(msgspec.Struct, frozen=True):
    """The refusal of a question. `code` is the `reason` of a HoldfastError."""

    code: str
    message: str


Answer = Part | Whole | UpdateTaken | Events | Stacks | Logs | Done | SectionsTaken | Refused

Handler = Callable[[str, str, Question], Awaitable[Answer]]  # job id, the node that asks
Reply = Callable[[Answer], None]  # called once
TakeQuestion = Callable[[str, str, Question, Reply], None]  # job id, the node that asks; never blocks


class NodeRequests(Protocol):
    """The connection to the other supervisors of a job, for questions."""

    def leads(self, job_id: str) -> bool:
        """Returns whether this node is the job's leader now."""
        ...

    def outage(self, job_id: str) -> str:
        """Returns what the job's next restart would wait for, as a clause; "": for nothing but its nodes."""
        ...

    async def ask(self, job_id: str, to: str, question: Question, *, timeout_s: float) -> Answer:
        """Asks a node. Raises NoAnswerError, or the HoldfastError with which the other side refuses."""
        ...


class LastEvents(Protocol):
    """The events of this node for the leaders of its jobs, as far as the end of a job's connections needs them."""

    async def tell_last(self, job_id: str) -> None:
        """Waits until the leader of a job that has ended has all of its events. The caller bounds the time."""
        ...

    def forget(self, job_id: str) -> None:
        """Forgets the events of a job: nobody is left to be told."""
        ...


class PeersAndNodeRequests(Peers, Protocol):
    """All connections of a supervisor to the other nodes of its job."""

    @property
    def node_requests(self) -> NodeRequests: ...
