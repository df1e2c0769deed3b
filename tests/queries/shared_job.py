"""The other nodes of a job, with the answers that a test chooses."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec.structs import replace

from supervisor.config import JobSpec
from supervisor.config.job_spec import Nodes
from supervisor.core.cluster.cluster_messages import Event, JobOpened, NodeJoined, Reported
from supervisor.core.facts import JobState
from supervisor.errors import NoAnswerError
from supervisor.ports.questions import Answer, Part, Question, SectionsTaken, TellSections
from supervisor.ports.reports import JobReport, NodeReport, RankReport, RecordedEvent
from supervisor.queries.cluster_job_service import ClusterJobService
from tests.engine.world import FakeJournal, World

SHARED = JobSpec("j", ("t.py",), local_world_size=2, nodes=Nodes(1, 1, "127.0.0.1", 1, "n0"))


class FakeNodeRequests:
    """See questions.NodeRequests. `answers`: by node; a missing node does not answer."""

    def __init__(self, *, leads: bool) -> None:
        self._leads = leads
        self.answers: dict[str, Callable[[Question], Answer]] = {}
        self.away = ""
        self.asked: list[tuple[str, Question]] = []

    def leads(self, job_id: str) -> bool:
        assert job_id == "j"
        return self._leads

    def outage(self, job_id: str) -> str:
        assert job_id == "j"
        return self.away

    async def ask(self, job_id: str, to: str, question: Question, *, timeout_s: float) -> Answer:
        assert job_id == "j"
        self.asked.append((to, question))
        if to not in self.answers:
            raise NoAnswerError(f"cannot ask node {to}: no answer within {timeout_s:g} s")
        return self.answers[to](question)


class History:
    """A history for tests; see ports.JobHistory."""

    def __init__(self, journal: FakeJournal) -> None:
        self._journal = journal

    def jobs(self, *, below: tuple[int, str] | None = None) -> Iterator[JobReport]:
        return reversed(self._journal.reports)

    def job(self, job_id: str) -> JobReport | None:
        return next((report for report in reversed(self._journal.reports) if report.job_id == job_id), None)

    def events(self, job_id: str, *, after_sequence: int = 0, limit: int) -> list[RecordedEvent]:
        return [event for event in self._journal.events if event.sequence > after_sequence][:limit]

    def events_in_memory(self, job_id: str, *, after_sequence: int, limit: int) -> list[RecordedEvent] | None:
        return None


class Shared:
    """A node, n0, with a job that it shares with others."""

    def __init__(self, world: World, *, leads: bool) -> None:
        self.world = world
        self.node_requests = FakeNodeRequests(leads=leads)
        self.sections: list[tuple[str, str, TellSections]] = []
        self.view = world.view
        self.job_service = ClusterJobService(
            job_service=world.job_service, view=self.view, node_requests=self.node_requests,
            history=History(world.journal), take_sections=self._take_sections,
        )  # fmt: skip

    def _take_sections(self, job_id: str, by: str, told: TellSections) -> SectionsTaken:
        self.sections.append((job_id, by, told))
        return SectionsTaken(1.0)

    async def report(self, *reports: Event) -> None:
        for report in reports:
            self.world.inbox.post(Reported("j", report))
        await self.world.settle()

    async def bring_spare(self, name: str = "n1") -> None:
        await self.report(JobOpened(name, SHARED.rules()), NodeJoined(name, -1))


@asynccontextmanager
async def shared_job(log_dir: Path, *, leads: bool = True) -> AsyncGenerator[Shared]:
    async with World.opened(log_dir) as world:
        shared = Shared(world, leads=leads)
        await world.submit(SHARED)
        yield shared


def part(name: str, *ranks: int, cycle: int = 0, submitted_at_ns: int = 7) -> Part:
    rows = tuple(RankReport(rank, number, name, "running") for number, rank in enumerate(ranks))
    report = JobReport("j", JobState.RUNNING, submitted_at_ns, cycle=cycle, reason="all run", ranks=rows)
    return Part(replace(report, log_dir=f"/logs/{name}"), NodeReport(name, "ready"))


def happened(node: str, *sequences: int) -> tuple[RecordedEvent, ...]:
    return tuple(RecordedEvent("j", each, 1000 + each, "something", f"{node} {each}", node=node) for each in sequences)
