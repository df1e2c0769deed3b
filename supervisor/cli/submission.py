"""How does `holdfast run` hand a job to the node's supervisor, which may be lost before the job has begun?

The supervisor's spawner keeps a job from some 10 ms after its submission on. If the supervisor is lost before that,
nothing of the job has run, and the next one does not know it: the job is submitted to that one.

A supervisor that does not answer in time may have the job all the same, and so may the spawner of a lost one. They are
asked and waited for until that is known: else a scheduler would start the job elsewhere, and two runs would write the
same checkpoints.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from supervisor.config.job_spec import JobSpec
from supervisor.edges.machine.clock import Clock
from supervisor.edges.machine.processes.job_claims import is_live
from supervisor.edges.operators.control_client import CALL_TIMEOUT_S, ControlClient, DeadlineExceededError
from supervisor.errors import AlreadyExistsError, HoldfastError, NoSupervisorError, NotFoundError
from supervisor.ports.reports import JobReport, RecordedEvent

ATTEMPTS_MAX = 5  # a job over which each supervisor is lost must not be submitted again and again
RETURNS_WITHIN_S = 10.0  # the next supervisor, once a submission had no answer
RETURNS_TO_JOB_WITHIN_S = 60.0  # while processes of the job are left, as --supervisor-return-timeout has it
ANSWERS_WITHIN_S = 30.0  # a supervisor that has let a submission's deadline pass
FREE_WITHIN_S = 30.0  # the job's id: a lost supervisor's spawner ends once it has loaded what the script imports
LOOK_AGAIN_S = 0.1


class UnknownStartError(HoldfastError):
    """The job may have started. A scheduler must not start a second one elsewhere, whatever signal came meanwhile."""


class Submission:
    """One job that is submitted until it has begun. `stop` may be called from another thread."""

    def __init__(
        self,
        client: ControlClient,
        spec: JobSpec,
        environment: Mapping[str, str],
        *,
        say: Callable[[str], None],
        is_interrupted: Callable[[], bool],
        is_left: Callable[[str], bool] = is_live,
    ) -> None:
        """`is_interrupted` tells whether a signal waits that nobody has taken yet."""
        self._client = client
        self._spec = spec
        self._environment = environment
        self._say = say
        self._is_interrupted = is_interrupted
        self._is_left = is_left
        self._attempts = 0
        self._since_ns = Clock().unix_ns()
        self._stop_asked = threading.Event()
        self.has_begun = False

    def stop(self) -> None:
        """Lets no further submission start the job: a person wants its end."""
        self._stop_asked.set()

    def hear(self, event: RecordedEvent) -> None:
        """Takes in what happened to the job."""
        self.has_begun = self.has_begun or event.kind == "worker_started"

    def submit(self) -> str:
        """Submits the job, again if the supervisor is lost before it answers. Returns its id. Raises HoldfastError."""
        free_by_s = Clock().now_s() + FREE_WITHIN_S
        while True:
            try:
                return self._submit_once()
            except NoSupervisorError:
                if not self._may_try_again() or not self._comes_back():
                    raise
                if self._is_taken_over():  # the answer alone was lost
                    return self._spec.job_id
                free_by_s = Clock().now_s() + FREE_WITHIN_S
            except AlreadyExistsError:
                is_ours = self._attempts > 1  # what is left of the submission before
                if not is_ours or Clock().now_s() >= free_by_s or self._stop_asked.wait(LOOK_AGAIN_S):
                    raise
                self._attempts -= 1

    def submit_again(self, last: JobReport | None) -> bool:
        """Submits the job again if it is lost and has not begun. `last`: what its supervisor said last of it."""
        if self.has_begun or not self._may_try_again() or (last is not None and last.exit_code is not None):
            return False
        if not self._client.wait_until_ready(LOOK_AGAIN_S) or self._is_taken_over():
            return False
        self._say(f"the supervisor has gone before job {self._spec.job_id} began; the next one gets the job")
        self.submit()
        return True

    def _may_try_again(self) -> bool:
        return self._attempts < ATTEMPTS_MAX and not self._stop_asked.is_set()

    def _submit_once(self) -> str:
        self._attempts += 1
        try:
            return self._client.submit(self._spec, self._environment)
        except DeadlineExceededError as error:
            if not self._has_arrived(error):
                raise  # It has read that we gave up, and starts nothing.
            return self._spec.job_id

    def _has_arrived(self, error: DeadlineExceededError) -> bool:
        """Returns whether the supervisor has the job, although it was silent. Raises HoldfastError if it stays so."""
        job_id, until_s = self._spec.job_id, Clock().now_s() + ANSWERS_WITHIN_S
        self._say(
            f"{str(error).removesuffix('; try again')}; it is asked for up to {ANSWERS_WITHIN_S:g} s more whether it "
            f"has job {job_id}"
        )
        while (left_s := until_s - Clock().now_s()) > 0:
            try:
                report = self._client.job(job_id, within_s=min(left_s, CALL_TIMEOUT_S))
                return report.submitted_at_ns >= self._since_ns
            except NotFoundError:
                return False
            except NoSupervisorError:
                raise
            except HoldfastError:  # still silent, or it has no room for the call
                if self._shall_end():
                    break
                threading.Event().wait(LOOK_AGAIN_S)
        raise self._unknown_start("does not answer")

    def _comes_back(self) -> bool:
        """Returns whether the next supervisor answers. It is waited for longer while processes of the job are left.

        Raises UnknownStartError if they are left after that.
        """
        until_s = Clock().now_s() + RETURNS_TO_JOB_WITHIN_S
        while not self._client.wait_until_ready(RETURNS_WITHIN_S):
            if not self._is_left(self._spec.job_id):
                return False
            if self._shall_end() or Clock().now_s() >= until_s:
                raise self._unknown_start("has gone, and none came back")
        return True

    def _shall_end(self) -> bool:
        return self._stop_asked.is_set() or self._is_interrupted()

    def _unknown_start(self, why: str) -> UnknownStartError:
        job_id = self._spec.job_id
        unknown = UnknownStartError(
            f"cannot tell whether job {job_id} has started: the supervisor at {self._client.socket_path} {why}; "
            f"before you start it again, see holdfast status {job_id}, and end it with holdfast stop {job_id}"
        )
        unknown.exit_code = self._spec.restart.no_restart_exit_code
        return unknown

    def _is_taken_over(self) -> bool:
        """Returns whether the supervisor that answers now has this job, and not another one of the same id."""
        job_id = self._spec.job_id
        try:
            self._client.job(job_id)  # answered once the jobs of the supervisor before it are taken over
            return any(each.job_id == job_id and each.submitted_at_ns >= self._since_ns for each in self._client.jobs())
        except HoldfastError:
            return False
