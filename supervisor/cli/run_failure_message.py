"""What does a user read when `holdfast run` has failed: whose last lines, where the rest is, what to type next?

Said once the job is over, so it may look into files; a disk that does not answer is waited for a moment only.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from supervisor.cli import output
from supervisor.config.job_spec import JobSpec
from supervisor.config.redaction import redacted_lines
from supervisor.core.facts import JobState
from supervisor.core.printable import one_line
from supervisor.edges.machine.own_process import standard_streams, threads
from supervisor.edges.operators import log_follower
from supervisor.edges.operators.log_follower import LogChoice, LogPiece
from supervisor.errors import HoldfastError
from supervisor.ports.reports import JobReport

LINES = 10
LINE_CHARACTERS_MAX = 300
READ_TIMEOUT_S = 2.0
OTHER_PRODUCT = "nvidia_resiliency_ext"  # named in the exception if it can't be imported

ReadLogs = Callable[[LogChoice], Iterable[LogPiece]]


def tell_failure(
    report: JobReport,
    read_logs: ReadLogs | None = None,
    secrets: tuple[str, ...] = (),
    *,
    is_shown: bool = False,
) -> None:
    """Writes to stderr, unless the job has not failed or never ran.

    `read_logs`: how its logs are read; None: in the folder that the report names. `secrets`: those of the job, which
    are hidden in what its ranks have printed: this text goes to other places than their logs. `is_shown`: a person has
    just read the errors of the ranks, which are not repeated if the verdict quotes them.
    """
    if report.state is not JobState.FAILED or not report.ranks:
        return
    text = [f"job {report.job_id} failed with exit code {report.exit_code}"]
    rank = culprit(report)
    if rank is not None and _is_replaced(report, rank):
        text.append(f"rank {rank} was replaced in cycle {report.cycle}: its logs hold the new process's output, too")
    elif rank is not None:
        choice = LogChoice(rank=rank, cycle=report.cycle, tail_lines=LINES)
        lines = _read_bounded(lambda: last_lines((read_logs or _from_folder(report))(choice), secrets))
        where = f"rank {rank} in cycle {report.cycle}"
        if lines:
            is_repeated = is_shown and lines[-1].strip() in report.reason
            text += [] if is_repeated else [f"last lines of {where}:", *(f"  {line}" for line in lines)]
        else:
            text.append(f"{where} has printed nothing" if lines is not None else f"the output of {where} can't be read")
    if OTHER_PRODUCT in report.reason:
        text.append(f"the script imports {OTHER_PRODUCT}; Holdfast's client has the same names: import worker_client")
    text.append(f"logs: {report.log_dir}")
    only = f" --rank {rank}" if rank is not None else ""
    text.append(f"next: holdfast events {report.job_id}, or holdfast logs {report.job_id}{only}")
    for line in text:
        output.say(line)


def shows_errors(spec: JobSpec) -> bool:
    """Returns whether a person at this terminal reads what all ranks write to stderr."""
    return standard_streams.stderr_is_terminal() and not (spec.redirects or spec.local_ranks_filter)


def culprit(report: JobReport) -> int | None:
    """Returns the rank that the verdict names first; None if it names no rank of the job."""
    named = re.search(r"\brank (\d+)\b", report.reason)
    rank = int(named[1]) if named else None
    return rank if any(each.rank == rank for each in report.ranks) else None


def _is_replaced(report: JobReport, rank: int) -> bool:
    """Returns whether the process that the verdict names has given its place, and its log files, to another one."""
    named = re.search(rf"\brank {rank} \(pid (\d+)\)", report.reason)
    pids = {each.pid for each in report.ranks if each.rank == rank} - {None}
    return named is not None and bool(pids) and int(named[1]) not in pids


def last_lines(pieces: Iterable[LogPiece], secrets: tuple[str, ...] = ()) -> list[str]:
    """Returns the last lines of stderr, where errors go, without secrets; of stdout if stderr has none."""
    streams = {True: b"", False: b""}
    for piece in pieces:
        streams[piece.is_stderr] += piece.data
    for data in (streams[True], streams[False]):
        lines = [line.rpartition("\r")[2].rstrip() for line in data.decode("utf-8", "replace").split("\n")]
        found = [one_line(line)[:LINE_CHARACTERS_MAX] for line in redacted_lines(lines, secrets)]
        if found:
            return found[-LINES:]
    return []


def _from_folder(report: JobReport) -> ReadLogs:
    return lambda choice: log_follower.read(Path(report.log_dir), report.job_id, choice)


def _read_bounded(read: Callable[[], list[str]]) -> list[str] | None:
    """Returns None if the lines can't be read, or not in time."""
    found: list[list[str]] = []

    def keep() -> None:
        try:
            found.append(read())
        except (HoldfastError, OSError):
            return

    thread = threading.Thread(target=keep, daemon=True)
    try:
        threads.start(thread)
    except OSError:
        return None
    thread.join(READ_TIMEOUT_S)
    return found[0] if found else None
