"""What does this node know of its jobs' other nodes, from each of them or the leader, and keep after the job's end?"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter

import msgspec

from supervisor.core.announcements import Announcement, NodeLost
from supervisor.core.cluster.status_view import Roster, roster
from supervisor.core.facts import JobEvent
from supervisor.engine import leaders_events
from supervisor.engine.engine_state import EngineState
from supervisor.engine.event_deduplication import take_events, take_leaders_events
from supervisor.engine.event_publisher import EventPublisher
from supervisor.engine.job_record import JobRecord
from supervisor.engine.unsent_events import UnsentEvents
from supervisor.ports.edges import Clock
from supervisor.ports.questions import NodeEvents, Part, TellUpdate, Whole
from supervisor.ports.reports import JobReport, NodeReport
from supervisor.queries import merged_report
from supervisor.queries.job_service import JobService
from supervisor.queries.merged_report import Known

SAVED_RANKS_MAX = 512  # for a job with more ranks, the journal keeps only this node's part
SAVED_AGE_S = 1.0  # while the job runs, the journal's view of other nodes may be this old
CLOCKS_DIFFER_S = 2.0
NEWS_PACE_S = 0.002  # per node of the job


class _Heard(msgspec.Struct):
    """The data of one job."""

    roster: Roster | None = None  # when last seen: the coordinator goes before the job's record
    nodes: dict[str, Known] = msgspec.field(default_factory=dict[str, Known])
    unheard: dict[str, int] = msgspec.field(default_factory=dict[str, int])  # asked and never heard -> since (Unix ns)
    # By node and its submission: the newest of its events that was confirmed first at the moment given.
    answered: dict[tuple[str, int], tuple[int, int]] = msgspec.field(
        default_factory=dict[tuple[str, int], tuple[int, int]]
    )
    keepers: dict[str, None] = msgspec.field(default_factory=dict[str, None])  # nodes that keep this leader's events
    apart_clocks: set[str] = msgspec.field(default_factory=set[str])
    whole: Whole | None = None  # from the leader's last message
    whole_at_ns: int = 0
    saved: JobReport | None = None
    saved_at_s: float = 0.0


class ClusterView:
    def __init__(
        self,
        *,
        job_service: JobService,
        engine_state: EngineState,
        publisher: EventPublisher,
        unsent: UnsentEvents,
        jobs: Mapping[str, JobRecord],
        clock: Clock,
    ) -> None:
        self._job_service = job_service
        self._engine_state = engine_state
        self._publisher = publisher
        self._unsent = unsent
        self._jobs = jobs
        self._clock = clock
        self._heard: dict[tuple[str, int], _Heard] = {}

    def is_shared(self, job_id: str) -> bool:
        """Returns whether the job has other nodes."""
        job = self._jobs.get(job_id)
        return job is not None and job.spec.nodes is not None

    def roster(self, job_id: str) -> Roster | None:
        """Returns the roster; None if this node does not lead the job and never has."""
        heard, state = self._of(job_id), self._engine_state.coordinators.get(job_id)
        if state is not None:
            heard.roster = roster(state)
        return heard.roster

    def own_name(self, job_id: str) -> str:
        """Returns this node's name in the job."""
        job, own = self._jobs.get(job_id), self._job_service.node().name
        return own if job is None else job.node_name(own)

    def own_part(self, job_id: str) -> Part | None:
        own = self._job_service.job(job_id) if self.is_shared(job_id) else None
        node = msgspec.structs.replace(self._job_service.node(), name=self.own_name(job_id))
        return None if own is None else Part(own, node)

    # --- the leader's ----------------------------------------------------------------------------------------------

    def hear(self, job_id: str, node: str, part: Part) -> None:
        """Stores a node's current part."""
        heard = self._of(job_id)
        heard.nodes[node] = Known(part.part, part.node, self._clock.unix_ns())
        heard.unheard.pop(node, None)

    def miss(self, job_id: str, node: str) -> None:
        """Notes that a node has not answered."""
        heard = self._of(job_id)
        if node in heard.nodes:
            heard.nodes[node] = msgspec.structs.replace(heard.nodes[node], answers=False)
        else:
            heard.unheard.setdefault(node, self._clock.unix_ns())

    def announced(self, job: JobRecord, announcement: Announcement) -> None:
        """Notes lost nodes. See announcement_followers.py."""
        if isinstance(announcement, NodeLost):
            self._note_lost(job, announcement)

    def _note_lost(self, job: JobRecord, lost: NodeLost) -> None:
        heard, now_ns = self._of(job.spec.job_id), self._clock.unix_ns()
        nodes = heard.nodes
        heard.unheard.pop(lost.node, None)
        heard.keepers.pop(lost.node, None)
        empty = JobReport(job.spec.job_id, state=self._job_service.report(job).state, submitted_at_ns=now_ns, cycle=-1)
        known = nodes.get(lost.node, Known(empty, NodeReport(lost.node, "lost"), now_ns))
        node = msgspec.structs.replace(known.node, state="lost", reason=lost.reason)
        nodes[lost.node] = msgspec.structs.replace(
            known, node=node, answers=False, lost_at_ns=now_ns, lost_reason=lost.reason
        )

    def take_events(self, job_id: str, node: str, update: TellUpdate) -> int:
        """Stores an update. Returns the last event up to which all of the node's are here; the node sends the rest."""
        job, heard = self._jobs[job_id], self._of(job_id)
        self.hear(job_id, node, Part(update.part, update.node))
        life = (node, update.part.submitted_at_ns)
        had = job.taken.get(life, 0)
        told = NodeEvents(
            node, update.part.submitted_at_ns, update.events, update.gone_through, update.after, update.sent_at_ns
        )
        taken = take_events(self._publisher, job, told)
        for each in update.others:
            if (each.node, each.submitted_at_ns) != (self.own_name(job_id), job.submitted_at_ns):
                take_events(self._publisher, job, msgspec.structs.replace(each, told_at_ns=update.sent_at_ns))
        self._compare_clocks(job, heard, node, update, had)
        if taken > had:
            heard.answered[life] = taken, self._clock.unix_ns()
        return taken

    def own_events(self, job_id: str, by: str, update: TellUpdate) -> NodeEvents:
        """Returns the next of this leader's own events for a node; most nodes of a large job get and keep none."""
        job, keepers = self._jobs[job_id], self._of(job_id).keepers
        own = NodeEvents(self.own_name(job_id), job.submitted_at_ns, told_at_ns=self._clock.unix_ns())
        if by not in keepers and len(keepers) == leaders_events.KEEPERS_MAX:
            return own
        keepers[by] = None
        return leaders_events.own_next(self._unsent.of(job_id), own, update)

    def record(self, job_id: str, told: NodeEvents) -> None:
        """Adds a leader's own events to the history of this node, which may lead next."""
        if told.events and (job := self._jobs.get(job_id)) is not None:
            take_leaders_events(self._publisher, job, told)

    def pace_s(self, job_id: str) -> float:
        """Returns how long a node waits between its news, so that all nodes take a small part of the leader's time."""
        return NEWS_PACE_S * len(self._of(job_id).nodes)

    def _compare_clocks(self, job: JobRecord, heard: _Heard, node: str, update: TellUpdate, had: int) -> None:
        """Reports a clock that differs. News may have waited, so only a reply to our answer shows a clock behind."""
        through, answered_at_ns = heard.answered.get((node, update.part.submitted_at_ns), (0, 0))
        is_reply = 0 < had == through and bool(update.events) and update.events[0].sequence > had
        ahead_s = (update.sent_at_ns - self._clock.unix_ns()) / 1e9
        behind_s = (answered_at_ns - update.sent_at_ns) / 1e9 if is_reply else 0.0
        if not update.sent_at_ns or max(ahead_s, behind_s) < CLOCKS_DIFFER_S or node in heard.apart_clocks:
            return
        heard.apart_clocks.add(node)
        off = f"{ahead_s:.1f} s ahead of" if ahead_s > 0 else f"{behind_s:.1f} s behind"
        text = f"the clock of node {node} is {off} this node's, and so are the times of its events"
        self._publisher.publish(job, JobEvent("clocks_differ", text, job.cycle))

    def merged(self, job_id: str) -> JobReport:
        """Returns the whole job from known data; this node's part is current."""
        own, found = self.own_part(job_id), self.roster(job_id)
        assert own is not None, "only a job that is known here is asked for"
        if found is None:
            return own.part
        self.hear(job_id, own.node.name, own)
        heard = self._of(job_id)
        return merged_report.merged(own.part, found, heard.nodes, now_ns=self._clock.unix_ns(), unheard=heard.unheard)

    def nodes(self, job_id: str) -> tuple[NodeReport, ...]:
        """Returns the nodes as last heard, including lost ones."""
        shown: list[NodeReport] = []
        for known in self._of(job_id).nodes.values():
            is_silent = not known.answers and known.lost_at_ns is None
            silent_s = (self._clock.unix_ns() - known.heard_at_ns) / 1e9
            reason = f"no answer for {silent_s:.1f} s" if is_silent else known.node.reason
            shown.append(msgspec.structs.replace(known.node, reason=reason))
        unheard = self._of(job_id).unheard
        shown += (NodeReport(name, "unknown", "it has not connected to this supervisor yet") for name in unheard)
        return tuple(shown)

    def saved(self, job: JobRecord) -> JobReport:
        """Returns the report for the journal. Other nodes' parts in it are updated only from time to time."""
        own = self._job_service.report(job)
        if not self.is_shared(job.spec.job_id):
            return own
        heard, now_s = self._of(job.spec.job_id), self._clock.now_s()
        has_ended = own.state.has_ended
        if heard.saved is None or has_ended or now_s - heard.saved_at_s >= SAVED_AGE_S:
            heard.saved, heard.saved_at_s = self.merged(job.spec.job_id), now_s
        others = heard.saved
        if len(others.ranks) > SAVED_RANKS_MAX:
            return own
        ranks = (*own.ranks, *(rank for rank in others.ranks if rank.node != self.own_name(job.spec.job_id)))
        nodes = others.nodes or own.nodes
        return msgspec.structs.replace(own, nodes=nodes, ranks=tuple(sorted(ranks, key=_by_rank)))

    # --- the others' -----------------------------------------------------------------------------------------------

    def hear_whole(self, job_id: str, whole: Whole) -> None:
        heard = self._of(job_id)
        heard.whole, heard.whole_at_ns = whole, self._clock.unix_ns()

    def last_whole(self, job_id: str) -> tuple[JobReport, tuple[NodeReport, ...]]:
        """Returns what this node knows of the whole job without its leader."""
        own, heard = self.own_part(job_id), self._of(job_id)
        assert own is not None, "only a job that is known here is asked for"
        if heard.whole is None:
            return own.part, (own.node,)
        report = merged_report.apart(
            heard.whole.job, own=own.part, heard_at_ns=heard.whole_at_ns, now_ns=self._clock.unix_ns()
        )
        return report, tuple(own.node if each.name == own.node.name else each for each in heard.whole.nodes)

    def _of(self, job_id: str) -> _Heard:
        job = self._jobs[job_id]
        key = (job_id, job.submitted_at_ns)
        if key not in self._heard:
            for old in [each for each in self._heard if each[0] == job_id or each[0] not in self._jobs]:
                del self._heard[old]
            self._heard[key] = _Heard()
        return self._heard[key]


_by_rank = attrgetter("rank")
