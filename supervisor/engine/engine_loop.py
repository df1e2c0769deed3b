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
from supervisor.core.cluster import (
    cluster_messages,
    coordinator,
    coordinator_announcements,
    coordinator_states,
    job_termination,
    leader_takeover,
)
from supervisor.core.defects import defect_sentence
from supervisor.core.leader_ledger import Ledger
from supervisor.core.node import node, node_messages
from supervisor.core.node.job_machines import JobMachines
from supervisor.engine.engine_inbox import EngineEvent, EngineInbox
from supervisor.engine.engine_state import EngineState
from supervisor.ports.edges import Clock
from supervisor.ports.timed_waits import PAUSED_S, TURN_EVERY_S, pause

LATE_S = 0.05  # a timer this late means that the loop was blocked
LATE_GRACE_S = 0.02  # then data in the sockets is read before any silence is judged

ROUNDS_MAX = 32  # rounds of events caused by events before changes are shown and saved; deadlines come in between
TURN_S = 0.005  # after this time, the edges get their turn before more events are taken


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
        """Shows and saves changes: nothing is left to decide for now."""
        ...


class Engine:
    """Runs the machines of this node's jobs, and the coordinators of jobs that it leads."""

    def __init__(
        self,
        *,
        clock: Clock,
        inbox: EngineInbox,
        engine_state: EngineState,
        performer: Performer,
        jitter: Callable[[], float],
        turn_every_s: float = TURN_EVERY_S,
    ) -> None:
        """`engine_state`: only the engine writes them. `turn_every_s`: infinite where the clock of a test leaps."""
        self._clock = clock
        self._inbox = inbox
        self._engine_state = engine_state
        self._performer = performer
        self._jitter = jitter
        self._turn_every_s = turn_every_s
        self._deadline_s: float | None = None  # of all machines, before the events that are being handled
        self._ran_at_s = clock.now_s()  # the begin of the last turn, or the end of a pause since then

    def take_back(self, job_id: str, machines: JobMachines, led: coordinator.State | None) -> None:
        """Continues a job where another supervisor stopped."""
        self._engine_state.node_state = node.with_job(self._engine_state.node_state, job_id, machines)
        if led is not None:
            self._engine_state.coordinators[job_id] = led
            self._performer.announce(job_id, coordinator_announcements.lead_taken(led))

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Runs until cancelled."""
        task_status.started()
        self._ran_at_s = self._clock.now_s()
        while True:
            deadline_s = self._deadline_s = self._engine_state.next_deadline_s()
            stood_still = was_paused = False
            if deadline_s is None:
                await self._inbox.wait()
            else:
                due_s = min(deadline_s, self._ran_at_s + self._turn_every_s)
                with anyio.move_on_after(max(0.0, due_s - self._clock.now_s())):
                    await self._inbox.wait()
                stood_still = self._clock.now_s() - due_s > LATE_S
                if stood_still:
                    await self._take_what_waits()
                was_paused = self._clock.now_s() - due_s > PAUSED_S
            if was_paused:
                self._pass_over()  # Before what has come since: its own deadlines count from now.
            else:
                self._ran_at_s = self._clock.now_s()
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
        self._performer.settled()

    def _pass_deadlines(self) -> None:
        if self._deadline_s is not None and self._deadline_s <= self._clock.now_s():
            if self._clock.now_s() - self._ran_at_s > PAUSED_S:
                self._pass_over()
            self.handle(node_messages.DeadlineReached())
            for job_id in list(self._engine_state.coordinators):
                self.handle(cluster_messages.Reported(job_id, cluster_messages.DeadlineReached()))
            self._deadline_s = self._engine_state.next_deadline_s()

    def _pass_over(self) -> None:
        """Handles a pause that has just ended: this process was stopped or starved, perhaps with its ranks."""
        since_s, self._ran_at_s = self._ran_at_s, self._clock.now_s()
        self.handle(node_messages.ProcessPaused(since_s))
        for job_id, led in list(self._engine_state.coordinators.items()):
            self._engine_state.move(job_id, coordinator_states.after_pause(led, since_s, self._clock.now_s()))
        self._deadline_s = self._engine_state.next_deadline_s()

    def handle(self, event: EngineEvent) -> None:
        """Handles one event and everything that follows from it at once."""
        if isinstance(event, cluster_messages.Reported):
            if isinstance(event.report, cluster_messages.Leadership):
                self._change_leader(event.job_id, event.report)
            else:
                self._step_coordinator(event.job_id, event.report)
            return
        pending: deque[node_messages.Event] = deque([event])
        while pending:
            current = pending.popleft()
            state, actions = node.step(self._engine_state.node_state, current, now_s=self._clock.now_s())
            self._engine_state.node_state = state
            for action in actions:
                pending.extend(self._performer.perform(action))
                if isinstance(action, node_messages.FinishJob):
                    self._forget(action.job_id)

    def _change_leader(self, job_id: str, change: cluster_messages.Leadership) -> None:
        """Starts a new leader's coordinator from the ledger, or drops that of a former leader."""
        self._engine_state.coordinators.pop(job_id, None)
        if isinstance(change, cluster_messages.LeadershipLost):
            self._performer.announce(job_id, coordinator_announcements.lead_lost())
            return
        leader, now_s = self._performer.name_in(job_id), self._clock.now_s()
        led = leader_takeover.initial_state(job_id, change, leader=leader, now_s=now_s)
        self._engine_state.coordinators[job_id] = led
        self._performer.announce(job_id, coordinator_announcements.lead_taken(led))

    def _step_coordinator(self, job_id: str, report: cluster_messages.Event) -> None:
        state = self._engine_state.coordinators.get(job_id)
        if state is None:
            if not self._performer.leads(job_id):
                return  # a report that outlived its job
            state = coordinator.initial_state(job_id, leader=self._performer.name_in(job_id))
            self._performer.announce(job_id, coordinator_announcements.lead_taken(state))
        try:
            if isinstance(report, cluster_messages.NodeLost):
                self._performer.announce(job_id, coordinator_announcements.node_lost(report))
            state, actions = coordinator.step(state, report, now_s=self._clock.now_s(), jitter=self._jitter())
            self._engine_state.move(job_id, state)
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
            self._engine_state.coordinators.pop(job_id, None)
            self.handle(node_messages.JobAbandoned(job_id, defect_sentence(error)))
            return
        self._forget(job_id)

    def _forget(self, job_id: str) -> None:
        """Drops the coordinator once this node's part was reported and every node has the verdict."""
        state = self._engine_state.coordinators.get(job_id)
        if state is not None and job_termination.is_over(state) and not self._performer.leads(job_id):
            del self._engine_state.coordinators[job_id]
