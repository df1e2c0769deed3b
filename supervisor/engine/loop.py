"""The single writer: takes events from the inbox, lets the core decide, has its actions carried out.

Nothing else touches the machines' state, so there are no locks. One timer, for the earliest deadline of all machines.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

import anyio
from anyio.abc import TaskStatus

from supervisor.core.cluster import coordinator
from supervisor.core.cluster import messages as cluster_messages
from supervisor.core.node import messages as node_messages
from supervisor.core.node import node
from supervisor.engine.inbox import Inbox
from supervisor.ports import Clock

LATE_S = 0.05  # a timer this late means that the loop itself stood still
LATE_GRACE_S = 0.02  # then what the sockets hold is taken before any silence is judged

EngineEvent = node_messages.Event | tuple[str, cluster_messages.Event]


class Performer(Protocol):
    """Carries actions out. What is answered at once comes back as events; everything else arrives by the inbox."""

    def perform(self, action: node_messages.Action) -> tuple[EngineEvent, ...]: ...

    def publish(self, job_id: str, action: cluster_messages.Publish) -> None: ...

    def restart_announced(self, job_id: str, next_cycle: int) -> None:
        """A next cycle will be ordered: what it takes may be made ready."""
        ...

    def leads(self, job_id: str) -> bool:
        """Whether this node coordinates the job, and it has not ended."""
        ...

    def settled(self) -> None:
        """Called when nothing is left to decide for now: what has changed may be shown and saved."""
        ...


class Engine:
    """Runs the machines of all jobs of this node, and the coordinators of jobs that are led from here."""

    def __init__(self, *, clock: Clock, node_name: str, jitter: Callable[[], float]) -> None:
        self._clock = clock
        self.node_name = node_name
        self._jitter = jitter
        self._inbox: Inbox[EngineEvent] = Inbox(_job_of)
        self.node_state = node.initial_state(node_name)
        self.coordinators: dict[str, coordinator.State] = {}
        self._performer: Performer | None = None

    def attach(self, performer: Performer) -> None:
        """The performer and the engine need each other; this closes the circle before `run`."""
        self._performer = performer

    def post(self, event: EngineEvent) -> None:
        """Puts an event into the inbox. Never blocks; only from the event loop's thread."""
        self._inbox.put(event)

    async def post_in_turn(self, event: EngineEvent) -> None:
        """The same for sources that may send any number: waits until the event's job has room for it."""
        await self._inbox.put_in_turn(event)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        task_status.started()
        while True:
            deadline_s = self._next_deadline_s()
            if deadline_s is None:
                await self._inbox.wait()
            else:
                with anyio.move_on_after(max(0.0, deadline_s - self._clock.now_s())):
                    await self._inbox.wait()
                if self._clock.now_s() - deadline_s > LATE_S:
                    await self._take_what_waits()
            self._take()

    async def _take_what_waits(self) -> None:
        """The loop stood still: gives the edges a moment to hand over what workers said meanwhile."""
        with anyio.move_on_after(LATE_GRACE_S):
            await anyio.Event().wait()

    def _take(self) -> None:
        for event in self._inbox.take():
            self.handle(event)
        now_s = self._clock.now_s()
        deadline_s = self._next_deadline_s()
        if deadline_s is not None and deadline_s <= now_s:
            self.handle(node_messages.DeadlineReached())
            for job_id in list(self.coordinators):
                self.handle((job_id, cluster_messages.DeadlineReached()))
        if self._performer is not None:
            self._performer.settled()

    def handle(self, event: EngineEvent) -> None:
        """One event and everything that follows from it at once."""
        assert self._performer is not None, "attach() comes before run()"
        pending: deque[EngineEvent] = deque([event])
        while pending:
            current = pending.popleft()
            if isinstance(current, tuple):
                pending.extend(self._step_coordinator(*current))
                continue
            self.node_state, actions = node.step(self.node_state, current, now_s=self._clock.now_s())
            for action in actions:
                pending.extend(self._performer.perform(action))

    def _step_coordinator(self, job_id: str, event: cluster_messages.Event) -> list[EngineEvent]:
        assert self._performer is not None
        state = self.coordinators.get(job_id)
        if state is None:
            if not self._performer.leads(job_id):
                return []  # A report that outlived its job.
            state = coordinator.initial_state(job_id)
        state, actions = coordinator.step(state, event, now_s=self._clock.now_s(), jitter=self._jitter())
        self.coordinators[job_id] = state
        orders: list[EngineEvent] = []
        for action in actions:
            match action:
                case cluster_messages.OrderCycle():
                    orders.append(node_messages.CycleOrdered(job_id, action.assignment, action.reason))
                case cluster_messages.AnnounceRestart():
                    self._performer.restart_announced(job_id, action.next_cycle)
                    orders.append(node_messages.RestartAnnounced(job_id, action.next_cycle, action.reason))
                case cluster_messages.OrderCall(cycle, members, order):
                    orders.append(node_messages.CallOrdered(job_id, cycle, members, order))
                case cluster_messages.OrderRespawn(cycle, members, reason):
                    orders.append(node_messages.RespawnOrdered(job_id, cycle, members, reason))
                case cluster_messages.EndCall(cycle, call, stands, reason):
                    orders.append(node_messages.CallEnded(job_id, cycle, call, stands, reason))
                case cluster_messages.ReachVerdict():
                    orders.append(node_messages.VerdictReached(job_id, action.verdict))
                case cluster_messages.Publish():
                    self._performer.publish(job_id, action)
        return orders

    def forget(self, job_id: str) -> None:
        """A job has ended and was reported: its coordinator is no longer needed."""
        self.coordinators.pop(job_id, None)

    def _next_deadline_s(self) -> float | None:
        deadlines = [node.next_deadline_s(self.node_state)]
        deadlines += [coordinator.next_deadline_s(state) for state in self.coordinators.values()]
        known = [deadline for deadline in deadlines if deadline is not None]
        return min(known, default=None)


def _job_of(event: EngineEvent) -> str:
    """Events of one job keep their order; those of different jobs are taken in turn."""
    match event:
        case (job_id, _):
            return job_id
        case node_messages.JobSubmitted(rules):
            return rules.job_id
        case node_messages.DeadlineReached():
            return ""
        case _:
            return event.job_id
