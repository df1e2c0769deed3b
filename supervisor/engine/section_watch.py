"""How, and how often, do the sections of all ranks reach the node that compares them; who learns what they show?

A rank that closes a section only stamps its page. So this node checks its ranks' pages from time to time, and sends
changes to the job's leader. Nobody waits for it: lost data is sent with the next check, since the numbers only grow. A
job whose ranks stamp no sections costs nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec
from anyio.abc import TaskGroup

from supervisor.core import checkpoint_times
from supervisor.core.stragglers import straggler_reporting
from supervisor.core.stragglers.straggler_messages import RankSections, SectionsTold
from supervisor.engine.event_publisher import EventPublisher
from supervisor.engine.job_record import JobRecord
from supervisor.engine.known_stragglers import KnownStragglers
from supervisor.engine.report_saving import ReportSaving
from supervisor.errors import HoldfastError
from supervisor.ports.edges import Clock
from supervisor.ports.questions import LEADER, NodeRequests, SectionsTaken, TellSections
from supervisor.ports.timed_waits import pause

LOOK_S = 2.0
PACE_S = 0.01  # per node of the job: a leader hears at most a hundred nodes a second
PACE_MAX_S = 600.0
PATIENCE_PACES = 3  # how long a round waits for ranks that are behind
PATIENCE_MIN_S = 30.0
ANSWER_TIMEOUT_S = 3.0
NAMES_CHARACTERS_MAX = 1 << 16

_log = logging.getLogger("holdfast")


class Tallies(Protocol):
    """The tallies of one rank since its client came."""

    names: tuple[str, ...]
    times: list[int]

    @property
    def total_s(self) -> list[float]: ...


class SectionPages(Protocol):
    def section_tallies(self, job_id: str, cycle: int, local_rank: int) -> Tallies | None: ...


class _Look(msgspec.Struct):
    """This node's check of one job."""

    job: JobRecord
    cycle: int = -1
    told: dict[int, tuple[int, ...]] = msgspec.field(default_factory=dict[int, tuple[int, ...]])  # by rank


class _Compared(msgspec.Struct):
    """The comparison for one job that this node leads."""

    job: JobRecord
    state: straggler_reporting.State = msgspec.field(default_factory=straggler_reporting.initial_state)
    checkpoints: checkpoint_times.State = msgspec.field(default_factory=checkpoint_times.initial_state)
    nodes: set[str] = msgspec.field(default_factory=set[str])


class SectionWatch:
    """Watches sections, on the event loop. Its errors do not reach what a job needs."""

    def __init__(
        self,
        *,
        pages: SectionPages,
        node_requests: NodeRequests,
        jobs: Mapping[str, JobRecord],
        publisher: EventPublisher,
        saving: ReportSaving,
        clock: Clock,
        own_name: Callable[[str], str],
        slow: KnownStragglers,
        tasks: TaskGroup,
    ) -> None:
        """`own_name` returns this node's name in a job. `slow` gets what is found."""
        self._pages = pages
        self._node_requests = node_requests
        self._jobs = jobs
        self._publisher = publisher
        self._saving = saving
        self._clock = clock
        self._own_name = own_name
        self._slow = slow
        self._tasks = tasks
        self._looks: dict[str, _Look] = {}
        self._compared: dict[str, _Compared] = {}

    def watch(self, job_id: str) -> None:
        """Watches a job: one of its ranks may stamp sections."""
        job, known = self._jobs.get(job_id), self._looks.get(job_id)
        if job is not None and (known is None or known.job is not job):
            look = self._looks[job_id] = _Look(job)
            self._tasks.start_soon(self._serve, job_id, look)

    def hear(self, job_id: str, node: str, told: TellSections) -> SectionsTaken:
        """Takes the sections of a node of a job that this node leads."""
        job = self._jobs[job_id]
        known = self._compared.get(job_id)
        if known is None or known.job is not job:
            self._compared = {name: each for name, each in self._compared.items() if self._is_live(name, each.job)}
            known = self._compared[job_id] = _Compared(job)
        known.nodes.add(node)
        pace_s = max(LOOK_S, PACE_S * len(known.nodes))
        event = SectionsTold(node, told.cycle, told.names, told.ranks)
        now_s, patience_s = self._clock.now_s(), max(PATIENCE_MIN_S, PATIENCE_PACES * pace_s)
        known.state, found = straggler_reporting.step(known.state, event, now_s=now_s, patience_s=patience_s)
        known.checkpoints, measured = checkpoint_times.step(known.checkpoints, event, now_s=now_s)
        self._slow.note(job, straggler_reporting.named(known.state))
        actions = (*found, *measured)
        for action in actions:
            self._publisher.publish(job, action.event)
        if actions:
            self._saving.settle()
        return SectionsTaken(pace_s)

    def _is_live(self, job_id: str, job: JobRecord) -> bool:
        return self._jobs.get(job_id) is job and job.verdict is None

    async def _serve(self, job_id: str, look: _Look) -> None:
        """Runs until the job has ended."""
        pace_s = LOOK_S
        try:
            while self._is_live(job_id, look.job):
                await pause(pace_s, why="a rank that stamps its page tells nobody, which is why stamps cost so little")
                if self._is_live(job_id, look.job):
                    pace_s = await self._look(job_id, look, pace_s)
        except Exception:  # noqa: BLE001 - the bulkhead: a failure to compare ranks must not end the job
            _log.warning("the ranks of job %s are not compared any more", job_id, exc_info=True)
        if self._looks.get(job_id) is look:
            del self._looks[job_id]

    async def _look(self, job_id: str, look: _Look, pace_s: float) -> float:
        """Checks once; returns how long to wait until the next check."""
        if look.cycle != look.job.cycle:
            look.cycle, look.told = look.job.cycle, {}
        news = self._news(job_id, look)
        if news is None:
            return pace_s
        if self._node_requests.leads(job_id):
            return self.hear(job_id, self._own_name(job_id), news).pace_s
        try:
            answer = await self._node_requests.ask(job_id, LEADER, news, timeout_s=ANSWER_TIMEOUT_S)
        except HoldfastError:
            look.told = {}  # a new leader, or one that was away, gets everything; an older version accepts none
            return min(2 * pace_s, PACE_MAX_S)
        return min(answer.pace_s, PACE_MAX_S) if isinstance(answer, SectionsTaken) else PACE_MAX_S

    def _news(self, job_id: str, look: _Look) -> TellSections | None:
        """Returns the changes since the last check; None if there are none."""
        names: tuple[str, ...] = ()
        ranks: list[RankSections] = []
        for local_rank in range(look.job.spec.local_world_size):
            tallies = self._pages.section_tallies(job_id, look.cycle, local_rank)
            if tallies is None or not tallies.names:
                continue
            names = names or _few(tallies.names)
            rank, times = look.job.first_rank + local_rank, tuple(tallies.times[: len(names)])
            if any(times) and look.told.get(rank) != times and tallies.names[: len(names)] == names:
                look.told[rank] = times
                ranks.append(RankSections(rank, times, tuple(tallies.total_s[: len(names)])))
        return TellSections(look.cycle, names, tuple(ranks)) if ranks else None


def _few(names: Sequence[str]) -> tuple[str, ...]:
    """Returns as many names as one message holds, whatever their length."""
    characters, chosen = 0, list[str]()
    for name in names:
        characters += len(name)
        if characters > NAMES_CHARACTERS_MAX:
            break
        chosen.append(name)
    return tuple(chosen)
