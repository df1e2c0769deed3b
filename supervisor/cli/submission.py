"""How does `holdfast run` hand a job to the node's supervisor, which may be lost before the job has begun?

The supervisor's spawner keeps a job from some 10 ms after its submission on. If the supervisor is lost before that,
nothing of the job has run, and the next one does not know it: the job is submitted to that one.

A supervisor that does not answer in time may have the job all the same, and so may the spawner of a lost one. They are
asked and waited for until that is known: else a scheduler would start the job elsewhere, and two runs would write the
same checkpoints. A signal gives up a call that waits, but the supervisor is still asked once whether it has the job.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import closing

from supervisor.cli.reconnecting_client import RETURNS_TO_JOB_WITHIN_S, RETURNS_WITHIN_S
from supervisor.config.job_spec import JobSpec
from supervisor.core.facts import JobState
from supervisor.edges.machine.clock import Clock
from supervisor.edges.operators.control_client import CALL_TIMEOUT_S, ControlClient, DeadlineExceededError
from supervisor.errors import AlreadyExistsError, HoldfastError, NoSupervisorError, NotFoundError
from supervisor.ports.reports import JobReport, RecordedEvent

ATTEMPTS_MAX = 5  # a job over which each supervisor is lost must not be submitted again and again
ANSWERS_WITHIN_S = 30.0  # a supervisor that has let a submission's deadline pass
STOPPED_ANSWERS_WITHIN_S = 2.0  # after a signal, which a person or a scheduler follows up soon
FREE_WITHIN_S = 30.0  # the job's id: a lost supervisor's spawner ends once it has loaded what the script imports
LOOK_AGAIN_S = 0.1
LOOK_FOR_NEXT_S = 1.0  # whether a stop was asked for while the next supervisor is waited for


class UnknownStartError(HoldfastError):
    """The job may have started. A scheduler must not start a second one elsewhere, whatever signal came meanwhile."""


class StoppedError(HoldfastError):
    """A stop was asked for before the job was submitted: nothing has started."""


class Submission:
    """One job that is submitted until it has begun. `stop` is called from another thread."""

    def __init__(
        self,
        client: ControlClient,
        spec: JobSpec,
        environment: Mapping[str, str],
        *,
        say: Callable[[str], None],
        may_be_left: Callable[[str], bool],
    ) -> None:
        """`may_be_left`: returns whether processes of the job are left on this machine, as far as is visible here."""
        self._client = client
        self._spec = spec
        self._environment = environment
        self._say = say
        self._may_be_left = may_be_left
        self._attempts = 0
        self._since_ns = Clock().unix_ns()
        self._stop_asked = threading.Event()
        self._given_up = threading.Event()  # the call in progress
        self._settling = threading.Lock()  # held until it is known whether a supervisor has the job
        self.is_submitted = False  # the last supervisor that was asked may have the job
        self.stopped_by: int | None = None  # the first signal
        self.has_begun = False

    def stop(self, number: int) -> bool:
        """Lets no further submission start the job: signal `number` wants its end.

        Returns whether a supervisor may have the job, once a submission in progress is answered or given up.
        """
        self.stopped_by = number if self.stopped_by is None else self.stopped_by
        self._stop_asked.set()
        self._given_up.set()
        with self._settling:
            return self.is_submitted

    def hear(self, event: RecordedEvent) -> None:
        """Takes in what happened to the job."""
        self.has_begun = self.has_begun or event.kind == "worker_started"

    def submit(self) -> str:
        """Submits the job, again if the supervisor is lost before it answers. Returns its id. Raises HoldfastError."""
        with self._settling:
            return self._submit()

    def submit_again(self, last: JobReport | None) -> bool:
        """Submits the job again if it is lost and has not begun. Returns whether a supervisor has it now.

        `last`: what its supervisor said last of it. Raises HoldfastError, such as StoppedError.
        """
        with self._settling:
            if self.has_begun or (last is not None and last.exit_code is not None):
                return False
            if self._attempts >= ATTEMPTS_MAX or self._stop_asked.is_set() or not self._comes_back():
                return False
            if self._is_taken_over(Clock().now_s() + FREE_WITHIN_S):
                self._attempts += 1
                return True
            self.is_submitted = False
            self._check_not_stopped()
            self._say(f"the supervisor has gone before job {self._spec.job_id} began; the next one gets the job")
            try:
                self._submit()
            except AlreadyExistsError as error:
                refusal = HoldfastError(str(error))  # Not the id of a job that this command may join as another node.
                refusal.exit_code = error.exit_code
                raise refusal from error
            return True

    def _submit(self) -> str:
        free_by_s = Clock().now_s() + FREE_WITHIN_S
        while True:
            self._check_not_stopped()
            try:
                job_id = self._submit_once()
                break
            except NoSupervisorError:
                if self._attempts >= ATTEMPTS_MAX or not self._comes_back():
                    raise
                free_by_s = Clock().now_s() + FREE_WITHIN_S
                is_taken_over = self._is_taken_over(free_by_s)  # the answer alone was lost
            except AlreadyExistsError:
                if self._attempts == 1:
                    raise
                is_taken_over = self._is_taken_over(free_by_s)  # else it is what is left of the submission before
                if not is_taken_over and (Clock().now_s() >= free_by_s or self._stop_asked.wait(LOOK_AGAIN_S)):
                    raise
                self._attempts -= 1
            if is_taken_over:
                job_id = self._spec.job_id
                break
        self.is_submitted = True
        return job_id

    def _check_not_stopped(self) -> None:
        """Raises StoppedError."""
        if self._stop_asked.is_set():
            raise StoppedError(f"cannot start job {self._spec.job_id}: this command was stopped; start it again")

    def _submit_once(self) -> str:
        self._attempts += 1
        try:
            return self._client.submit(self._spec, self._environment, given_up=self._until_stopped())
        except DeadlineExceededError as error:
            if not self._has_arrived(error):
                raise  # It has read that we gave up, and starts nothing.
            return self._spec.job_id

    def _until_stopped(self) -> threading.Event:
        """Returns what gives up the next call: a stop does."""
        self._given_up = given_up = threading.Event()
        if self._stop_asked.is_set():
            given_up.set()
        return given_up

    def _has_arrived(self, error: DeadlineExceededError) -> bool:
        """Returns whether the supervisor has the job, although it was silent. Raises HoldfastError if it stays so."""
        if not self._stop_asked.is_set():
            self._say(
                f"{str(error).removesuffix('; try again')}; it is asked for up to {ANSWERS_WITHIN_S:g} s more whether "
                f"it has job {self._spec.job_id}"
            )
        report = self._job(Clock().now_s() + ANSWERS_WITHIN_S)
        return report is not None and self._is_ours(report)

    def _is_taken_over(self, by_s: float) -> bool:
        """Returns whether the supervisor that answers now has this job, and not another one of the same id.

        A job that has failed there without a worker was lost before it began, and counts as one that it does not have.
        So does one that is known from the journal alone, once what is left of it has ended, or at `by_s`.
        Raises UnknownStartError if none says so in time, NoSupervisorError if none comes back. Each supervisor that
        comes back has time to answer.
        """
        by_s = max(by_s, Clock().now_s() + STOPPED_ANSWERS_WITHIN_S)
        returns = 0
        while True:
            is_stopped = self._stop_asked.is_set()
            try:
                # Answered once the jobs of the supervisor before it are taken over. The last answer has its time, too.
                report = self._job(max(by_s, Clock().now_s() + STOPPED_ANSWERS_WITHIN_S))
                if report is None or not self._is_ours(report):
                    return False
                if self._has_run(report):
                    return True
                if report.state.has_ended or Clock().now_s() + LOOK_AGAIN_S >= by_s:
                    return False
                if is_stopped:
                    raise self._unknown_start("knows it from the journal alone, and processes of it are left")
            except NotFoundError:
                return False
            except NoSupervisorError:
                if not self._comes_back():
                    raise
                if returns < ATTEMPTS_MAX:
                    returns += 1
                    by_s = max(by_s, Clock().now_s() + ANSWERS_WITHIN_S)
                if is_stopped or Clock().now_s() + LOOK_AGAIN_S >= by_s:
                    raise self._unknown_start("goes again and again") from None
            except UnknownStartError:
                raise
            except HoldfastError:  # The events are not there now.
                if is_stopped or Clock().now_s() + LOOK_AGAIN_S >= by_s:
                    raise self._unknown_start("does not show what has happened") from None
            self._stop_asked.wait(LOOK_AGAIN_S)

    def _has_run(self, report: JobReport) -> bool:
        """Returns whether a worker of the job has started or may yet. Raises HoldfastError."""
        if report.state is not JobState.FAILED and not _is_left(report):
            return True  # A stop, too, was asked for by somebody who wants no more of it.
        told_by = self._client.watch(report.job_id, this_node=True, within_s=STOPPED_ANSWERS_WITHIN_S)
        with closing(told_by):
            return any(isinstance(told, RecordedEvent) and told.kind == "worker_started" for told in told_by)

    def _is_ours(self, report: JobReport) -> bool:
        return report.submitted_at_ns >= self._since_ns

    def _job(self, until_s: float) -> JobReport | None:
        """Returns the job of this id that the supervisor knows, if any. Asks until then; after a stop, once more.

        Raises UnknownStartError if it does not answer. `until_s` is later than now.
        """
        while True:
            is_stopped = self._stop_asked.is_set()
            within_s = min(until_s - Clock().now_s(), CALL_TIMEOUT_S)
            try:
                if is_stopped:
                    return self._client.job(self._spec.job_id, within_s=min(within_s, STOPPED_ANSWERS_WITHIN_S))
                return self._client.job(self._spec.job_id, within_s=within_s, given_up=self._until_stopped())
            except NotFoundError:
                return None
            except NoSupervisorError:
                raise
            except HoldfastError:  # still silent, or it has no room for the call
                if is_stopped or Clock().now_s() + LOOK_AGAIN_S >= until_s:
                    raise self._unknown_start("does not answer") from None
                self._stop_asked.wait(LOOK_AGAIN_S)

    def _comes_back(self) -> bool:
        """Returns whether the next supervisor answers. It is waited for longer while processes of the job may be left.

        A stop ends the wait. Raises UnknownStartError if processes may be left then.
        """
        waited_s = 0.0
        while not self._client.wait_until_ready(LOOK_FOR_NEXT_S):
            waited_s += LOOK_FOR_NEXT_S
            may_be_left = self._may_be_left(self._spec.job_id)
            if self._stop_asked.is_set() or waited_s >= (RETURNS_TO_JOB_WITHIN_S if may_be_left else RETURNS_WITHIN_S):
                if may_be_left:
                    raise self._unknown_start("has gone, and none came back")
                return False
        return True

    def _unknown_start(self, why: str) -> UnknownStartError:
        job_id = self._spec.job_id
        unknown = UnknownStartError(
            f"cannot tell whether job {job_id} has started: the supervisor at {self._client.socket_path} {why}; "
            f"before you start it again, see holdfast status {job_id}, and end it with holdfast stop {job_id}"
        )
        unknown.exit_code = self._spec.restart.no_restart_exit_code
        return unknown


def _is_left(report: JobReport) -> bool:
    """Returns whether the journal alone knows the job, of which processes are left."""
    if report.state is not JobState.STOPPING:
        return False
    from supervisor.edges.machine.journal.journal_reader import is_lost  # late: it loads SQLite

    return is_lost(report)
