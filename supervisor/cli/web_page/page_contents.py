"""What does the web page show of each job, and how does it learn of changes without polling?

A live job's supervisor streams its events, and after each of them the job is looked at once more. The kernel notices
new jobs: every supervisor writes them into a journal. Heartbeats are not events, so while somebody reads, each live job
is also looked at every two seconds, for all readers together.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import threading
from argparse import Namespace
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path

import msgspec

from supervisor.cli import output
from supervisor.cli.job_owners import name_of, user_name
from supervisor.cli.supervisor_discovery import FoundJob, Supervisors
from supervisor.cli.web_page.rank_rows import ranks_document
from supervisor.core.event_weights import Weight, weight
from supervisor.edges.machine.clock import Clock
from supervisor.edges.operators.control_client import ControlClient
from supervisor.edges.operators.event_json import timestamp
from supervisor.errors import ExhaustedError, HoldfastError
from supervisor.ports.reports import JobReport, RecordedEvent

EVENTS_MAX = 40  # of each job, the newest ones
ENDED_MAX = 50  # jobs that have ended, the newest ones
ENDED_OF_ANOTHER_MAX = 10  # of one other user
FOLLOWED_MAX = 64  # live jobs; each takes two threads
OF_ANOTHER_MAX = 16  # of those, jobs of one other user
LIVE_OF_ANOTHER_MAX = 200  # jobs of one other user, who may claim any number
HEARD_MAX = 400_000  # events and looks of one job in HEARD_S; a journal keeps 200,000 events
HEARD_S = 60.0
ODD_RANKS_MAX = 40
LOOKS_SHARE = 0.05  # of a supervisor's time, for the looks at ages of one job
LOOKS_MAX_S = 20.0  # between two of them, however long an answer took
_USUAL = ("running", "exited")

Key = tuple[int, str, int]  # FoundJob.run


class Shown(msgspec.Struct):
    """One job; `version` is a new number after each change, and `look` after each look at the ages of its ranks."""

    name: str
    report: JobReport
    is_live: bool
    version: int = 0
    look: int = 0
    looked_at_s: float = 0.0
    every_s: float = output.REFRESH_S
    events: deque[RecordedEvent] = msgspec.field(default_factory=deque[RecordedEvent])  # of the newest stream
    earlier: list[RecordedEvent] = msgspec.field(default_factory=list[RecordedEvent])  # of the streams before it


class Known(msgspec.Struct):
    """What one reader knows: the version of each job, and the last look at its ranks."""

    versions: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    looks: dict[str, int] = msgspec.field(default_factory=dict[str, int])


class PageContents:
    """What the pages show; several threads may use it. `on_change` is called in any of them; it must not block."""

    def __init__(self, arguments: Namespace, on_change: Callable[[], None]) -> None:
        self._arguments = arguments
        self._on_change = on_change
        self._lock = threading.Lock()
        self._shown: dict[Key, Shown] = {}
        self._followed: dict[Key, threading.Event] = {}  # wakes the thread that looks at the job
        self._numbers = itertools.count(1)  # each used once: a job may leave and return while a reader is slow
        self._readers = 0
        self._clock = Clock()
        self._messages: tuple[str, ...] = ()
        self._unheard: dict[int, str] = {}  # users whose supervisors send without end, and what people read of it

    def look_again(self) -> None:
        """Looks for jobs. Blocks; never raises."""
        messages: list[str] = []
        found: list[FoundJob] = []
        try:
            with Supervisors(self._arguments, say=messages.append) as supervisors:
                found = supervisors.jobs(include_ended=True)
                supervisors.tell_refusals()
        except HoldfastError as error:
            messages.append(str(error))
        ended: Counter[int] = Counter()
        live: Counter[int] = Counter()
        kept: set[Key] = set()
        for job in found:
            (live if job.is_live else ended)[job.uid] += 1
            if not job.is_live and ended[job.uid] > (ENDED_MAX if job.is_own else ENDED_OF_ANOTHER_MAX):
                continue
            if job.is_own or live[job.uid] <= LIVE_OF_ANOTHER_MAX:
                kept.add(job.run)
                self._take_report(job.run, job.report, is_live=job.is_live)
                if job.is_live and job.supervisor is not None:
                    self._follow(job, job.supervisor.client)
        with self._lock:
            self._messages = (*messages, *self._unheard.values())
            self._shown = {key: shown for key, shown in self._shown.items() if key in kept or key in self._followed}
        self._on_change()

    @contextlib.contextmanager
    def reading(self) -> Generator[None]:
        """Keeps the ages of ranks fresh meanwhile: while nobody reads, no supervisor is asked for them."""
        with self._lock:
            self._readers += 1
            lookers = list(self._followed.values())
        for wake in lookers:
            wake.set()
        try:
            yield
        finally:
            with self._lock:
                self._readers -= 1

    def updates(self, known: Known) -> dict[str, object]:
        """Returns what a reader does not know yet, and takes note of it in `known`."""
        with self._lock:
            shown = sorted(self._shown.items(), key=lambda each: (not each[1].is_live, -each[0][2]))
            order = [_run_name(key) for key, _ in shown]
            for numbers in (known.versions, known.looks):
                for gone in numbers.keys() - order:  # The page drops it, and has to be told all of it if it returns.
                    del numbers[gone]
            changed: dict[str, object] = {}
            looks: dict[str, object] = {}
            for key, each in shown:
                name = _run_name(key)
                if known.versions.get(name) != each.version:
                    known.versions[name] = each.version
                    changed[name] = _document(each)
                if each.is_live and known.looks.get(name) != each.look:
                    known.looks[name] = each.look
                    aged_s = self._clock.now_s() - each.looked_at_s
                    ranks = ranks_document(
                        each.report, now_ns=self._clock.unix_ns(), aged_s=aged_s, every_s=each.every_s
                    )
                    is_followed, jobs_followed = key in self._followed, len(self._followed)
                    looks[name] = {**ranks, "is_followed": is_followed, "jobs_followed": jobs_followed}
            return {"order": order, "jobs": changed, "looks": looks, "messages": self._messages}

    def _take_report(self, key: Key, report: JobReport, *, is_live: bool, took_s: float = 0.0) -> None:
        """Shows the report. A job whose supervisor needs long for it (`took_s`) is looked at less often."""
        with self._lock:
            known = self._shown.setdefault(key, Shown(name_of(key[1], key[0]), report, is_live))
            is_same = known.is_live == is_live and _without_ages(known.report) == _without_ages(report)
            if not (known.version and is_same):
                known.version = next(self._numbers)
            known.report, known.is_live = report, is_live
            known.look = next(self._numbers)
            known.looked_at_s = self._clock.now_s()
            known.every_s = max(output.REFRESH_S, min(took_s / LOOKS_SHARE, LOOKS_MAX_S))
        self._on_change()

    def _take_event(self, key: Key, event: RecordedEvent, events: deque[RecordedEvent]) -> None:
        """Shows the event, which joins the `events` of its stream.

        Each stream begins with all past events, but if the job's leader is silent, with those of one node only.
        """
        with self._lock:
            known = self._shown.get(key)
            if known is None or weight(event.kind) is Weight.ROUTINE:
                return
            if known.events is not events:
                known.earlier, known.events = _newest_events(known), events
            events.append(event)
            known.version = next(self._numbers)
        self._on_change()

    def _follow(self, job: FoundJob, client: ControlClient) -> None:
        key = job.run
        with self._lock:
            if key in self._followed or len(self._followed) >= FOLLOWED_MAX:
                return
            of_user = sum(uid == job.uid for uid, _, _ in self._followed)
            if not job.is_own and (of_user >= OF_ANOTHER_MAX or job.uid in self._unheard):
                return
            self._followed[key] = happened = threading.Event()
        threading.Thread(target=self._read_stream, args=(key, client.socket_path, happened), daemon=True).start()

    def _read_stream(self, key: Key, socket_path: Path, happened: threading.Event) -> None:
        """Reads until the job has ended or its supervisor has gone."""
        over = threading.Event()
        with ControlClient(socket_path) as client:
            looker = threading.Thread(target=self._look_at, args=(key, client, happened, over), daemon=True)
            looker.start()
            events: deque[RecordedEvent] = deque(maxlen=EVENTS_MAX)
            try:
                for told in self._heard(key, client.watch(key[1], follow=True)):
                    if isinstance(told, JobReport) and not _is_of(key, told):
                        break  # The id is another run's by now: the next look tells them apart.
                    if isinstance(told, JobReport):
                        self._take_report(key, told, is_live=not told.state.has_ended)
                    else:
                        self._take_event(key, told, events)
                        happened.set()
            except HoldfastError:
                pass  # The next look says what has become of it.
            over.set()
            happened.set()
            looker.join()
        with self._lock:
            del self._followed[key]
        self.look_again()

    def _heard(self, key: Key, told: Iterable[JobReport | RecordedEvent]) -> Iterator[JobReport | RecordedEvent]:
        """Passes on what a supervisor tells, unless it is more in a minute than any job has to tell."""
        number, began_s = 0, self._clock.now_s()
        for each in told:
            if self._clock.now_s() - began_s > HEARD_S:
                number, began_s = 0, self._clock.now_s()
            number += 1
            if number > HEARD_MAX and key[0] != os.geteuid():
                with self._lock:
                    self._unheard[key[0]] = (
                        f"the supervisor of user {user_name(key[0])} sends events without end: its jobs are no longer "
                        "followed, only looked at from time to time"
                    )
                return
            yield each

    def _look_at(self, key: Key, client: ControlClient, happened: threading.Event, over: threading.Event) -> None:
        """Refreshes the job after each event, or after several that came meanwhile; for readers, also in between."""
        while True:
            happened.wait(self._pause_s(key))
            if over.is_set():
                return
            happened.clear()
            began_s = self._clock.now_s()
            try:
                report = client.job(key[1])
            except ExhaustedError:
                continue  # It is busy or stalled. The page says how old the ages are.
            except HoldfastError:
                return
            if _is_of(key, report):
                self._take_report(key, report, is_live=not report.state.has_ended, took_s=self._clock.now_s() - began_s)

    def _pause_s(self, key: Key) -> float | None:
        """Returns the time until the next look at the ages; None while nobody reads."""
        with self._lock:
            shown = self._shown.get(key)
            return None if not self._readers else output.REFRESH_S if shown is None else shown.every_s


def _run_name(key: Key) -> str:
    return f"{name_of(key[1], key[0])}@{key[2]}"


def _is_of(key: Key, report: JobReport) -> bool:
    """Returns whether the report is of that run, and not of another one of the same id."""
    return (key[0], report.job_id, report.submitted_at_ns) == key


def _without_ages(report: JobReport) -> JobReport:
    """Returns what changes only with an event."""
    ranks = tuple(rank.without_ages() for rank in report.ranks)
    return msgspec.structs.replace(report, ranks=ranks)


def _newest_events(shown: Shown) -> list[RecordedEvent]:
    """Returns the events of all streams, each once."""
    told_again = {each.identity for each in shown.events}
    earlier = (each for each in shown.earlier if each.identity not in told_again)
    return list(heapq.merge(earlier, shown.events, key=lambda each: each.at_ns))[-EVENTS_MAX:]


def _document(shown: Shown) -> dict[str, object]:
    report = shown.report
    states = Counter(rank.state for rank in report.ranks)
    odd = [rank for rank in report.ranks if rank.state not in _USUAL]
    return {
        "job_id": shown.name,
        "state": report.state.value,
        "is_live": shown.is_live,
        "cycle": report.cycle,
        "iteration": report.iteration,
        "restarts_used": report.restarts_used,
        "max_restarts": report.max_restarts,
        "reason": report.reason,
        "nodes": len(report.nodes),
        "ranks": len(report.ranks),
        "rank_states": dict(sorted(states.items())),
        "odd_ranks": [
            {"rank": rank.rank, "node": rank.node, "state": rank.state} for rank in odd[:ODD_RANKS_MAX]
        ],
        "run": str(report.submitted_at_ns),  # more digits than a number of JavaScript keeps
        "submitted_at": timestamp(report.submitted_at_ns),
        "ended_at": timestamp(report.ended_at_ns) if report.ended_at_ns is not None else None,
        "now": timestamp(Clock().unix_ns()),
        "exit_code": report.exit_code,
        "events": [
            {"at": timestamp(each.at_ns), "kind": each.kind, "reason": each.reason, "rank": each.rank,
             "node": each.node, "cycle": each.cycle, "is_fault": weight(each.kind) >= Weight.FAULT}
            for each in reversed(_newest_events(shown))
        ],
    }  # fmt: skip
