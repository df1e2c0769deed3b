"""A supervisor is lost while a job is submitted, or right after that: does the next one get the job, and only once?

And one that does not answer in time: does anybody start the job elsewhere while this one has it?
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator, Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from supervisor.cli import submission
from supervisor.cli.submission import (
    ATTEMPTS_MAX,
    STOPPED_ANSWERS_WITHIN_S,
    StoppedError,
    Submission,
    UnknownStartError,
)
from supervisor.config import JobSpec
from supervisor.core.facts import JobState
from supervisor.edges.machine.clock import Clock
from supervisor.edges.operators.control_client import DeadlineExceededError
from supervisor.errors import AlreadyExistsError, ExhaustedError, HoldfastError, NoSupervisorError, NotFoundError
from supervisor.ports.reports import JobReport, RecordedEvent

SPEC = JobSpec("j", ("train.py",))
GONE = NoSupervisorError("cannot ask the supervisor: it has gone")
TAKEN = AlreadyExistsError("cannot start job j: processes of a job of that id are left")
SILENT = DeadlineExceededError("cannot ask the supervisor at /s: no answer within 10 s; try again")


class Client:
    """Answers each submission in turn; None: with the job's id."""

    socket_path = Path("/s")

    def __init__(self, *answers: HoldfastError | None, comes_back: bool = True) -> None:
        self.answers = list(answers)
        self.comes_back = comes_back
        self.submitted = 0
        self.live: list[JobReport] = []
        self.asked_within_s: list[float] = []
        self.unanswered: list[HoldfastError] = []  # instead of the first answers on the job
        self.on_call: Callable[[], object] = int  # at each submission, and at each question about the job
        self.events: list[RecordedEvent] = []
        self.unread: list[HoldfastError] = []  # instead of the first answers on its events
        self.absences = 0  # how often the next supervisor is looked for in vain

    def submit(self, spec: JobSpec, environment: Mapping[str, str], *, given_up: threading.Event) -> str:
        self.submitted += 1
        self.on_call()
        if (answer := self.answers.pop(0)) is not None:
            raise answer
        return spec.job_id

    def wait_until_ready(self, timeout_s: float) -> bool:
        self.absences -= 1
        return self.comes_back and self.absences < 0

    def job(self, job_id: str, *, within_s: float = 10.0, given_up: threading.Event | None = None) -> JobReport:
        self.asked_within_s.append(within_s)
        self.on_call()
        if self.unanswered:
            raise self.unanswered.pop(0)
        if not self.live:
            raise NotFoundError(f"cannot show job {job_id}: there is no such job here")
        return self.live[0]

    def watch(self, job_id: str, *, this_node: bool, within_s: float) -> Generator[JobReport | RecordedEvent]:
        assert this_node
        yield self.live[0]
        if self.unread:
            raise self.unread.pop(0)
        yield from self.events


def submission_to(client: Client, *, may_be_left: bool = False) -> tuple[Submission, list[str]]:
    said: list[str] = []
    submission = Submission(
        client,  # pyright: ignore[reportArgumentType]
        SPEC,
        {},
        say=said.append,
        may_be_left=lambda _: may_be_left,
    )
    return submission, said


class Signal:
    """A SIGTERM that another thread takes at the first call to the supervisor."""

    def __init__(self, job: Submission, client: Client) -> None:
        self.has_job: list[bool] = []  # what the stop returned
        self._client = client
        self._taking = threading.Thread(target=lambda: self.has_job.append(job.stop(signal.SIGTERM)))
        self._job = job
        client.on_call = self._come

    def join(self) -> None:
        self._taking.join(10)

    def _come(self) -> None:
        self._client.on_call = int
        self._taking.start()
        self._job._stop_asked.wait(10)  # pyright: ignore[reportPrivateUsage]


def report(exit_code: int | None = None, *, submitted_at_ns: int = 1) -> JobReport:
    state = JobState.RUNNING if exit_code is None else JobState.FAILED
    return JobReport("j", state, submitted_at_ns, exit_code=exit_code)


def ours() -> JobReport:
    return report(submitted_at_ns=Clock().unix_ns())


def test_a_lost_submission_is_repeated_at_the_next_supervisor_with_a_sentence():
    client = Client(None, None)
    job, said = submission_to(client)
    assert job.submit() == "j"
    job.hear(RecordedEvent("j", 1, 0, "job_submitted", "r"))
    assert job.submit_again(report())
    assert said == ["the supervisor has gone before job j began; the next one gets the job"]
    assert client.submitted == 2


def test_a_job_that_has_begun_or_ended_is_never_started_a_second_time():
    client = Client(None)
    job, _ = submission_to(client)
    job.submit()
    assert not job.submit_again(report(exit_code=1))
    job.hear(RecordedEvent("j", 2, 0, "worker_started", "r"))
    assert not job.submit_again(None)
    assert client.submitted == 1


def test_a_job_that_the_next_supervisor_has_is_left_with_it():
    client = Client(GONE)
    job, _ = submission_to(client)
    client.live = [ours()]
    assert job.submit() == "j"
    assert job.submit_again(None), "it is followed there"
    assert client.submitted == 1


STARTED = RecordedEvent("j", 2, 2, "worker_started", "r")
CANT_READ = ExhaustedError("cannot read the history: /state hangs")


@pytest.mark.parametrize("unread", [[], [CANT_READ]])
@pytest.mark.parametrize(
    ("state", "events", "submissions"),
    [(JobState.FAILED, [STARTED], 1), (JobState.SUCCEEDED, [], 1), (JobState.STOPPED, [], 1), (JobState.FAILED, [], 2)],
)
def test_a_job_that_the_next_supervisor_knows_as_ended_is_submitted_again_only_if_it_has_not_run(
    state: JobState, events: list[RecordedEvent], submissions: int, unread: list[HoldfastError]
):
    client = Client(GONE, None)
    job, _ = submission_to(client)
    client.live, client.events, client.unread = [replace(ours(), state=state, exit_code=1)], events, [*unread]
    assert job.submit() == "j"
    assert client.submitted == submissions
    client = Client(None, None)
    job, _ = submission_to(client)
    job.submit()
    client.live, client.events, client.unread = [replace(ours(), state=state, exit_code=1)], events, [*unread]
    assert job.submit_again(None), "it is followed there, to its exit code"
    assert client.submitted == submissions


def test_an_ended_job_of_which_nobody_shows_whether_it_has_run_is_not_started_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(submission, "FREE_WITHIN_S", 0.05)
    monkeypatch.setattr(submission, "STOPPED_ANSWERS_WITHIN_S", 0.05)
    monkeypatch.setattr(submission, "LOOK_AGAIN_S", 0.001)
    client = Client(GONE)
    client.unread = [CANT_READ] * 100_000
    job, _ = submission_to(client)
    client.live = [replace(ours(), state=JobState.FAILED, exit_code=1)]
    with pytest.raises(UnknownStartError, match="does not show what has happened"):
        job.submit()


def test_a_job_that_each_supervisor_has_and_none_shows_is_not_followed_again_and_again():
    client = Client(None)
    job, _ = submission_to(client)
    client.live = [ours()]
    job.submit()
    assert sum(job.submit_again(None) for _ in range(2 * ATTEMPTS_MAX)) == ATTEMPTS_MAX - 1


def test_the_next_supervisor_is_waited_for_before_the_job_is_submitted_again():
    client = Client(None, None)
    job, _ = submission_to(client)
    job.submit()
    client.absences = 2
    assert job.submit_again(None)
    assert client.submitted == 2


@pytest.mark.parametrize("answer", [SILENT, TAKEN])
def test_a_supervisor_that_is_slow_to_say_that_it_has_the_job_is_asked_until_it_does(
    monkeypatch: pytest.MonkeyPatch, answer: HoldfastError
):
    monkeypatch.setattr(submission, "LOOK_AGAIN_S", 0.0)
    client = Client(GONE, TAKEN, TAKEN)
    job, _ = submission_to(client)
    client.live = [ours()]
    client.unanswered = [SILENT] if answer is SILENT else [NotFoundError("cannot show job j: not yet")]
    assert job.submit() == "j"
    assert client.submitted == (1 if answer is SILENT else 2)


def test_a_job_of_which_no_supervisor_says_whether_it_has_it_is_not_started_elsewhere(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(submission, "FREE_WITHIN_S", 0.05)
    monkeypatch.setattr(submission, "STOPPED_ANSWERS_WITHIN_S", 0.05)
    monkeypatch.setattr(submission, "LOOK_AGAIN_S", 0.001)
    client = Client(GONE, *[TAKEN] * 100_000)
    client.unanswered = [SILENT] * 100_000
    job, _ = submission_to(client)
    with pytest.raises(UnknownStartError) as refused:
        job.submit()
    assert refused.value.exit_code == 93


def test_a_stop_while_the_next_supervisor_is_asked_lets_nothing_start():
    client = Client(None)
    job, said = submission_to(client)
    job.submit()
    stop = Signal(job, client)
    with pytest.raises(StoppedError):
        job.submit_again(None)
    stop.join()
    assert (stop.has_job, client.submitted, said) == ([False], 1, [])


@pytest.mark.parametrize("answers", [[None, None], [None, SILENT]])
def test_a_stop_while_the_job_is_submitted_again_waits_until_it_is_known_whether_there_is_a_job(
    monkeypatch: pytest.MonkeyPatch, answers: list[HoldfastError | None]
):
    client = Client(*answers)
    job, said = submission_to(client)
    job.submit()
    stop = Signal(job, client)
    come, client.on_call = client.on_call, int

    def submitted(text: str) -> None:
        said.append(text)
        client.live = [ours()]
        client.on_call = come

    monkeypatch.setattr(job, "_say", submitted)
    assert job.submit_again(None)
    stop.join()
    assert stop.has_job == [True], "so it is sent to the one that has the job now"
    assert client.submitted == 2


def test_a_stop_that_gives_up_a_repeated_submission_has_no_job_to_stop():
    client = Client(None, SILENT)
    job, said = submission_to(client)
    job.submit()
    stop = Signal(job, client)
    come, client.on_call = client.on_call, int

    def submitted(text: str) -> None:
        said.append(text)
        client.on_call = come

    job._say = submitted  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(DeadlineExceededError):
        job.submit_again(None)
    stop.join()
    assert (stop.has_job, client.submitted) == ([False], 2)


def test_a_stop_before_the_first_submission_lets_nothing_start():
    client = Client(None)
    job, _ = submission_to(client)
    assert not job.stop(signal.SIGINT)
    with pytest.raises(StoppedError):
        job.submit()
    assert client.submitted == 0


def test_a_stop_while_a_lost_supervisor_is_waited_for_ends_the_wait_without_a_job():
    client = Client(GONE, comes_back=False)
    job, _ = submission_to(client)
    stop = Signal(job, client)
    with pytest.raises(NoSupervisorError):
        job.submit()
    stop.join()
    assert (stop.has_job, client.submitted) == ([False], 1)


def test_another_job_of_that_id_is_an_error():
    client = Client(TAKEN)
    job, _ = submission_to(client)
    with pytest.raises(AlreadyExistsError):
        job.submit()


def test_what_is_left_of_the_lost_submission_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(submission, "LOOK_AGAIN_S", 0.0)
    client = Client(GONE, TAKEN, TAKEN, None)
    job, _ = submission_to(client)
    client.live = [report()]  # one that was submitted earlier
    assert job.submit() == "j"
    assert client.submitted == 4


def test_without_another_supervisor_or_against_a_stop_nothing_is_submitted():
    job, _ = submission_to(Client(GONE, comes_back=False))
    with pytest.raises(NoSupervisorError):
        job.submit()
    client = Client(None)
    job, said = submission_to(client)
    job.submit()
    assert job.stop(signal.SIGTERM)
    assert not job.submit_again(None)
    assert (client.submitted, said) == (1, [])


def test_a_job_that_no_supervisor_survives_is_given_up():
    client = Client(*[GONE] * (ATTEMPTS_MAX + 1))
    job, _ = submission_to(client)
    with pytest.raises(NoSupervisorError):
        job.submit()
    assert client.submitted == ATTEMPTS_MAX


def test_a_job_that_a_silent_supervisor_has_taken_is_followed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(submission, "LOOK_AGAIN_S", 0.0)
    client = Client(SILENT)
    job, said = submission_to(client)
    client.unanswered = [SILENT, ExhaustedError("cannot ask the supervisor at /s: 256 calls are in progress already")]
    client.live = [ours()]
    assert job.submit() == "j"
    assert said == [
        "cannot ask the supervisor at /s: no answer within 10 s; it is asked for up to 30 s more whether it has job j"
    ]
    assert client.submitted == 1


@pytest.mark.parametrize("live", [[], [report()]])  # one that was submitted earlier
def test_a_job_that_a_silent_supervisor_has_not_taken_may_be_started_elsewhere(live: list[JobReport]):
    client = Client(SILENT)
    client.live = live
    job, _ = submission_to(client)
    with pytest.raises(DeadlineExceededError) as refused:
        job.submit()
    assert refused.value.exit_code == 75
    assert client.submitted == 1


def test_nobody_is_told_to_start_a_job_elsewhere_that_may_have_started(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(submission, "ANSWERS_WITHIN_S", 0.05)
    client = Client(SILENT)
    client.unanswered = [SILENT]
    job, _ = submission_to(client)
    with pytest.raises(HoldfastError, match="cannot tell whether job j has started") as refused:
        job.submit()
    assert refused.value.exit_code == 93
    assert "see holdfast status j, and end it with holdfast stop j" in str(refused.value)
    assert 0 < max(client.asked_within_s) <= 0.05, "the time that was told is kept"


def test_a_silent_supervisor_is_asked_once_and_for_a_moment_after_a_signal():
    client = Client(SILENT)
    client.unanswered = [SILENT, SILENT]
    job, said = submission_to(client)
    Signal(job, client)
    with pytest.raises(UnknownStartError) as refused:
        job.submit()
    assert refused.value.exit_code == 93
    assert client.asked_within_s == [STOPPED_ANSWERS_WITHIN_S]
    assert said == []


def test_a_signal_while_a_silent_supervisor_is_asked_gives_up_that_question_and_asks_once_more():
    client = Client(SILENT)
    client.unanswered = [SILENT]
    job, _ = submission_to(client)
    client.live = [ours()]
    stop = Signal(job, client)
    come = client.on_call
    client.on_call = lambda: setattr(client, "on_call", come)
    assert job.submit() == "j"
    stop.join()
    assert (stop.has_job, client.asked_within_s[1]) == ([True], STOPPED_ANSWERS_WITHIN_S)


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_nobody_is_told_to_start_a_job_elsewhere_that_the_spawner_of_a_lost_supervisor_may_have(
    monkeypatch: pytest.MonkeyPatch, is_interrupted: bool
):
    monkeypatch.setattr(submission, "RETURNS_TO_JOB_WITHIN_S", 3600.0 if is_interrupted else 0.05)
    client = Client(SILENT, comes_back=False)
    client.unanswered = [GONE]
    job, _ = submission_to(client, may_be_left=True)
    if is_interrupted:
        Signal(job, client)
    with pytest.raises(HoldfastError, match=r"cannot tell whether job j has started: .* has gone") as refused:
        job.submit()
    assert refused.value.exit_code == 93
    assert client.submitted == 1


def test_a_job_of_which_nothing_is_left_may_be_started_elsewhere():
    client = Client(SILENT, comes_back=False)
    client.unanswered = [GONE]
    job, _ = submission_to(client)
    with pytest.raises(NoSupervisorError) as refused:
        job.submit()
    assert refused.value.exit_code == 69


def test_a_silent_supervisor_that_is_replaced_leaves_the_job_to_the_next_one():
    client = Client(SILENT, None)
    client.unanswered = [GONE]
    job, _ = submission_to(client)
    assert job.submit() == "j"
    assert client.submitted == 2
