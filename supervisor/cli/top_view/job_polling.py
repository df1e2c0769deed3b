"""What do all supervisors that this user may ask report now, and what has happened since the last look?

Blocking; the view calls it in a thread, so that a supervisor that hangs never holds up the keys.
"""

from __future__ import annotations

from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import msgspec

from supervisor.cli.concurrent_queries import ask_all
from supervisor.cli.control import ask_live
from supervisor.cli.events import events_of
from supervisor.cli.supervisor_discovery import OTHERS_LIST_S, FoundJob, Run, Supervisors
from supervisor.cli.top_view.ended_jobs import EndedJobs
from supervisor.edges.machine.clock import Clock
from supervisor.edges.operators.control_client import ControlClient
from supervisor.errors import HoldfastError
from supervisor.ports.reports import RecordedEvent
from supervisor.report.summary import checkpoint_line
from supervisor.report.timeline.timeline_builder import life_of

EVENTS_KEPT = 200  # of each job
HISTORY_MAX = 20_000  # events of the opened job that its checkpoints are judged by
EVENTS_S = 30.0  # for the events of all jobs


class Look(msgspec.Struct, frozen=True):
    """The state at one moment. `messages` says which supervisors did not answer, and why."""

    at_ns: int
    jobs: tuple[FoundJob, ...] = ()
    supervisors: int = 0
    messages: tuple[str, ...] = ()
    events: tuple[tuple[Run, RecordedEvent], ...] = ()  # of all live jobs, oldest first
    ended: frozenset[Run] = frozenset()  # those of the jobs that have ended while the view was open
    checkpoints: str = ""  # what those of the opened job cost, and which interval would be best; "": unknown


class JobPoller:
    """Asks repeatedly and remembers the events that it has seen. May be used by one thread at a time."""

    def __init__(self, arguments: Namespace) -> None:
        self._arguments = arguments
        self._clock = Clock()
        self._events: dict[Run, deque[RecordedEvent]] = {}
        self._whole: set[Run] = set()  # ended jobs whose events are all known
        self._ended = EndedJobs()
        self._history: tuple[Run, list[RecordedEvent]] | None = None  # of the job that is opened
        self._checkpoints = ""  # of that one

    def look(self, *, include_ended: bool = False, opened: str = "") -> Look:
        """Returns what is there now. Never raises: `messages` says what went wrong.

        `opened` is a job that is wanted even if it has ended.
        """
        messages: list[str] = []

        def say(message: str) -> None:
            if message not in messages:  # Jobs are listed up to three times in one look.
                messages.append(message)

        try:
            with Supervisors(self._arguments, say=say) as supervisors:
                jobs = supervisors.jobs(include_ended=include_ended)
                list_all = partial(supervisors.jobs, include_ended=True)
                ended = self._ended.note(jobs, list_all, is_complete=not messages)
                self._read_events(ended, supervisors, say)
                jobs += self._ended.beside(jobs)
                supervisors.tell_refusals()
                if opened and all(job.name != opened for job in jobs):
                    jobs.append(supervisors.find(opened, verb="show"))
                wanted = [job for job in jobs if job.is_live or job.name == opened or job.run in self._ended]
                self._read_events(wanted, supervisors, say)
                self._forget_all_but(jobs)
                opened_job = next((job for job in jobs if job.name == opened and job.is_live), None)
                checkpoints = self._judged(opened_job, say) if opened_job is not None else ""
                asked = len(supervisors.answering)
        except HoldfastError as error:
            return Look(self._clock.unix_ns(), messages=(*messages, str(error)))
        events = [(run, each) for run, kept in self._events.items() for each in kept]
        events.sort(key=lambda each: each[1].at_ns)
        return Look(
            self._clock.unix_ns(),
            tuple(jobs),
            asked,
            tuple(messages),
            tuple(events),
            frozenset(job.run for job in jobs if job.run in self._ended),
            checkpoints,
        )

    def ask(self, verb: str, job_id: str, question: Callable[[ControlClient, str], str]) -> str:
        """Returns the answer of the job's supervisor; a refusal is an answer, too."""
        told: list[str] = []
        try:
            with Supervisors(self._arguments, say=told.append) as supervisors:
                job, client = ask_live(supervisors, job_id, verb=verb)
                return question(client, job.report.job_id)
        except HoldfastError as error:
            return str(error)

    def _read_events(self, jobs: Sequence[FoundJob], supervisors: Supervisors, say: Callable[[str], None]) -> None:
        """Reads the new events; all events of an ended job, once. Asks all supervisors at the same time."""
        groups: dict[int, list[FoundJob]] = {}
        for job in jobs:
            groups.setdefault(id(job.supervisor), []).append(job)
        questions = [partial(self._new_events, group, supervisors, say) for group in groups.values()]
        for read in ask_all(questions, within_s=EVENTS_S):
            if isinstance(read, HoldfastError):
                say(str(read))
                continue
            for job, events in read:
                if not job.is_live:
                    self._whole.add(job.run)
                self._events[job.run] = deque(_joined(self._events.get(job.run, ()), events), EVENTS_KEPT)

    def _new_events(
        self, jobs: Sequence[FoundJob], supervisors: Supervisors, say: Callable[[str], None]
    ) -> list[tuple[FoundJob, deque[RecordedEvent]]]:
        """Returns new events of the jobs of one supervisor, named as this user names the job.

        All jobs of another user together have a bounded time.
        """
        until_s = self._clock.now_s() + OTHERS_LIST_S
        found: list[tuple[FoundJob, deque[RecordedEvent]]] = []
        for job in jobs:
            left_s = None if job.is_own else until_s - self._clock.now_s()
            if left_s is not None and left_s <= 0:
                break  # The next look goes on.
            kept = self._events.get(job.run)
            events: deque[RecordedEvent] = deque(maxlen=EVENTS_KEPT)
            try:
                if job.is_live and job.supervisor is not None:
                    told = _newer(job, job.supervisor.client, kept[-1] if kept else None, left_s)
                elif job.run not in self._whole:
                    told = events_of(job, supervisors, follow=False, within_s=left_s, say=say)
                else:
                    continue
                events.extend(msgspec.structs.replace(each, job_id=job.name) for each in told)
            except HoldfastError as error:
                say(str(error))
            found.append((job, events))
        return found

    def _judged(self, job: FoundJob, say: Callable[[str], None]) -> str:
        """Returns what the checkpoints of a live job cost, by its whole history."""
        if job.supervisor is None:
            return ""
        if self._history is None or self._history[0] != job.run:
            self._history, self._checkpoints = (job.run, []), ""
        events = self._history[1]
        known = len(events)
        if known <= HISTORY_MAX:
            try:
                within_s = None if job.is_own else OTHERS_LIST_S
                told = list(_newer(job, job.supervisor.client, events[-1] if events else None, within_s))
                events[:] = _joined(events, told)
            except HoldfastError as error:
                say(str(error))
        if len(events) > HISTORY_MAX:
            return ""
        if len(events) > known:
            self._checkpoints = checkpoint_line(life_of(job.report, events, now_ns=self._clock.unix_ns()))
        return self._checkpoints

    def _forget_all_but(self, jobs: list[FoundJob]) -> None:
        known = {job.run for job in jobs}
        self._events = {run: kept for run, kept in self._events.items() if run in known}
        self._whole &= known


def _newer(
    job: FoundJob, client: ControlClient, last: RecordedEvent | None, within_s: float | None
) -> Iterator[RecordedEvent]:
    """Yields the events after the last known one. It is read again: if another one has its number, all events are new.

    The next leader numbers the events itself, and so does this node while no leader answers.

    Yields none if another run of the job's id has just begun: the next look finds that one.
    """

    def read(after_sequence: int) -> Iterator[RecordedEvent]:
        for told in client.watch(job.report.job_id, after_sequence=after_sequence, within_s=within_s):
            if isinstance(told, RecordedEvent):
                yield told
            elif told.submitted_at_ns != job.report.submitted_at_ns:
                return

    if last is not None:
        newer = read(last.sequence - 1)
        if (again := next(newer, None)) is not None and again.identity == last.identity:
            yield from newer
            return
    yield from read(0)


def _joined(known: Iterable[RecordedEvent], told: Sequence[RecordedEvent]) -> list[RecordedEvent]:
    """Returns all of them, each once. Those that were told now come last, in their order."""
    again = {each.identity for each in told}
    return [*(each for each in known if each.identity not in again), *told]
