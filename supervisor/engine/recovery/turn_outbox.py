"""What is sent at the end of a turn of the engine, together with data kept for a returning supervisor?

All orders of a turn go out in one message with the state that led to them. So the next supervisor knows every order
that was performed, and repeats none. Messages to ranks follow. Answers to their requests, and events, wait until the
data has left: no rank has an answer to a request, and no event is in the journal or was read by people, that the next
supervisor does not know.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial

import anyio
from holdfast_wire import spawner_link as link

from supervisor.core.cluster.cluster_messages import Reported
from supervisor.core.node import node_messages
from supervisor.core.node.job_machines import JobMachines
from supervisor.core.session_state import JobSessions
from supervisor.engine.engine_inbox import EngineInbox
from supervisor.engine.engine_state import EngineState
from supervisor.engine.event_publisher import EventPublisher
from supervisor.engine.job_record import JobRecord
from supervisor.engine.recovery.snapshot_texts import STATE, SnapshotTexts, are_parted, snapshot
from supervisor.engine.report_queue import ReportQueue
from supervisor.engine.waiting_jobs import WaitingJobs
from supervisor.ports.edges import Clock, Meetings
from supervisor.ports.timed_waits import pause

TOGETHER_S = 0.2  # the state of a job of many nodes is long: the news of several of them are kept together

_log = logging.getLogger("holdfast")


class TurnOutbox:
    """Keeps and sends. Use it only from the event loop's thread."""

    def __init__(
        self,
        *,
        inbox: EngineInbox,
        engine_state: EngineState,
        jobs: Mapping[str, JobRecord],
        publisher: EventPublisher,
        clock: Clock,
        reports: Mapping[str, ReportQueue],
        unkept: WaitingJobs,
        meetings: Meetings | None = None,
    ) -> None:
        """`unkept`: jobs to be kept between two turns. `meetings`: where messages go to the other nodes of a job."""
        self._inbox = inbox
        self._engine_state = engine_state
        self._jobs = jobs
        self._publisher = publisher
        self._clock = clock
        self._reports = reports
        self._meetings = meetings
        self._texts = SnapshotTexts()
        self._orders: dict[str, list[link.Order]] = {}
        self._words: list[Callable[[], None]] = []
        self._answers: dict[str, list[tuple[int, Callable[[], None]]]] = {}  # by job, with their numbers
        self._answered = 0
        self._kept: dict[str, JobMachines] = {}
        self._late: set[str] = set()  # jobs of which only the coordinator has moved, and nothing has left since
        self._unfinished: dict[str, dict[int, node_messages.Action]] = {}
        self._numbers = 0
        self._unkept = unkept

    async def run(self) -> None:
        """Keeps between two turns what can't wait for the next one. Runs until cancelled."""
        async with anyio.create_task_group() as tasks:
            has_later = False

            async def settle_later() -> None:
                nonlocal has_later
                await pause(TOGETHER_S, why="a turn within that time keeps them anyway, and others may come")
                has_later = False
                self.settle(late_too=True)

            while True:
                job = self._jobs.get(await self._unkept.take())
                if job is not None and job.spec.nodes is None:
                    self.settle(late_too=True)
                elif job is not None and not has_later:
                    has_later = True
                    tasks.start_soon(settle_later)

    def order(self, job_id: str, message: link.Order) -> None:
        """Queues an order for the job's spawner, to be sent at the end of the turn."""
        self._orders.setdefault(job_id, []).append(message)

    def say(self, word: Callable[[], None]) -> None:
        """Queues a message to ranks, to be sent after the spawners have their orders."""
        self._words.append(word)

    def answer(self, job_id: str, answer: Callable[[], None]) -> None:
        """Queues an answer to a rank, to be sent once what it asked for is kept; at once if the job is not kept."""
        self._answered += 1
        self._answers.setdefault(job_id, []).append((self._answered, answer))

    def begin(self, action: node_messages.Action) -> int:
        """Notes an action in progress, which the next supervisor would repeat. Returns the number for `end`."""
        self._numbers += 1
        # Spawners are found again, and reports to the coordinator wait in their own queue.
        if not isinstance(action, node_messages.StartSpawner | node_messages.TellCoordinator):
            self._unfinished.setdefault(action.job_id, {})[self._numbers] = action
        return self._numbers

    def end(self, job_id: str, number: int) -> None:
        self._unfinished.get(job_id, {}).pop(number, None)

    def settle(self, *, late_too: bool = False) -> None:
        """Ends the turn: keeps and sends everything. `late_too`: even what need not be kept before something leaves."""
        orders, self._orders = self._orders, {}
        moved = self._engine_state.take_moved()
        for job_id, job in self._jobs.items():
            machines = self._engine_state.node_state.jobs.get(job_id)
            has_untold = self._publisher.has_untold(job_id)
            if not job.is_kept:
                self._hand_on(job_id)
            is_late = late_too and job_id in self._late
            is_awaited = has_untold or job_id in self._answers
            if is_awaited or job_id in orders or machines is not self._kept.get(job_id) or is_late:
                self.keep(job, tuple(orders.get(job_id, ())))
                self._publisher.tell_late(job_id)
            elif job_id in moved and are_parted(job.spec):  # Thousands of nodes report in hundreds of turns.
                self._late.add(job_id)
                self._unkept.add(job_id)
            elif job_id in moved:
                self.keep(job)
        words, self._words = self._words, []
        for word in words:
            word()

    def keep_now(self, job_id: str) -> bool:
        """Keeps a job between turns, before messages go out. Returns False until the job's spawner is found."""
        job = self._jobs.get(job_id)
        if job is not None:
            self.keep(job)
        return job is None or not job.is_returning

    def keep(self, job: JobRecord, orders: tuple[link.Order, ...] = ()) -> None:
        """Keeps the job's current state. Does nothing while it has no spawner."""
        job_id = job.spec.job_id
        machines = self._engine_state.node_state.jobs.get(job_id)
        if job.spawner is None or machines is None or job.verdict is not None or not self.keeps(job):
            return
        self._kept[job_id] = machines
        self._late.discard(job_id)
        nodes, waiting = job.spec.nodes, self._inbox.waiting(job_id)
        queue, led = self._reports.get(job_id), self._engine_state.coordinators.get(job_id)
        if nodes is not None and nodes.has_election:  # An elected leader begins with the ledger and what nodes say.
            waiting, led = [each for each in waiting if not isinstance(each, Reported)], None
        kept = snapshot(
            job,
            machines,
            led,
            waiting=waiting,
            unfinished=self._unfinished.get(job_id, {}).values(),
            reports=queue.waiting if queue is not None else (),
            now_s=self._clock.now_s(),
        )
        try:
            texts = self._texts.of(job, kept, self._publisher.uncommitted(job_id), partial(self._sessions, job))
        except (TypeError, ValueError) as error:
            _log.error("job %s can't be kept for the next supervisor: %s", job_id, error, exc_info=error)
            self._texts.forget(job_id)
            texts = {STATE: ""}
        job.spawner.keep(texts, orders, partial(self._hand_on, job_id, job.sequence, self._answered))

    def _hand_on(self, job_id: str, through_sequence: int | None = None, through_answer: int | None = None) -> None:
        """Hands on events and answers that were held back. None: all of them."""
        self._publisher.tell(job_id, through_sequence)
        answers = self._answers.pop(job_id, [])
        later = [each for each in answers if through_answer is not None and each[0] > through_answer]
        if later:
            self._answers[job_id] = later
        for _, answer in answers[: len(answers) - len(later)]:
            answer()

    def _sessions(self, job: JobRecord, whole: bool) -> JobSessions | None:
        if self._meetings is None or job.spec.nodes is None:
            return None
        return self._meetings.session_state(job.spec.job_id, whole=whole)

    def keeps(self, job: JobRecord) -> bool:
        """Returns whether orders for the job go this way."""
        return job.spec.may_come_back

    def forget(self, job_id: str) -> None:
        """Forgets an ended job."""
        self._texts.forget(job_id)
        self._late.discard(job_id)
        for each in (self._orders, self._kept, self._unfinished):
            each.pop(job_id, None)
