"""What do the journal's tests record, and how do they receive its alarms?"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator
from pathlib import Path

from supervisor.core.facts import JobState
from supervisor.edges.machine.journal.journal import Journal
from supervisor.edges.machine.journal.journal_reader import JournalReader
from supervisor.ports.reports import JobNodeReport, JobReport, RankReport, RecordedEvent, SectionReport


def report(job_id: str = "train", submitted_at_ns: int = 1_000, state: JobState = JobState.RUNNING) -> JobReport:
    return JobReport(
        job_id=job_id,
        state=state,
        submitted_at_ns=submitted_at_ns,
        cycle=2,
        reason="all ranks run",
        nodes=(JobNodeReport("n0", "ready", 0),),
        ranks=(RankReport(0, 0, "n0", "running", pid=7, sections=(SectionReport("step", 0.5, 3.0),)),),
        ended_at_ns=9_000 if state.has_ended else None,
        exit_code=0 if state.has_ended else None,
        command=("train.py", "--lr", "0.1"),
    )


def event(sequence: int, job_id: str = "train", reason: str = "because") -> RecordedEvent:
    return RecordedEvent(
        job_id, sequence, 1_000 + sequence, "worker_exited", reason, 1, 0, "n0", 3, (("exit_code", "9"),)
    )


class Alarms(list[str]):
    """The alarms that people got, with a way to wait for the next."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()

    def __call__(self, text: str) -> None:
        with self._changed:
            self.append(text)
            self._changed.notify_all()

    def wait(self, holds: Callable[[list[str]], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: holds(self), 10), list(self)


@contextlib.contextmanager
def started(state_dir: Path, alarms: Alarms | None = None) -> Generator[Journal]:
    journal = Journal(state_dir, on_alarm=alarms if alarms is not None else unexpected)
    journal.start()
    try:
        yield journal
    finally:
        journal.close()


def unexpected(text: str) -> None:
    raise AssertionError(text)


def sequences(journal: Journal | JournalReader, job_id: str = "train", after: int = 0) -> list[int]:
    return [each.sequence for each in journal.events(job_id, after_sequence=after, limit=100_000)]
