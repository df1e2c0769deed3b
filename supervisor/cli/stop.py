"""`holdfast stop JOB`: ends a job: SIGTERM to its ranks, SIGKILL after the grace period."""

from __future__ import annotations

import signal as signals
import threading
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

from supervisor.cli import output
from supervisor.cli.control import ask_live
from supervisor.cli.job_owners import who_asks
from supervisor.cli.reconnecting_client import LOOK_AGAIN_S, SteadyClient
from supervisor.cli.supervisor_discovery import FoundJob, Supervisors, add_place_arguments
from supervisor.edges.operators.control_client import ControlClient
from supervisor.errors import HoldfastError, NoSupervisorError
from supervisor.ports.reports import JobReport, RecordedEvent


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", help="job id, or a unique prefix of it")
    parser.add_argument("--reason", help="why, for the job's history (default: who asked)")
    parser.add_argument(
        "--signal", type=_signal, default=0, help="act as if the launcher had got this signal, with its longer grace"
    )
    parser.add_argument("--wait", action="store_true", help="return once nothing of the job is left")
    add_place_arguments(parser)


def execute(arguments: Namespace) -> int:
    with Supervisors(arguments, waits=True) as supervisors:
        job, client = ask_live(supervisors, arguments.job, verb="stop")
        reason = arguments.reason or f"holdfast stop by {who_asks()}"
        steady = None
        if job.supervisor is not None and not job.supervisor.is_private:  # One that is replaced comes back.
            report = job.report
            steady = SteadyClient(client, report.job_id, say=output.say, is_own=job.is_own, last=report)
            steady.stop(reason=reason, signal=arguments.signal)
        else:
            client.stop(job.report.job_id, reason=reason, signal=arguments.signal)
        for part in supervisors.live_parts(job)[1:]:  # Its ranks stop at once, whether or not a leader is in reach.
            with suppress(HoldfastError):  # It may have ended: the job is being stopped.
                assert part.supervisor is not None, "it is live"
                part.supervisor.client.stop(part.report.job_id, reason=reason, signal=arguments.signal)
        output.say(f"job {job.name} is being stopped")
        if arguments.wait:
            output.say(f"job {job.name} has ended: {_last_words(supervisors, client, steady, job)}")
    return 0


def _last_words(supervisors: Supervisors, client: ControlClient, steady: SteadyClient | None, job: FoundJob) -> str:
    """Returns once the job has ended. A private supervisor ends with it, perhaps before it has told us."""
    watch: Callable[[], Iterable[JobReport | RecordedEvent]] = partial(client.watch, job.report.job_id, follow=True)
    if steady is not None:
        watch = partial(steady.watch, on_note=output.say)
    asked = {client}
    while True:
        last: JobReport | None = None
        try:
            for told in watch():
                if isinstance(told, JobReport):
                    last = told
        except NoSupervisorError:
            if job.supervisor is not None and job.supervisor.is_private:
                job.supervisor.await_end()
            found = supervisors.find(job.name, verb="wait for")
            if found.report.state.has_ended:
                return found.report.reason
            if found.supervisor is None or found.supervisor.client in asked:
                raise
            asked.add(found.supervisor.client)  # of another part of the job on this machine
            watch = partial(found.supervisor.client.watch, job.report.job_id, follow=True)
        else:
            if last is not None and last.state.has_ended:
                return last.reason
            threading.Event().wait(LOOK_AGAIN_S)  # The stream ended early: no leader answered for a moment.


def _signal(text: str) -> int:
    if text.isdigit() and 1 <= int(text) <= 64:
        return int(text)
    name = text.upper() if text.upper().startswith("SIG") else f"SIG{text.upper()}"
    try:
        return int(signals.Signals[name])
    except KeyError:
        raise ArgumentTypeError(f"there is no signal {text!r}") from None
