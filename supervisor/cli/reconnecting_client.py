"""How does a command that has begun continue if the supervisor goes away for a moment, or is too busy to answer?

A node's supervisor that was killed comes back to its jobs. What follows a job waits for it as long as anything of the
job is left, and goes on where it was. A supervisor that has no room for one more call now is asked again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator

from supervisor.edges.machine.processes.job_claims import is_live
from supervisor.edges.operators.control_client import ControlClient, DeadlineExceededError
from supervisor.edges.operators.log_follower import LogChoice, LogPiece
from supervisor.errors import ExhaustedError, HoldfastError, NoSupervisorError, NotFoundError
from supervisor.ports.reports import JobReport, RecordedEvent

LOOK_AGAIN_S = 1.0  # whether anything of the job is left, or there is room for the call
FILES_OF_STREAM = 2  # the current one and an older part
RETURNS_WITHIN_S = 10.0  # it is started again; if nothing of the job is left, it knows how the job has ended

Say = Callable[[str], None]


class _Shown:
    """How much of one rank's stream was shown: of each of its files, whose older ones a rotation removes.

    A file is known by its inode. A new file may get the inode of one that has gone; it comes after all known ones,
    unless a rank prints more than a whole file while the supervisor is away.
    """

    def __init__(self) -> None:
        self._ends: dict[int, int] = {}  # how far the newest files were shown, in the order of their age
        self._known: dict[int, int] = {}  # those of them that may come again
        self._bytes = 0
        self._bytes_again = 0  # of those shown, how many still come again if none of them is gone
        self._counts = False  # a supervisor of an earlier version does not say where its bytes are

    def comes_again(self) -> None:
        """Expects the stream from its beginning, as far as that is still there."""
        self._known, self._bytes_again = dict(self._ends), self._bytes

    def new(self, piece: LogPiece) -> bytes:
        """Returns those bytes of the piece that were not shown yet; from now on they are."""
        self._counts = self._counts or not piece.file
        counted = min(self._bytes_again, len(piece.data))
        self._bytes_again -= counted
        new = piece.data[counted if self._counts else self._shown_bytes(piece) :]
        self._bytes += len(new)
        return new

    def _shown_bytes(self, piece: LogPiece) -> int:
        end = piece.offset + len(piece.data)
        if piece.file not in self._known:
            self._known.clear()
            self._ends.pop(piece.file, None)
            self._ends[piece.file] = end
            while len(self._ends) > FILES_OF_STREAM:
                del self._ends[next(iter(self._ends))]
            return 0
        while (older := next(iter(self._known))) != piece.file:
            del self._known[older]
        known_end = self._known[piece.file]
        if end > known_end:
            del self._known[piece.file]
            self._ends[piece.file] = end
        return max(0, min(known_end - piece.offset, len(piece.data)))


class SteadyClient:
    """Asks the supervisor of one job. Its generators may run in threads of their own."""

    def __init__(
        self,
        client: ControlClient,
        job_id: str,
        *,
        say: Say,
        is_left: Callable[[str], bool] = is_live,
    ) -> None:
        """`say` is called once each time that the supervisor is away, and once for a refusal that may pass."""
        self._client = client
        self.job_id = job_id
        self._say = say
        self._is_left = is_left
        self._away_told = False
        self._refusal_told = ""
        self._refusals = 0  # in a row, while nothing of the job was left
        self._shown: dict[tuple[int, int, bool], _Shown] = {}  # by cycle, rank and stream

    def watch(
        self, *, after_sequence: int = 0, on_note: Say, this_node: bool = False, follow: bool = True
    ) -> Generator[JobReport | RecordedEvent]:
        """Yields the job, then its events, until the last. Raises NoSupervisorError once nothing of the job is left."""
        last = after_sequence
        while True:
            try:
                told_by = self._client.watch(
                    self.job_id, after_sequence=last, follow=follow, on_note=on_note, this_node=this_node
                )
                for told in told_by:
                    if isinstance(told, RecordedEvent):
                        last = told.sequence
                    yield told
                return
            except NoSupervisorError as error:
                self._wait(error)
            except ExhaustedError as error:
                if not follow:
                    raise
                self._pause(error)

    def logs(self, choice: LogChoice, *, on_note: Say, this_node: bool = False) -> Generator[LogPiece]:
        """Yields what the ranks print, each byte once, also if called again after an error.

        A choice of last lines only can't be resumed.
        """
        while True:
            for each in self._shown.values():
                each.comes_again()
            try:
                told_by = self._client.logs(self.job_id, choice, follow=True, on_note=on_note, this_node=this_node)
                for piece in told_by:
                    shown = self._shown.setdefault((piece.cycle, piece.rank, piece.is_stderr), _Shown())
                    if new := shown.new(piece):
                        yield LogPiece(piece.rank, piece.cycle, piece.is_stderr, new)
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

    def _pause(self, error: ExhaustedError) -> None:
        """Returns after a moment, in which the supervisor may get room for the call.

        Raises `error` if nothing of the job has been left for a while.
        """
        self._refusals = 0 if self._is_left(self.job_id) else self._refusals + 1
        if self._refusals * LOOK_AGAIN_S > RETURNS_WITHIN_S:
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
            while not self._client.wait_until_ready(LOOK_AGAIN_S):
                if not self._is_left(self.job_id):
                    if not self._client.wait_until_ready(RETURNS_WITHIN_S):
                        raise error
                    break
        self._away_told = False
        try:
            self._client.job(self.job_id)
        except NotFoundError:
            raise error from None
        except NoSupervisorError:
            return  # It has gone again: the next question finds that out.
        except HoldfastError:
            return
