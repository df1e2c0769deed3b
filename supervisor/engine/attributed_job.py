"""How does the leader of a job ask the attribution service about its cycles, and what does the job learn?

The leader's coordinator announces the cycles, and events of all nodes say which logs are closed;
core/attribution/attribution_requests.py decides what to ask. The job does not wait for any of this.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol, assert_never

import anyio
import msgspec
from anyio.abc import TaskGroup

from supervisor.config.attribution_settings import StopAction
from supervisor.config.job_logs import cycle_log_path
from supervisor.core.attribution import attribution_requests
from supervisor.core.facts import JobEvent, JobState
from supervisor.engine.job_record import JobRecord
from supervisor.ports.edges import Clock
from supervisor.ports.reports import RecordedEvent

LOG_CLOSED = "cycle_log_closed"


class Service(Protocol):
    """The service as used here. Its methods never raise and answer within a bounded time."""

    async def submit(self, log_path: str, *, is_terminal: bool) -> attribution_requests.Reply: ...

    async def verdict(self, log_path: str) -> attribution_requests.Reply: ...


class Dependencies(msgspec.Struct, frozen=True):
    """The functions that this part of the engine needs from the rest, for one job."""

    clock: Clock
    watch: Callable[[], AbstractAsyncContextManager[AsyncIterator[RecordedEvent]]]  # yields the events of all its nodes
    publish: Callable[[JobEvent], None]
    forbid: Callable[[str], None]  # forbids another cycle: the job ends on all its nodes


class AttributedJob:
    """One run of a job that this node leads. `hear` never blocks and never raises."""

    def __init__(self, job: JobRecord, dependencies: Dependencies, service: Service | None) -> None:
        """`service` None: one is being started; `comes_up` brings it."""
        self.job = job
        self._dependencies = dependencies
        self._service = service
        self._forbids = job.spec.attribution.stop_action is StopAction.NO_RESTART
        self._state = attribution_requests.initial_state(forbids=self._forbids, is_up=service is not None)
        self._inbox: deque[attribution_requests.Event] = deque()
        self._came = anyio.Event()
        self._request = anyio.CancelScope()
        self.is_dismissed = False

    def dismiss(self) -> None:
        """Stops asking: another node leads the job."""
        self.is_dismissed = True
        self._came.set()

    def comes_up(self, service: Service) -> None:
        """Uses the service from now on; it may differ from the previous one."""
        self._service = service
        self.hear(attribution_requests.ServiceUp())

    def hear(self, event: attribution_requests.Event) -> None:
        self._inbox.append(event)
        self._came.set()

    async def run(self) -> None:
        """Runs until nothing is left to ask, at most a few seconds after the end of the job."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._follow)
            while not self._state.is_over and not self.is_dismissed:
                await self._wait()
                while self._inbox:
                    self._step(self._inbox.popleft(), tasks)
                self._step(attribution_requests.DeadlineReached(), tasks)
            tasks.cancel_scope.cancel()

    async def _wait(self) -> None:
        deadline_s = attribution_requests.next_deadline_s(self._state)
        wait_s = float("inf") if deadline_s is None else max(0.0, deadline_s - self._dependencies.clock.now_s())
        with anyio.move_on_after(wait_s):
            await self._came.wait()
        self._came = anyio.Event()

    async def _follow(self) -> None:
        """Reports each log that a node has closed, and the job's end, after which no event comes."""
        async with self._dependencies.watch() as events:
            async for event in events:
                if event.kind == LOG_CLOSED:
                    self.hear(attribution_requests.LogClosed(event.cycle, event.node))
        verdict = self.job.verdict
        self.hear(attribution_requests.JobEnded(succeeded=verdict is not None and verdict.state is JobState.SUCCEEDED))

    def _step(self, event: attribution_requests.Event, tasks: TaskGroup) -> None:
        self._state, actions = attribution_requests.step(self._state, event, now_s=self._dependencies.clock.now_s())
        for action in actions:
            match action:
                case attribution_requests.Submit() | attribution_requests.AskVerdict():
                    self._request.cancel()  # a request to a service that is gone
                    self._request = anyio.CancelScope()
                    tasks.start_soon(self._ask, action, self._request)
                case attribution_requests.Warn(reason):
                    sentence = f"{reason}; the job goes on without it"
                    self._dependencies.publish(JobEvent("attribution_unavailable", sentence, cycle=self.job.cycle))
                case attribution_requests.Tell(cycle, judged):
                    self._dependencies.publish(self._told(cycle, judged))
                case attribution_requests.Forbid(reason):
                    self._dependencies.forbid(f"the attribution service advises to stop: {reason}")
                case _:
                    assert_never(action)

    async def _ask(
        self, request: attribution_requests.Submit | attribution_requests.AskVerdict, scope: anyio.CancelScope
    ) -> None:
        service = self._service
        if service is None:
            return
        path = cycle_log_path(self.job.spec.logs.cycle_prefix, request.cycle)
        with scope:
            if isinstance(request, attribution_requests.Submit):
                reply = await service.submit(path, is_terminal=request.is_terminal)
            else:
                reply = await service.verdict(path)
            self.hear(attribution_requests.Replied(request, reply))

    def _told(self, cycle: int, judged: attribution_requests.Judged) -> JobEvent:
        advice = f"its advice is {judged.advice}"
        if judged.advice == attribution_requests.STOP and not self._forbids:
            advice += ", which --ft-attribution-stop-action no-restart would follow"
        reason = judged.reason or "no reason is given"
        return JobEvent(
            "cycle_attributed",
            f"the attribution service about cycle {cycle}: {reason}; {advice}",
            cycle=cycle,
            details=(("advice", judged.advice), ("reason", judged.reason), ("source", judged.source)),
        )
