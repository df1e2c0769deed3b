"""How do the sections of all ranks reach the node that compares them, and who learns which ranks are slow?

A rank that closes a section tells nobody: it stamps its page. So this node looks at the pages of its ranks now and
then, and tells the job's leader what is new. Nobody waits for it: what is lost is told with the next look, since the
numbers only grow. A job whose ranks stamp no sections costs nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec
from anyio.abc import TaskGroup

from supervisor.core.stragglers import stragglers
from supervisor.core.stragglers.messages import RankSections, SectionsTold, Straggler
from supervisor.engine.chronicle import Chronicle
from supervisor.engine.job_book import JobRecord
from supervisor.errors import HoldfastError
from supervisor.pauses import pause
from supervisor.ports import Clock
from supervisor.questions import LEADER, Colleagues, SectionsTaken, TellSections

LOOK_S = 2.0
PACE_S = 0.01  # for each node of the job: a leader hears at most a hundred nodes a second
PACE_MAX_S = 600.0
PATIENCE_PACES = 3  # a round waits so long for ranks that are behind
PATIENCE_MIN_S = 30.0
ANSWER_TIMEOUT_S = 3.0
NAMES_CHARACTERS_MAX = 1 << 16

_log = logging.getLogger("holdfast")


class Tallies(Protocol):
    """Of one rank, since its client came."""

    names: tuple[str, ...]
    times: list[int]

    @property
    def total_s(self) -> list[float]: ...


class SectionPages(Protocol):
    def section_tallies(self, job_id: str, cycle: int, local_rank: int) -> Tallies | None: ...


class _Look(msgspec.Struct):
    """Of one job, by this node."""

    job: JobRecord
    cycle: int = -1
    told: dict[int, tuple[int, ...]] = msgspec.field(default_factory=dict[int, tuple[int, ...]])  # by rank


class _Compared(msgspec.Struct):
    """One job that is led from here."""

    job: JobRecord
    state: stragglers.State = msgspec.field(default_factory=stragglers.initial_state)
    nodes: set[str] = msgspec.field(default_factory=set[str])


class SectionWatch:
    """Lives on the event loop. Nothing here raises into what a job needs."""

    def __init__(
        self,
        *,
        pages: SectionPages,
        colleagues: Colleagues,
        jobs: Mapping[str, JobRecord],
        chronicle: Chronicle,
        clock: Clock,
        own_name: Callable[[str], str],
        tasks: TaskGroup,
    ) -> None:
        """`own_name`: what this node is called in a job."""
        self._pages = pages
        self._colleagues = colleagues
        self._jobs = jobs
        self._chronicle = chronicle
        self._clock = clock
        self._own_name = own_name
        self._tasks = tasks
        self._looks: dict[str, _Look] = {}
        self._compared: dict[str, _Compared] = {}

    def watch(self, job_id: str) -> None:
        """A rank of the job has come that may stamp sections."""
        job, known = self._jobs.get(job_id), self._looks.get(job_id)
        if job is not None and (known is None or known.job is not job):
            look = self._looks[job_id] = _Look(job)
            self._tasks.start_soon(self._serve, job_id, look)

    def named(self, job_id: str) -> tuple[Straggler, ...]:
        """Who is slow in the job at this moment; nobody where another node leads it."""
        known, job = self._compared.get(job_id), self._jobs.get(job_id)
        if known is None or known.job is not job or known.job.verdict is not None:
            return ()
        return stragglers.named(known.state) if self._colleagues.leads(job_id) else ()

    def hear(self, job_id: str, node: str, told: TellSections) -> SectionsTaken:
        """A node of a job that is led from here."""
        job = self._jobs[job_id]
        known = self._compared.get(job_id)
        if known is None or known.job is not job:
            self._compared = {name: each for name, each in self._compared.items() if self._is_live(name, each.job)}
            known = self._compared[job_id] = _Compared(job)
        known.nodes.add(node)
        pace_s = max(LOOK_S, PACE_S * len(known.nodes))
        event = SectionsTold(node, told.cycle, told.names, told.ranks)
        known.state, actions = stragglers.step(
            known.state, event, now_s=self._clock.now_s(), patience_s=max(PATIENCE_MIN_S, PATIENCE_PACES * pace_s)
        )
        for action in actions:
            self._chronicle.publish(job, action.event)
        if actions:
            self._chronicle.settle()
        return SectionsTaken(pace_s)

    def _is_live(self, job_id: str, job: JobRecord) -> bool:
        return self._jobs.get(job_id) is job and job.verdict is None

    async def _serve(self, job_id: str, look: _Look) -> None:
        """Until the job has ended."""
        pace_s = LOOK_S
        try:
            while self._is_live(job_id, look.job):
                await pause(pace_s, why="a rank that stamps its page tells nobody, which is why stamps cost so little")
                if self._is_live(job_id, look.job):
                    pace_s = await self._look(job_id, look, pace_s)
        except Exception:  # noqa: BLE001 - the bulkhead: that nobody compares the ranks must not end the job
            _log.warning("the ranks of job %s are not compared any more", job_id, exc_info=True)
        if self._looks.get(job_id) is look:
            del self._looks[job_id]

    async def _look(self, job_id: str, look: _Look, pace_s: float) -> float:
        """Returns how long to wait until the next."""
        if look.cycle != look.job.cycle:
            look.cycle, look.told = look.job.cycle, {}
        news = self._news(job_id, look)
        if news is None:
            return pace_s
        if self._colleagues.leads(job_id):
            return self.hear(job_id, self._own_name(job_id), news).pace_s
        try:
            answer = await self._colleagues.ask(job_id, LEADER, news, timeout_s=ANSWER_TIMEOUT_S)
        except HoldfastError:
            look.told = {}  # A leader that is new, or was away, hears all; an older version takes none.
            return min(2 * pace_s, PACE_MAX_S)
        return min(answer.pace_s, PACE_MAX_S) if isinstance(answer, SectionsTaken) else PACE_MAX_S

    def _news(self, job_id: str, look: _Look) -> TellSections | None:
        """What has changed since the last look; None: nothing."""
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
    """As many as one message holds, whatever they are called."""
    characters, chosen = 0, list[str]()
    for name in names:
        characters += len(name)
        if characters > NAMES_CHARACTERS_MAX:
            break
        chosen.append(name)
    return tuple(chosen)
