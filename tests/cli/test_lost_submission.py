"""What is left of a job whose supervisor was lost: how long is it waited for before the job is submitted again?"""

from __future__ import annotations

import threading
import time

import pytest
from msgspec.structs import replace

from supervisor.cli import submission
from supervisor.cli.submission import UnknownStartError
from supervisor.core.facts import JobState
from supervisor.edges.machine.clock import Clock
from supervisor.errors import HoldfastError
from tests.cli.test_submission import GONE, SILENT, TAKEN, Client, Signal, ours, submission_to

LOST = "its supervisor (pid 0) has ended without recording a verdict; processes of the job are left"


@pytest.mark.parametrize("answers", [[None, None], [GONE, TAKEN, None]])
def test_what_is_left_of_a_job_that_the_journal_alone_knows_is_waited_for(answers: list[HoldfastError | None]):
    client = Client(*answers)
    job, _ = submission_to(client)
    if answers[0] is None:
        job.submit()
    left = replace(ours(), state=JobState.STOPPING, reason=LOST)
    client.live = [left, left, left, replace(left, state=JobState.FAILED, exit_code=1)]
    client.on_call = lambda: client.live.pop(0) if len(client.live) > 1 else None
    assert job.submit_again(None) if answers[0] is None else job.submit() == "j"
    assert client.submitted == len(answers)


def test_a_stop_while_something_is_left_of_a_job_that_the_journal_alone_knows_starts_nothing_elsewhere():
    client = Client(GONE)
    job, _ = submission_to(client)
    client.live = [replace(ours(), state=JobState.STOPPING, reason=LOST)]
    stop = Signal(job, client)
    with pytest.raises(UnknownStartError, match="knows it from the journal alone"):
        job.submit()
    stop.join()


def test_a_supervisor_that_returns_late_a_second_time_has_time_to_answer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(submission, "FREE_WITHIN_S", 0.05)
    monkeypatch.setattr(submission, "STOPPED_ANSWERS_WITHIN_S", 0.05)
    client = Client(GONE)
    job, _ = submission_to(client)
    client.live, client.unanswered, client.on_call = [ours()], [GONE], lambda: time.sleep(0.1)
    assert (job.submit(), client.submitted) == ("j", 1)


def test_a_supervisor_that_has_answered_all_along_has_time_for_its_last_answer(monkeypatch: pytest.MonkeyPatch):
    now_s = 1000.0

    class Played(Clock):
        def now_s(self) -> float:
            return now_s

    class Waits(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            nonlocal now_s
            now_s += (timeout or 0.0) + 0.04  # It is woken late.
            return self.is_set()

    def answer() -> None:
        nonlocal now_s
        if client.asked_within_s and client.asked_within_s[-1] < 0.1:
            client.unanswered = [SILENT]
        elif client.asked_within_s:
            now_s = max(now_s, 1000.0 + submission.FREE_WITHIN_S - 0.15)

    monkeypatch.setattr(submission, "Clock", Played)
    client = Client(GONE, None)
    job, _ = submission_to(client)
    job._stop_asked = Waits()  # pyright: ignore[reportPrivateUsage]
    client.live, client.on_call = [replace(ours(), state=JobState.STOPPING, reason=LOST)], answer
    assert (job.submit(), client.submitted) == ("j", 2)
