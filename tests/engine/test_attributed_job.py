"""Does the leader of a job ask about its cycles as they begin and end, and does the job get the answers?"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup

from supervisor.config import JobSpec
from supervisor.config.attribution_settings import Attribution, StopAction
from supervisor.config.job_logs import JobLogs
from supervisor.core.attribution import attribution_requests
from supervisor.core.attribution.attribution_requests import Judged, Reply, Taken
from supervisor.core.facts import JobEvent, JobState, Verdict
from supervisor.edges.machine.clock import Clock
from supervisor.engine.attributed_job import AttributedJob, Dependencies
from supervisor.engine.job_record import JobRecord
from supervisor.ports.reports import RecordedEvent


class PlayedService:
    """Answers as a test says, and keeps the questions."""

    def __init__(self, judged: Reply) -> None:
        self.judged = judged
        self.asked: list[str] = []

    async def submit(self, log_path: str, *, is_terminal: bool) -> Reply:
        self.asked.append(f"{'terminal' if is_terminal else 'progressive'} {log_path}")
        return Taken()

    async def verdict(self, log_path: str) -> Reply:
        self.asked.append(f"verdict {log_path}")
        return self.judged


class World:
    def __init__(self, judged: Reply, action: StopAction = StopAction.NO_RESTART, *, comes_late: bool = False) -> None:
        spec = JobSpec("j", ("t.py",), logs=JobLogs("/l/t.log"), attribution=Attribution("http://x", action))
        self.job = JobRecord(spec, {}, 5, "/logs")
        self.published: list[JobEvent] = []
        self.forbidden: list[str] = []
        self.service = PlayedService(judged)
        self._send, self._receive = anyio.create_memory_object_stream[RecordedEvent](100)
        self._changed = anyio.Event()
        dependencies = Dependencies(
            clock=Clock(),
            watch=self._watch,
            publish=self._publish,
            forbid=self._forbid,
        )
        self.asked = AttributedJob(self.job, dependencies, None if comes_late else self.service)

    @asynccontextmanager
    async def _watch(self) -> AsyncGenerator[AsyncIterator[RecordedEvent]]:
        async with self._receive:
            yield self._receive

    def _publish(self, event: JobEvent) -> None:
        self.published.append(event)
        self._changed.set()

    def _forbid(self, reason: str) -> None:
        self.forbidden.append(reason)

    def start(self, cycle: int) -> None:
        self.asked.hear(attribution_requests.CycleBegan(cycle))

    def end(self, cycle: int) -> None:
        self.asked.hear(attribution_requests.CycleEnded(cycle, ("a",)))

    def close_log(self, cycle: int) -> None:
        self._send.send_nowait(RecordedEvent("j", 1, 1, "cycle_log_closed", "", cycle=cycle, node="a"))

    def finish(self, verdict: Verdict) -> None:
        self.job.verdict = verdict
        self._send.close()

    async def hears(self, count: int) -> None:
        with anyio.fail_after(20):
            while len(self.published) < count:
                self._changed = anyio.Event()
                await self._changed.wait()


@asynccontextmanager
async def running(world: World) -> AsyncGenerator[TaskGroup]:
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(world.asked.run)
            yield tasks


SUCCESS = Verdict(JobState.SUCCEEDED, 0, "")


async def test_a_cycle_is_asked_about_as_it_begins_and_once_its_log_is_complete():
    world = World(Judged("STOP", "the disk is full", "rules"))
    async with running(world):
        world.start(0)
        world.end(0)
        world.start(1)
        world.close_log(0)
        await world.hears(1)
        world.finish(SUCCESS)
    assert [each for each in world.service.asked if "cycle0" in each] == [
        "progressive /l/t_cycle0.log", "terminal /l/t_cycle0.log", "verdict /l/t_cycle0.log",
    ]  # fmt: skip
    assert [each for each in world.service.asked if "cycle1" in each][-1] == "terminal /l/t_cycle1.log"
    assert [(each.kind, each.cycle) for each in world.published] == [("cycle_attributed", 0)]
    assert world.published[0].details == (("advice", "STOP"), ("reason", "the disk is full"), ("source", "rules"))
    assert world.forbidden == ["the attribution service advises to stop: the disk is full"]


async def test_where_it_is_only_to_be_logged_nothing_is_forbidden():
    world = World(Judged("STOP", "the disk is full"), StopAction.LOG)
    async with running(world):
        world.start(0)
        world.end(0)
        world.close_log(0)
        await world.hears(1)
        world.finish(SUCCESS)
    assert "no-restart would follow" in world.published[0].reason
    assert world.forbidden == []


async def test_a_service_that_comes_up_later_hears_what_there_is():
    world = World(Judged("RESTART", "x"), comes_late=True)
    async with running(world):
        world.start(0)
        world.end(0)
        world.close_log(0)
        world.asked.comes_up(world.service)
        await world.hears(1)
        world.finish(Verdict(JobState.FAILED, 1, ""))
    assert world.service.asked[0] == "terminal /l/t_cycle0.log"


async def test_another_leader_asks_from_then_on():
    world = World(Judged("RESTART", "x"))
    async with running(world):
        world.start(0)
        world.asked.dismiss()
    world.finish(SUCCESS)
    assert world.published == []
