"""`holdfast run` where the node has a supervisor: hands the job over, shows its output, passes signals on."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from supervisor.cli.next_supervisor import may_have_left
from supervisor.cli.reconnecting_client import SteadyClient
from supervisor.cli.run_failure_message import shows_errors, tell_failure
from supervisor.cli.startup_hints import StartupHints
from supervisor.cli.submission import Submission, UnknownStartError
from supervisor.config.job_spec import JobSpec
from supervisor.config.redaction import secret_values
from supervisor.config.resolve import RunRequest
from supervisor.config.stop_times import interrupted_grace_s
from supervisor.core.event_weights import Weight, weight
from supervisor.core.stop_verdict import was_said
from supervisor.core.terminal_sentences import terminal_sentence
from supervisor.edges.machine.folders.socket_dir import CONTROL_SOCKET
from supervisor.edges.machine.own_process import ignored_signals, standard_streams
from supervisor.edges.machine.processes.job_claims import is_live
from supervisor.edges.operators.control_client import ControlClient
from supervisor.edges.operators.log_follower import LogChoice
from supervisor.errors import HoldfastError, NoSupervisorError, NotFoundError
from supervisor.ports.reports import JobReport, RecordedEvent

_PREFIXES = {Weight.FAULT: "warning: ", Weight.LOSS: "error: "}  # as the log of a private supervisor has them
Hear = Callable[[RecordedEvent], None]
LAST_OUTPUT_TIMEOUT_S = 5.0  # after the job has ended: without a byte more of what the ranks wrote last
_STDIN_LOST = (
    "stdin does not reach the ranks that the node's supervisor starts; let the script read a file, and name it among "
    "the script's arguments"
)
SHOW_AGAIN_S = 5.0  # after a refusal: nothing tells when another reader has left, or a limit was raised


def run_on_node(request: RunRequest, directory: Path, held: Path) -> int:
    """Submits the job and follows it. Returns its exit code; a lost supervisor is a HoldfastError.

    `held`: the path to the directory of a supervisor that may have the job, see supervisor_owner.py.
    """
    # The daemon's own interpreter means nothing to the user: the job runs in the one that this command runs in.
    spec = msgspec.structs.replace(request.spec, python=request.spec.python or sys.executable)
    forwarded = set(ignored_signals.numbers(ignored_signals.forwarded(spec.signals_to_handle)))
    # Blocked before any thread starts, so that only the forwarding thread takes them.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, forwarded)
    with ExitStack() as stack:
        # The listener is another process: it is started before gRPC has threads, which a fork would disturb.
        listener = _listener(request, stack)
        client = stack.enter_context(ControlClient(directory / CONTROL_SOCKET, reached_by=held / CONTROL_SOCKET))
        submission = Submission(
            client,
            spec,
            request.environment,
            say=tell,
            may_be_left=lambda job_id: is_live(job_id) or may_have_left(held, job_id),
        )
        steady = SteadyClient(client, spec.job_id, say=tell)
        forwarding = threading.Thread(target=_forward, args=(steady, submission, forwarded, request), daemon=True)
        forwarding.start()  # before the submission, which a signal gives up
        with _ended_by_signal(submission, forwarding, before):
            job_id = submission.submit()
        tell(f"job {job_id} runs under the node's supervisor in {directory}")
        if standard_streams.stdin_has_data():
            tell(f"warning: {_STDIN_LOST}")
        first = StartupHints(request.warnings)
        hear = _heard(spec, (submission.hear, lambda event: first.hear(event.kind), *listener), stack)
        is_followed, report = True, None
        while is_followed:
            report = _attend(client, steady, hear)
            with _ended_by_signal(submission, forwarding, before):
                is_followed = submission.submit_again(report)
        if report is None or report.exit_code is None:
            raise NoSupervisorError(_unknown_end(steady, directory, has_begun=submission.has_begun))
        secrets = secret_values(spec.command, request.environment)
        is_shown = shows_errors(spec)
        tell_failure(report, lambda choice: client.logs(job_id, choice, this_node=True), secrets, is_shown=is_shown)
    return report.exit_code


@contextmanager
def _ended_by_signal(submission: Submission, forwarding: threading.Thread, before: Collection[int]) -> Generator[None]:
    """Ends this process as a signal does that came during a submission, if that started nothing.

    `before`: the signals that are blocked then.
    """
    try:
        yield
    except UnknownStartError:
        raise  # The signals stay blocked: one that waits would end this process, and replace its exit code.
    except HoldfastError:
        if (number := submission.stopped_by) is not None and not submission.is_submitted:
            forwarding.join()  # It has sent the signal again: nothing has started, so it ends this process.
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if number is not None:
            sys.exit(128 + number)  # Here, the signal is ignored, as in the background of a script.
        raise


def _attend(client: ControlClient, steady: SteadyClient, hear: Hear) -> JobReport | None:
    """Shows what the ranks print and what happens, until the job has ended; see `_follow`."""
    shown = SteadyClient(client, steady.job_id, say=_unsaid, hides_claims=steady.hides_claims)
    ended, moves = threading.Event(), threading.Event()
    output = threading.Thread(target=show_output, args=(shown, ended, moves), daemon=True)
    output.start()
    report = _follow(steady, hear)
    ended.set()
    moves.set()
    while output.is_alive() and moves.is_set():
        moves.clear()
        output.join(LAST_OUTPUT_TIMEOUT_S)
    if output.is_alive() and report is not None and report.exit_code is not None:
        tell(f"not all that the ranks printed is shown; holdfast logs {steady.job_id} shows it")
    return report


def _unknown_end(steady: SteadyClient, directory: Path, *, has_begun: bool) -> str:
    job_id = steady.job_id
    if not has_begun:
        return (
            f"cannot tell how job {job_id} has ended: its supervisor in {directory} has gone before it reported the "
            f"start of a worker, and no other supervisor has the job; start it again once holdfast nodes shows one"
        )
    next_one = f"none came back within {steady.waited_s:g} s" if steady.waited_s else "the next one does not have it"
    left = "; this command can't see from its own /tmp whether ranks are left" if steady.hides_claims.is_set() else ""
    return (
        f"cannot tell how job {job_id} has ended: its supervisor in {directory} has gone, and {next_one}{left}; see "
        f"holdfast logs {job_id}, and holdfast events {job_id}"
    )


def _heard(spec: JobSpec, listeners: Sequence[Hear], stack: ExitStack) -> Hear:
    """Returns all that hear events, with the line that a person at a terminal reads before the first workers start."""
    if standard_streams.stderr_is_terminal():
        from supervisor.cli.startup_progress import waiting

        shown = waiting(spec, stack)
        listeners = (lambda event: shown.hear(event.kind), *listeners)

    def hear(event: RecordedEvent) -> None:
        for listener in listeners:
            listener(event)

    return hear


def _listener(request: RunRequest, stack: ExitStack) -> tuple[Hear, ...]:
    """Returns what delivers events to the user's command and URL, as that user: the daemon runs nothing for users."""
    if not request.event_hooks.are_set:
        return ()
    from supervisor.edges.operators.notifier import notifying

    return (stack.enter_context(notifying(request.event_hooks)).tell,)


def _follow(client: SteadyClient, hear: Hear) -> JobReport | None:
    """Says what happens to the job; with several nodes, to this node's part, because each node has such a command.

    Returns the last report of it: its verdict, if its supervisor sent one.
    """
    last: JobReport | None = None
    stop_reason = before = ""
    with suppress(NoSupervisorError, NotFoundError):  # NotFoundError: the next supervisor answers, without the job.
        for told in client.watch(on_note=_unsaid, this_node=True):
            if isinstance(told, JobReport):
                last = told
                continue
            hear(told)
            if (importance := weight(told.kind)) > Weight.ROUTINE:
                if told.kind == "stop_requested":
                    stop_reason = stop_reason or told.reason
                if told.kind != "job_stopped" or not was_said(stop_reason, told.reason):
                    text = terminal_sentence(told.reason, before, is_loss=importance is Weight.LOSS)
                    tell(f"{_PREFIXES.get(importance, '')}{text}")
                before = told.reason
    return last


def tell(message: str) -> None:
    standard_streams.say(f"holdfast: {message}")


def _unsaid(note: str) -> None:
    """Returns whether the event is reported elsewhere, or is of no use here."""


def _forward(client: SteadyClient, submission: Submission, numbers: set[signal.Signals], request: RunRequest) -> None:
    """Passes each signal on as a stop, once the submission in progress is answered or given up."""
    while True:
        number = signal.sigwait(numbers)
        if not submission.stop(number):
            os.kill(os.getpid(), number)  # Nothing has started: it waits until this process takes its signals again.
            return
        try:
            grace_s = interrupted_grace_s(request, number) if standard_streams.stdin_is_terminal() else None
            reason = f"holdfast run got {signal.Signals(number).name}"
            client.stop(reason=reason, signal=int(number), grace_s=grace_s, of_node=True)
        except HoldfastError as error:
            tell(str(error))


def show_output(client: SteadyClient, ended: threading.Event, moves: threading.Event) -> None:
    """Prints what the ranks print until the job's end. A refusal is told, and tried again until after `ended`.

    Sets `moves` whenever the reader has taken a part.
    """
    told = ""
    while True:
        is_last = ended.is_set()
        try:
            _print_output(client, moves)
            return
        except (NoSupervisorError, NotFoundError):
            return  # The job's end.
        except HoldfastError as error:
            if str(error) != told:
                told = str(error)
                tell(
                    f"{told}; this is tried again every {SHOW_AGAIN_S:g} s, and holdfast logs {client.job_id} shows it"
                )
            if is_last:
                return
            ended.wait(SHOW_AGAIN_S)
        except OSError as error:  # The job goes on.
            if error.errno not in (errno.EPIPE, errno.EIO):  # Else nobody reads us any more.
                tell(f"cannot write what the ranks print: {error.strerror}; holdfast logs {client.job_id} shows it")
            return


def _print_output(client: SteadyClient, moves: threading.Event) -> None:
    line = standard_streams.console_line()
    for piece in client.logs(LogChoice(), on_note=_unsaid, this_node=True):
        number = 2 if piece.is_stderr else 1
        for start in range(0, len(piece.data), standard_streams.PIPE_BYTES):
            part = piece.data[start : start + standard_streams.PIPE_BYTES]
            standard_streams.write_bytes(number, part, wait_s=None)
            moves.set()
        if piece.data:
            line.printed(number, piece.data[-1])
