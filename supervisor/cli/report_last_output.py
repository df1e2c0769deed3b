"""What did the culprit ranks print last, and how much of it is shown? Read from the logs, as long as they exist."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable

import msgspec

from supervisor.config.redaction import redacted_lines, secret_values
from supervisor.edges.machine.own_process import threads
from supervisor.edges.operators.log_follower import LogChoice, LogPiece
from supervisor.errors import HoldfastError
from supervisor.report.formatting import bare
from supervisor.report.timeline.timeline import LastWords, Life, Outcome

LINES = 25
LINE_CHARACTERS_MAX = 500
INCIDENTS_MAX = 60  # the newest
RANKS_MAX = 3  # of one incident
READ_TIMEOUT_S = 10.0  # of all of them: a disk may hang

ReadLogs = Callable[[LogChoice], Iterable[LogPiece]]


def with_last_words(life: Life, read_logs: ReadLogs) -> Life:
    """Returns the life with the last output of its culprits. Waits for a disk or a supervisor for a bounded time.

    Nothing records a job's own secrets, but who asks for the report has most likely started the job: so the secrets of
    this process are hidden.
    """
    secrets = secret_values((), os.environ)
    shown = [each for each in life.incidents if each.outcome is not Outcome.TOLERATED][-INCIDENTS_MAX:]
    chosen = {each.number for each in shown}
    ends = [each for each in shown if each.outcome is not Outcome.INSIDE]
    wanted = {(each.cycle, rank): None for each in ends for rank in each.culprits[:RANKS_MAX]}  # A request has none.
    found: dict[tuple[int, int], LastWords] = {}

    def read() -> None:
        for cycle, rank in wanted:
            found[cycle, rank] = _read(read_logs, cycle, rank, secrets)

    thread = threading.Thread(target=read, daemon=True)
    with contextlib.suppress(OSError):
        threads.start(thread)
        thread.join(READ_TIMEOUT_S)
    read_in_time = dict(found)
    incidents = tuple(
        msgspec.structs.replace(
            each,
            last_words=tuple(
                _went_on(life.job_id, each.cycle, rank)
                if each.outcome is Outcome.INSIDE
                else read_in_time.get((each.cycle, rank)) or LastWords(rank, note="its output was not read in time")
                for rank in each.culprits[:RANKS_MAX]
                if each.number in chosen
            ),
        )
        for each in life.incidents
    )
    return msgspec.structs.replace(life, incidents=incidents)


def _went_on(job_id: str, cycle: int, rank: int) -> LastWords:
    """Says why no lines are shown: the rank, or the process that replaced it, writes to the same files from then on."""
    command = f"holdfast logs {job_id} --rank {rank} --cycle {cycle}"
    return LastWords(rank, note=f"the cycle went on, so its files hold later output too; {command} shows them")


def _read(read_logs: ReadLogs, cycle: int, rank: int, secrets: tuple[str, ...]) -> LastWords:
    try:
        lines = last_lines(read_logs(LogChoice(rank=rank, cycle=cycle, tail_lines=LINES)), secrets)
    except (HoldfastError, OSError) as error:
        return LastWords(rank, note=f"its output can't be read: {error}")
    return LastWords(rank, lines, "" if lines else "none of its output was kept")


def last_lines(pieces: Iterable[LogPiece], secrets: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the last lines of stderr, where errors go, without secrets; of stdout if stderr has none."""
    streams = {True: b"", False: b""}
    for piece in pieces:
        streams[piece.is_stderr] += piece.data
    for data in (streams[True], streams[False]):
        lines = [
            bare(line).rstrip("\r").rpartition("\r")[2].rstrip() for line in data.decode("utf-8", "replace").split("\n")
        ]
        shown = [line[:LINE_CHARACTERS_MAX] for line in redacted_lines(lines, secrets)]
        if shown:
            return tuple(shown[-LINES:])
    return ()
