"""What do the rows of the live view show, in which order, and which rows match the typed words?

Pure: from reports to texts. A row's first cell is its key: a job's name, a rank. Only that of an earlier run is longer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import msgspec

from supervisor.cli import output
from supervisor.cli.supervisor_discovery import FoundJob
from supervisor.core.printable import one_line
from supervisor.local_time import local_time
from supervisor.ports.reports import JobNodeReport, JobReport, RankReport, RecordedEvent

Report = TypeVar("Report", JobReport, RankReport)

SILENT_SHARE = 0.5  # of the limit: from here on a silence is worth a look
ODD_STATES = ("hung", "failed")
STATE_ORDER = ("hung", "failed", "starting", "stopped", "exited", "running")  # the odd ones first


class Row(msgspec.Struct, frozen=True):
    """One line. `urgent`: worth a look now; shown in bold, and in colour where there is one.

    `is_earlier`: an ended run of a job that has run again. The job's name means the newer run.
    """

    key: str
    cells: tuple[str, ...]
    urgent: bool = False
    is_earlier: bool = False


class Order(msgspec.Struct, Generic[Report], frozen=True):
    """One way to sort, and the name that the user reads."""

    name: str
    key: Callable[[Report], tuple[float | str, ...]]


JOB_HEADS = ("JOB", "STATE", "CYCLE", "RESTARTS", "RANKS", "SILENCE", "AGE", "REASON")
RANK_HEADS = ("RANK", "STATE", "SILENCE", "NODE", "PID", "CYCLE AGE", "SECTIONS")
NODE_HEADS = ("NODE", "STATE", "GROUP", "RANKS", "REASON")


def silent_share(rank: RankReport) -> float:
    """Returns the rank's silence as a share of its limit; 0 without a limit. Sections count like heartbeats."""
    return max([_share(*age_and_limit(rank)), *(_share(each.age_s, each.limit_s) for each in rank.sections)])


def silence(rank: RankReport) -> str:
    """Returns the age of the last heartbeat, or of the main thread's last code, and its limit: `1.2s/60s`."""
    age_s, limit_s = age_and_limit(rank)
    limit = "" if limit_s is None else f"/{output.duration(limit_s)}"
    if age_s is None:
        return f"none{limit}" if limit else "-"
    return f"{output.duration(age_s)}{limit}"


def age_and_limit(rank: RankReport) -> tuple[float | None, float | None]:
    """Returns the silence that a short view shows: of heartbeats or of the main thread, the one nearer to its limit."""
    heartbeats = rank.heartbeat_age_s, rank.heartbeat_limit_s
    main_thread = rank.main_thread_age_s, rank.main_thread_limit_s
    if rank.heartbeat_age_s is None and rank.main_thread_age_s is not None:
        return main_thread
    return max(heartbeats, main_thread, key=lambda each: _share(*each))


def _share(age_s: float | None, limit_s: float | None) -> float:
    return age_s / limit_s if age_s is not None and limit_s else 0.0


def most_silent(report: JobReport) -> RankReport | None:
    """Returns the rank that is nearest to its limit."""
    return max(report.ranks, key=silent_share, default=None)


def is_urgent(rank: RankReport) -> bool:
    """Returns whether the rank is worth a look now."""
    return rank.state in ODD_STATES or silent_share(rank) >= SILENT_SHARE


def state_of(rank: RankReport) -> str:
    """Returns the rank's state, with the code or the signal of its end."""
    if rank.exit_signal is not None:
        return f"{rank.state} (signal {rank.exit_signal})"
    return rank.state if rank.exit_code is None else f"{rank.state} ({rank.exit_code})"


def job_row(job: FoundJob, now_ns: int, *, is_earlier: bool = False) -> Row:
    report = job.report
    key = name = job.name
    if is_earlier:
        name += f" (until {local_time(report.ended_at_ns or report.submitted_at_ns)[:16]})"
        key = f"{name} {report.submitted_at_ns}"  # two may have ended in the same minute
    up = sum(rank.state == "running" for rank in report.ranks)
    worst = most_silent(report)
    age_s = ((report.ended_at_ns or now_ns) - report.submitted_at_ns) / 1e9
    cells = (
        name,
        report.state.value,
        str(report.cycle) + (f".{report.iteration}" if report.iteration else ""),
        f"{report.restarts_used}/{report.max_restarts}",
        f"{up}/{len(report.ranks)}",
        "-" if worst is None or report.state.has_ended else silence(worst),
        output.duration(age_s),
        one_line(report.reason),
    )
    return Row(
        key,
        cells,
        urgent=not report.state.has_ended and any(map(is_urgent, report.ranks)),
        is_earlier=is_earlier,
    )


def rank_row(rank: RankReport, now_ns: int) -> Row:
    age = "" if rank.cycle_started_at_ns is None else output.duration((now_ns - rank.cycle_started_at_ns) / 1e9)
    sections = ", ".join(
        one_line(each.name)
        + f" {output.duration(each.age_s)}"
        + ("" if each.limit_s is None else f"/{output.duration(each.limit_s)}")
        for each in rank.sections
    )
    pid = "" if rank.pid is None else str(rank.pid)
    cells = (str(rank.rank), state_of(rank), silence(rank), one_line(rank.node), pid, age, sections)
    return Row(str(rank.rank), cells, urgent=is_urgent(rank))


def node_row(node: JobNodeReport, ranks: Sequence[RankReport]) -> Row:
    """Returns a node's row. `ranks`: those of the job, for a node that does not name its own."""
    group = "" if node.group_rank is None else str(node.group_rank)
    own = node.ranks or tuple(rank.rank for rank in ranks if rank.node == node.name)
    cells = (one_line(node.name), node.state, group, output.ranges(own), one_line(node.reason))
    return Row(node.name, cells, urgent=node.state in ("lost", "excluded"))


def event_line(event: RecordedEvent, *, with_job: bool) -> str:
    """Returns an event as one line: time, job, node and rank if known, what happened and why."""
    words = [local_time(event.at_ns)[11:19]]
    if with_job:
        words.append(event.job_id)
    if event.rank is not None:
        words.append(f"rank {event.rank}")
    words += [event.kind, event.reason]
    return one_line("  ".join(words))


JOB_ORDERS: tuple[Order[JobReport], ...] = (
    Order("newest", lambda report: (-report.submitted_at_ns,)),
    Order("name", lambda report: (report.job_id,)),
    Order("silence", lambda report: (-max(map(_silent_tenths, report.ranks), default=0), report.job_id)),
    Order("restarts", lambda report: (-report.restarts_used, report.job_id)),
    Order("state", lambda report: (report.state.has_ended, report.state.value, report.job_id)),
)
RANK_ORDERS: tuple[Order[RankReport], ...] = (
    Order("rank", lambda rank: (rank.rank,)),
    Order("silence", lambda rank: (-_silent_tenths(rank), rank.rank)),
    Order("state", lambda rank: (_state_place(rank.state), rank.rank)),
    Order("node", lambda rank: (rank.node, rank.rank)),
)


def _silent_tenths(rank: RankReport) -> int:
    """Rounds the silence, so that healthy ranks do not change places at every refresh."""
    return int(silent_share(rank) * 10)


def _state_place(state: str) -> int:
    return STATE_ORDER.index(state) if state in STATE_ORDER else len(STATE_ORDER)


def fitting(rows: Sequence[Row], text: str) -> list[Row]:
    """Returns the rows that contain each typed word. Case makes no difference."""
    words = text.casefold().split()
    return [row for row in rows if all(any(word in cell.casefold() for cell in row.cells) for word in words)]
