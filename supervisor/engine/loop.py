"""Who writes the state? Only this loop: it takes events from the inbox, asks the core, and has its actions performed.

Nothing else touches the machines' state, so there are no locks. One timer serves the earliest deadline of all machines.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

import anyio
from anyio.abc import TaskStatus

from supervisor.core.announcements import Announcement
from supervisor.core.cluster import announcing, coordinator, endings, takeover
from supervisor.core.cluster import messages as cluster_messages
from supervisor.core.defects import defect_sentence
from supervisor.core.ledger import Ledger
from supervisor.core.node import messages as node_messages
from supervisor.core.node import node
from supervisor.core.node.job_machines import JobMachines
from supervisor.engine.inbox import Inbox
from supervisor.ports.edges import Clock
from supervisor.ports.pauses import pause

LATE_S = 0.05  # a timer this late means that the loop was blocked
LATE_GRACE_S = 0.02  # then data in the sockets is read before any silence is judged

ROUNDS_MAX = 32  # rounds of events caused by events before changes are shown and saved; deadlines come in between
TURN_S = 0.005  # after this time, the edges get their turn before more events are taken

EngineEvent = node_messages.Event | cluster_messages.Reported


class Performer(Protocol):
    """Performs actions. Immediate answers return as events; all others come through the inbox.

    An external failure of an action never raises here: it comes back as an event of the action's job.

    """

    def perform(self, action: node_messages.Action) -> tuple[node_messages.Event, ...]: ...

    def send(self, job_id: str, action: cluster_messages.Send) -> None: ...

    def publish(self, job_id: str, action: cluster_messages.Publish) -> None: ...

    def record(self, job_id: str, ledger: Ledger) -> None:
        """Records the ledger: orders sent later wait until it is kept."""
        ...

    def announce(self, job_id: str, announcement: Announcement) -> None:
        """Passes it on to everyone who follows the job."""
        ...

    def show(self, job_id: str, *, restarts_used: int, iteration: int) -> None:
        """Notes what the job's coordinator counts, which people may ask for when it is gone."""
        ...

    def leads(self, job_id: str) -> bool:
        """Returns whether this node coordinates the job, and it has not ended."""
        ...

    def name_in(self, job_id: str) -> str:
        """Returns this node's name in the job."""
        ...

    def settled(self) -> None:
        """Called when nothing is left to decide for now: changes may be shown and saved."""
        ...


class Engine:
    """Runs the machines of this node's jobs, and the coordinators of jobs that it leads."""

    def __init__(self, *, clock: Clock, node_name: str, jitter: Callable[[], float]) -> None:
        self._clock = clock
        self.node_name = node_name
        self._jitter = jitter
        self._inbox: Inbox[EngineEvent] = Inbox(_job_of)
        self._deadline_s: float | None = None  # of all machines, before the events that are being handled
        self.node_state = node.initial_state(node_name)
        self.coordinators: dict[str, coordinator.State] = {}
        self._stepped: set[str] = set()  # jobs whose coordinator moved in this turn
        self._performer: Performer | None = None
        self.on_node_lost: Callable[[str, cluster_messages.NodeLost], None] = _nobody  # of a job that this node leads

    def attach(self, performer: Performer) -> None:
        """Sets the performer, which needs the engine itself; call it before `run`."""
        self._performer = performer

    def post(self, event: EngineEvent) -> None:
        """Puts an event into the inbox. Never blocks. Only for the event loop's thread."""
        self._inbox.put(event)

    async def post_in_turn(self, event: EngineEvent) -> None:
        """Does the same for sources that may send any number: waits until the event's job has room."""
        await self._inbox.put_in_turn(event)

    def waiting(self, job_id: str) -> list[EngineEvent]:
        """Returns the events of a job that the machines have not handled yet."""
        return self._inbox.waiting(job_id)

    def take_stepped(self) -> set[str]:
        """Returns the jobs whose coordinator has moved since the last call."""
        stepped, self._stepped = self._stepped, set()
        return stepped

    def take_back(self, job_id: str, machines: JobMachines, led: coordinator.State | None) -> None:
        """Continues a job where another supervisor stopped."""
        self.node_state = node.with_job(self.node_state, job_id, machines)
        if led is not None:
            assert self._performer is not None, "attach() comes before any job"
            self.coordinators[job_id] = led
            self._performer.announce(job_id, announcing.lead_taken(led))

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Runs until cancelled."""
        task_status.started()
        while True:
            deadline_s = self._deadline_s = self._next_deadline_s()
            stood_still = False
            if deadline_s is None:
                await self._inbox.wait()
            else:
                with anyio.move_on_after(max(0.0, deadline_s - self._clock.now_s())):
                    await self._inbox.wait()
                stood_still = self._clock.now_s() - deadline_s > LATE_S
                if stood_still:
                    await self._take_what_waits()
            self._take(stood_still=stood_still)

    async def _take_what_waits(self) -> None:
        """Gives the edges a moment to pass on worker data: the loop was blocked."""
        await pause(LATE_GRACE_S, why="nothing tells that all edges have handed over what waits in their sockets")

    def _take(self, *, stood_still: bool) -> None:
        """Handles waiting events. Checks deadlines after each take; after the loop was blocked, after all of them.

        Deadlines that the events set or move are checked before the next wait: asking every machine after each take
        would cost more than the events do. A deadline that an event has moved is checked once in vain. Other tasks of
        the loop wait for at most TURN_S and one take, however many events wait.
        """
        until_s = self._clock.now_s() + TURN_S
        for taken in range(ROUNDS_MAX):
            events = self._inbox.take()
            if taken and not events:
                break
            for event in events:
                self.handle(event)
            if not stood_still:
                self._pass_deadlines()
                if self._clock.now_s() >= until_s:
                    break
        if stood_still:
            self._pass_deadlines()
        if self._performer is not None:
            self._performer.settled()

    def _pass_deadlines(self) -> None:
        if self._deadline_s is not None and self._deadline_s <= self._clock.now_s():
            self.handle(node_messages.DeadlineReached())
            for job_id in list(self.coordinators):
                self.handle(cluster_messages.Reported(job_id, cluster_messages.DeadlineReached()))
            self._deadline_s = self._next_deadline_s()

    def handle(self, event: EngineEvent) -> None:
        """Handles one event and everything that follows from it at once."""
        if isinstance(event, cluster_messages.Reported):
            if isinstance(event.report, cluster_messages.Leadership):
                self._change_leader(event.job_id, event.report)
            else:
                self._step_coordinator(event.job_id, event.report)
            return
        assert self._performer is not None, "attach() comes before run()"
        pending: deque[node_messages.Event] = deque([event])
        while pending:
            current = pending.popleft()
            self.node_state, actions = node.step(self.node_state, current, now_s=self._clock.now_s())
            for action in actions:
                pending.extend(self._performer.perform(action))

    def _change_leader(self, job_id: str, change: cluster_messages.Leadership) -> None:
        """Starts a new leader's coordinator from the ledger, or drops that of a former leader."""
        assert self._performer is not None, "attach() comes before run()"
        self.coordinators.pop(job_id, None)
        if isinstance(change, cluster_messages.LeadershipLost):
            self._performer.announce(job_id, announcing.lead_lost())
            return
        leader, now_s = self._performer.name_in(job_id), self._clock.now_s()
        led = self.coordinators[job_id] = takeover.initial_state(job_id, change, leader=leader, now_s=now_s)
        self._performer.announce(job_id, announcing.lead_taken(led))

    def _step_coordinator(self, job_id: str, report: cluster_messages.Event) -> None:
        assert self._performer is not None
        state = self.coordinators.get(job_id)
        if state is None:
            if not self._performer.leads(job_id):
                return  # a report that outlived its job
            state = coordinator.initial_state(job_id, leader=self._performer.name_in(job_id))
            self._performer.announce(job_id, announcing.lead_taken(state))
        try:
            if isinstance(report, cluster_messages.NodeLost):
                self.on_node_lost(job_id, report)
            state, actions = coordinator.step(state, report, now_s=self._clock.now_s(), jitter=self._jitter())
            self.coordinators[job_id] = state
            self._stepped.add(job_id)
            used, iteration = coordinator.restarts_used(state), coordinator.current_iteration(state)
            self._performer.show(job_id, restarts_used=used, iteration=iteration)
            for action in actions:
                match action:
                    case cluster_messages.Send():
                        self._performer.send(job_id, action)
                    case cluster_messages.Publish():
                        self._performer.publish(job_id, action)
                    case cluster_messages.Record(ledger):
                        self._performer.record(job_id, ledger)
                    case _:
                        self._performer.announce(job_id, action)
        except Exception as error:  # noqa: BLE001 - the bulkhead: a defect ends only the job in which it occurs
            self.coordinators.pop(job_id, None)
            self.handle(node_messages.JobAbandoned(job_id, defect_sentence(error)))
            return
        self.forget(job_id)

    def forget(self, job_id: str) -> None:
        """Drops the coordinator once this node's part was reported and every node has the verdict."""
        state = self.coordinators.get(job_id)
        assert self._performer is not None
        if state is not None and endings.is_over(state) and not self._performer.leads(job_id):
            del self.coordinators[job_id]

    def _next_deadline_s(self) -> float | None:
        deadlines = [node.next_deadline_s(self.node_state)]
        deadlines += [coordinator.next_deadline_s(state) for state in self.coordinators.values()]
        known = [deadline for deadline in deadlines if deadline is not None]
        return min(known, default=None)


def _nobody(job_id: str, lost: cluster_messages.NodeLost) -> None:
    """Does nothing: nobody records lost nodes."""


def _job_of(event: EngineEvent) -> str:
    """Returns the lane: events of one job keep their order; those of different jobs are taken in turn."""
    match event:
        case cluster_messages.Reported(job_id):  # first, since a leader has thousands of these at once
            return job_id
        case node_messages.JobSubmitted(rules):
            return rules.job_id
        case node_messages.DeadlineReached():
            return ""
        case _:
            return event.job_id
