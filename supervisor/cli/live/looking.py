"""What do all supervisors that this user may ask report now, and what has happened since the last look?

Blocking; the view calls it in a thread, so that a supervisor that hangs never holds up the keys.
"""

from __future__ import annotations

from argparse import Namespace
from collections import deque
from collections.abc import Callable

import msgspec

from supervisor.cli.control import ask_live
from supervisor.cli.events import events_of
from supervisor.cli.supervisors import FoundJob, Supervisors
from supervisor.edges.machine.clock import Clock
from supervisor.edges.operators.control_client import ControlClient
from supervisor.errors import HoldfastError
from supervisor.ports import RecordedEvent

EVENTS_KEPT = 200  # of each job
ENDED_KEPT = 10  # jobs that have ended since the view was opened


class Look(msgspec.Struct, frozen=True):
    """The state at one moment. `messages` says which supervisors did not answer, and why."""

    at_ns: int
    jobs: tuple[FoundJob, ...] = ()
    supervisors: int = 0
    messages: tuple[str, ...] = ()
    events: tuple[RecordedEvent, ...] = ()  # of all live jobs, oldest first


class Lookout:
    """Asks repeatedly and remembers the events that it has seen. May be used by one thread at a time."""

    def __init__(self, arguments: Namespace) -> None:
        self._arguments = arguments
        self._clock = Clock()
        self._events: dict[tuple[str, int], deque[RecordedEvent]] = {}
        self._whole: set[tuple[str, int]] = set()  # ended jobs whose events are all known
        self._live: set[tuple[str, int]] = set()  # in the last look
        self._ended: dict[tuple[str, int], FoundJob] = {}  # those that were live in an earlier look

    def look(self, *, include_ended: bool = False, opened: str = "") -> Look:
        """Never raises: `messages` says what went wrong. `opened` is a job that is wanted even if it has ended."""
        messages: list[str] = []
        try:
            with Supervisors(self._arguments, say=messages.append) as supervisors:
                jobs = supervisors.jobs(include_ended=include_ended)
                self._add_ended(jobs, supervisors, messages)
                supervisors.tell_refusals()
                if opened and all(job.report.job_id != opened for job in jobs):
                    jobs.append(supervisors.find(opened, verb="show"))
                for job in jobs:
                    if job.is_live or job.report.job_id == opened or _run(job) in self._ended:
                        self._read_events(job, supervisors, messages.append)
                self._forget_all_but(jobs)
                asked = len(supervisors.answering)
        except HoldfastError as error:
            return Look(self._clock.unix_ns(), messages=(*messages, str(error)))
        events = sorted((each for kept in self._events.values() for each in kept), key=lambda each: each.at_ns)
        return Look(self._clock.unix_ns(), tuple(jobs), asked, tuple(messages), tuple(events))

    def ask(self, verb: str, job_id: str, question: Callable[[ControlClient, str], str]) -> str:
        """Returns the answer of the job's supervisor; a refusal is an answer, too."""
        told: list[str] = []
        try:
            with Supervisors(self._arguments, say=told.append) as supervisors:
                whole_id, client = ask_live(supervisors, job_id, verb=verb)
                return question(client, whole_id)
        except HoldfastError as error:
            return str(error)

    def _add_ended(self, jobs: list[FoundJob], supervisors: Supervisors, messages: list[str]) -> None:
        """Adds the jobs that have ended while the view was open: people want to see how their job has ended."""
        live = {_run(job) for job in jobs if job.is_live}
        gone = self._live - live
        if gone and messages:
            self._live |= live  # A supervisor that hangs may still have them.
        else:
            self._live = live
            for job in supervisors.jobs(include_ended=True) if gone else ():
                if _run(job) in gone and job.report.state.has_ended:
                    self._ended[_run(job)] = job
                    self._read_events(job, supervisors, messages.append)
                    # The supervisor's channel is closed by the next look.
                    self._ended[_run(job)] = FoundJob(job.report, None)
            while len(self._ended) > ENDED_KEPT:
                self._ended.pop(next(iter(self._ended)))
        shown = {_run(job) for job in jobs}
        runs_again = {job.report.job_id for job in jobs if job.is_live}
        for run, job in self._ended.items():
            if run not in shown and job.report.job_id not in runs_again:
                jobs.append(job)

    def _read_events(self, job: FoundJob, supervisors: Supervisors, say: Callable[[str], None]) -> None:
        """Reads the new events; all events of an ended job, once."""
        kept = self._events.setdefault(_run(job), deque(maxlen=EVENTS_KEPT))
        last = kept[-1].sequence if kept else 0
        try:
            if job.is_live and job.supervisor is not None:
                told = job.supervisor.client.watch(job.report.job_id, after_sequence=last)
                kept.extend(each for each in told if isinstance(each, RecordedEvent))
            elif _run(job) not in self._whole:
                self._whole.add(_run(job))
                kept.clear()
                kept.extend(events_of(job, supervisors, follow=False))
        except HoldfastError as error:
            say(str(error))

    def _forget_all_but(self, jobs: list[FoundJob]) -> None:
        known = {_run(job) for job in jobs}
        self._events = {run: kept for run, kept in self._events.items() if run in known}
        self._whole &= known


def _run(job: FoundJob) -> tuple[str, int]:
    return job.report.job_id, job.report.submitted_at_ns
