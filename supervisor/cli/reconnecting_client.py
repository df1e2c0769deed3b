"""How does a command that has begun continue if the supervisor goes away for a moment, or is too busy to answer?

A node's supervisor that was killed comes back to its jobs. What follows a job waits for it as long as anything of the
job is left, and goes on where it was. A supervisor that has no room for one more call now is asked again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable

from msgspec.structs import replace

from supervisor.edges.machine.processes.job_claims import is_live
from supervisor.edges.operators.control_client import ControlClient, DeadlineExceededError
from supervisor.edges.operators.log_follower import LogChoice, LogPiece
from supervisor.edges.operators.shown_output import ShownOutput
from supervisor.errors import ExhaustedError, HoldfastError, NoSupervisorError, NotFoundError
from supervisor.ports.reports import JobReport, RecordedEvent, SeenEvents

LOOK_AGAIN_S = 1.0  # whether anything of the job is left, or there is room for the call
RETURNS_WITHIN_S = 10.0  # it is started again; if nothing of the job is left, it knows how the job has ended
RETURNS_TO_JOB_WITHIN_S = 60.0  # while processes of the job are left, as --supervisor-return-timeout has it

Say = Callable[[str], None]
Then = Callable[[NoSupervisorError], Iterable[RecordedEvent]]


def _unknown(_: str) -> bool:
    """Returns that nothing is seen of another user's job."""
    return False


class SteadyClient:
    """Asks the supervisor of one job. Its generators may run in threads of their own."""

    def __init__(
        self,
        client: ControlClient,
        job_id: str,
        *,
        say: Say,
        is_left: Callable[[str], bool] = is_live,
        is_own: bool = True,
        hides_claims: threading.Event | None = None,
        last: JobReport | None = None,
    ) -> None:
        """`say` is called once each time that the supervisor is away, and once for a refusal that may pass.

        `is_own`: False for another user's job, whose claims are never visible here.
        `hides_claims`: that of another client of this job, which watches it. `last`: what its supervisor said last of
        it; None if it is watched first.
        """
        self._client = client
        self.job_id = job_id
        self._say = say
        self._is_left = is_left if is_own else _unknown
        # Set once a live job has no claim that this command can see: it has a /tmp of its own, as in a container.
        self.hides_claims = hides_claims or threading.Event()
        self._has_looked = not is_own
        self.waited_s = 0.0  # for the next supervisor, when it was given up
        self._away_told = False
        self._refusal_told = ""
        self._refusals = 0  # in a row, while nothing of the job was seen to be left
        self._shown = ShownOutput()
        if last is not None:
            self._look(last)

    def watch(
        self,
        *,
        on_note: Say,
        this_node: bool = False,
        follow: bool = True,
        within_s: float | None = None,
        comes_back: bool = True,
        seen: SeenEvents | None = None,
        then: Then | None = None,
    ) -> Generator[JobReport | RecordedEvent]:
        """Yields the job, then its events, each once, until the last. Raises NoSupervisorError if none comes back.

        Each leader of a job numbers the events itself, and a job that had one node may get more: so the next supervisor
        is asked for all events, except for those of this node alone. `within_s`: see ControlClient.watch.

        `comes_back`: False for a supervisor that serves one job alone. `seen` has the events that are known already.
        `then` gets the error that would be raised, and yields the events of the last source, or raises it.
        """
        seen, last = seen or SeenEvents(), 0
        while True:
            seen.next_source()
            try:
                told_by = self._client.watch(
                    self.job_id,
                    after_sequence=last,
                    follow=follow,
                    on_note=on_note,
                    this_node=this_node,
                    within_s=within_s,
                )
                for told in told_by:
                    self._look(told)
                    if isinstance(told, RecordedEvent) and this_node:
                        last = told.sequence
                    elif isinstance(told, RecordedEvent) and not seen.is_new(told):
                        continue
                    yield told
                return
            except NoSupervisorError as error:
                try:
                    if not comes_back:
                        raise
                    self._wait(error)
                except NoSupervisorError:
                    if then is None:
                        raise
                    seen.next_source()
                    yield from filter(seen.is_new, then(error))
                    return
            except ExhaustedError as error:
                if not follow:
                    raise
                self._pause(error)

    def logs(self, choice: LogChoice, *, on_note: Say, this_node: bool = False) -> Generator[LogPiece]:
        """Yields what the ranks print, each byte once, also if called again after an error.

        A choice of last lines only can't be resumed. One node alone tells cycle after cycle, so that no earlier one is
        read again; nodes that are told together may be in different cycles.
        """
        while True:
            self._shown.comes_again()
            if this_node:
                choice = replace(choice, first_cycle=max(self._shown.cycles, default=0))
            try:
                told_by = self._client.logs(self.job_id, choice, follow=True, on_note=on_note, this_node=this_node)
                yield from filter(None, map(self._shown.new, told_by))
                return
            except NoSupervisorError as error:
                if choice.tail_lines:
                    raise
                self._wait(error)

    def stop(self, *, reason: str, signal: int, grace_s: float | None = None, of_node: bool = False) -> None:
        """Stops the job. Raises HoldfastError."""
        while True:
            try:
                self._client.stop(self.job_id, reason=reason, signal=signal, grace_s=grace_s, of_node=of_node)
                return
            except NoSupervisorError as error:
                self._wait(error)
            except DeadlineExceededError:
                raise  # It may have arrived, and a second stop kills at once.
            except ExhaustedError as error:
                self._pause(error)

    def _look(self, told: JobReport | RecordedEvent) -> None:
        """Notes at the first report of a live job whether this command can see that processes of it are left."""
        if not isinstance(told, JobReport) or told.exit_code is not None:
            return
        self._refusals = 0
        if not self._has_looked:
            self._has_looked = True
            if not self._is_left(self.job_id):
                self.hides_claims.set()

    def _pause(self, error: ExhaustedError) -> None:
        """Returns after a moment, in which the supervisor may get room for the call.

        Raises `error` if nothing of the job has been left for a while, and no report has called it live.
        """
        self._refusals = 0 if self._is_left(self.job_id) else self._refusals + 1
        may_be_left_s = RETURNS_TO_JOB_WITHIN_S if self.hides_claims.is_set() else 0.0
        if self._refusals * LOOK_AGAIN_S > may_be_left_s + RETURNS_WITHIN_S:
            raise error
        if (why := str(error).removesuffix("; try again")) != self._refusal_told:
            self._refusal_told = why
            self._say(f"{why}; this is tried again every {LOOK_AGAIN_S:g} s")
        threading.Event().wait(LOOK_AGAIN_S)

    def _wait(self, error: NoSupervisorError) -> None:
        """Returns once a supervisor answers that knows the job. Raises `error` once nothing of the job is left."""
        if not self._client.wait_until_ready(LOOK_AGAIN_S):
            if not self._away_told:
                self._away_told = True
                self._say(
                    f"the supervisor has gone; what has started of job {self.job_id} runs on, and this command waits "
                    "for the next supervisor"
                )
            waited_s = LOOK_AGAIN_S
            while not self._client.wait_until_ready(LOOK_AGAIN_S):
                waited_s += LOOK_AGAIN_S
                may_be_left = self.hides_claims.is_set() and waited_s < RETURNS_TO_JOB_WITHIN_S
                if not may_be_left and not self._is_left(self.job_id):
                    if not self._client.wait_until_ready(RETURNS_WITHIN_S):
                        self.waited_s = waited_s + RETURNS_WITHIN_S
                        raise error
                    break
        self._away_told, self.waited_s = False, 0.0
        try:
            self._client.job(self.job_id)
        except NotFoundError:
            raise error from None
        except NoSupervisorError:
            return  # It has gone again: the next question finds that out.
        except HoldfastError:
            return
