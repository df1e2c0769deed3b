"""`holdfast logs JOB`: what did the ranks of a job print?"""

from __future__ import annotations

import os
import sys
import threading
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from supervisor.cli import offline_logs, output
from supervisor.cli.argument_values import cycle_number, positive, rank_number
from supervisor.cli.found_jobs import Answering
from supervisor.cli.history import History
from supervisor.cli.reconnecting_client import SteadyClient
from supervisor.cli.supervisor_discovery import FoundJob, Supervisors, add_place_arguments, known_ranks
from supervisor.core import printable
from supervisor.edges.operators import log_follower
from supervisor.edges.operators.log_follower import LogChoice, LogPiece
from supervisor.edges.operators.shown_output import ShownOutput
from supervisor.errors import HoldfastError, NoSupervisorError, NotFoundError
from supervisor.ports.reports import JobReport

LINE_BYTES_MAX = 64 * 1024  # a longer one is printed in parts


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", help="job id, or a unique prefix of it")
    parser.add_argument(
        "--rank", type=rank_number, metavar="N", help="only this rank, as it was printed, without a prefix"
    )
    parser.add_argument("--cycle", type=cycle_number, metavar="C", help="only this cycle")
    parser.add_argument(
        "-n", "--tail", type=positive, default=0, metavar="N",
        help="the last N lines of each rank and stream, in the newest cycle unless --cycle names another",
    )  # fmt: skip
    parser.add_argument("-f", "--follow", action="store_true", help="also show new output until the job ends")
    output.add_output_arguments(parser, "text", "jsonl")
    add_place_arguments(parser)


def execute(arguments: Namespace) -> int:
    with Supervisors(arguments, waits=True) as supervisors:
        found = supervisors.find(arguments.job, verb="show output of")
        known = known_ranks(found.report, arguments.rank)
        if known and arguments.follow and found.is_live:
            output.say(f"{known}; rank {arguments.rank} is waited for")
        choice = LogChoice(arguments.rank, arguments.cycle, arguments.tail)
        is_cleaned = not found.is_own and sys.stdout.isatty()
        if arguments.follow and found.is_live:
            # A file server that does not answer must not delay the output of other nodes.
            threading.Thread(target=_say_why_unread, args=(found, choice), daemon=True).start()
        counted = _Counted(_pieces(found, choice, supervisors.history, follow=arguments.follow))
        try:
            _show(iter(counted), arguments, is_cleaned=is_cleaned)
        except NotFoundError as error:
            raise NotFoundError(f"{error}; {known}" if known else str(error)) from error
        if not counted.bytes and not _say_why_unread(found, choice):
            what = f"the selected ranks of job {found.name} have printed nothing (logs: {found.report.log_dir})"
            output.say(f"{what}; {known}" if known else what)
    return 0


def _say_why_unread(found: FoundJob, choice: LogChoice) -> bool:
    """Says why the ranks' shared file is not read; returns whether it is not. Opens nothing of another user's job."""
    why = log_follower.why_shared_file_unread(Path(found.report.log_dir), choice) if found.is_own else ""
    if why:
        output.say(why)
    return bool(why)


def _show(pieces: Iterator[LogPiece], arguments: Namespace, *, is_cleaned: bool) -> None:
    if arguments.output == "jsonl":
        for line in _lines(pieces):
            output.write_json(_line_document(line), one_line=True)
    elif arguments.rank is not None and not is_cleaned:
        for piece in pieces:
            _write(piece.data)
    else:
        for line in _lines(pieces):
            prefix = "" if arguments.rank is not None else f"[cycle {line.cycle} rank {line.rank}] "
            _write(prefix.encode() + (_cleaned(line.data) if is_cleaned else line.data))


class _Counted:
    """Passes pieces on and counts their bytes."""

    def __init__(self, pieces: Iterable[LogPiece]) -> None:
        self._pieces = pieces
        self.bytes = 0

    def __iter__(self) -> Iterator[LogPiece]:
        for piece in self._pieces:
            self.bytes += len(piece.data)
            yield piece


def _pieces(found: FoundJob, choice: LogChoice, history: History, *, follow: bool) -> Iterator[LogPiece]:
    asked = found.supervisor
    has_ended = found.is_own and found.report.ended_at_ns is not None  # A supervisor asks no other node then.
    if asked is None or (has_ended and os.path.isdir(found.report.log_dir)):
        return offline_logs.read(found.report, choice, on_note=output.say)
    if follow and found.is_live and not asked.is_private:
        report = found.report
        steady = SteadyClient(asked.client, report.job_id, say=output.say, is_own=found.is_own, last=report)
        return steady.logs(choice, on_note=output.say)
    if follow and found.is_own and asked.is_private:
        return _to_the_end(found.report, asked, choice, history)
    return asked.client.logs(found.report.job_id, choice, follow=follow, on_note=output.say)


def _to_the_end(report: JobReport, asked: Answering, choice: LogChoice, history: History) -> Iterator[LogPiece]:
    """Follows a job whose private supervisor ends with it, perhaps before it has shown all: the files have the rest."""
    shown = ShownOutput(are_tails=choice.tail_lines > 0)
    try:
        told_by = asked.client.logs(report.job_id, choice, follow=True, on_note=output.say)
        yield from filter(None, map(shown.new, told_by))
        return
    except NoSupervisorError:
        asked.await_end()
        ended = None
        with suppress(HoldfastError):
            ended = history.read(lambda reader: reader.recorded(report.job_id, report.submitted_at_ns))
        if ended is None or ended.ended_at_ns is None or FoundJob(ended, None).is_lost:
            raise
    first = min(shown.cycles, default=-1) if choice.tail_lines else -1
    shown.comes_again()
    rest = msgspec.structs.replace(choice, tail_lines=0) if shown.cycles else choice
    told_by = offline_logs.read(
        ended, rest, on_note=lambda note: output.say(f"the supervisor ended before it had shown all: {note}")
    )
    yield from filter(None, map(shown.new, (piece for piece in told_by if piece.cycle >= first)))


def _lines(pieces: Iterable[LogPiece]) -> Iterator[LogPiece]:
    """Yields whole lines with their ends; adds the end that a last line lacks."""
    waiting: dict[tuple[int, int, bool], bytes] = {}
    for piece in pieces:
        key = (piece.cycle, piece.rank, piece.is_stderr)
        *whole, rest = (waiting.pop(key, b"") + piece.data).split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            whole, rest = [*whole, rest], b""
        for line in whole:
            yield LogPiece(piece.rank, piece.cycle, piece.is_stderr, line + b"\n")
        if rest:
            waiting[key] = rest
    for (cycle, rank, is_stderr), rest in waiting.items():
        yield LogPiece(rank, cycle, is_stderr, rest + b"\n")


def _line_document(line: LogPiece) -> dict[str, object]:
    return {
        "cycle": line.cycle,
        "rank": line.rank,
        "stream": "stderr" if line.is_stderr else "stdout",
        "line": line.data.decode("utf-8", "backslashreplace").rstrip("\r\n"),
    }


def _cleaned(line: bytes) -> bytes:
    """Returns the line without what controls a terminal: the output of another user's job may be meant for root's."""
    return printable.lines(line.decode("utf-8", "backslashreplace")).encode()


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
