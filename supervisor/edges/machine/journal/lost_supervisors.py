"""Is the supervisor that recorded a job as live still alive, and if not, what is true of the job?

A journal holds the last word of each supervisor. A killed one had no time for a verdict, and one whose disk was full
could not write it: which of the two it was is not known here. The job is known to have run until the journal or one of
its ranks' logs was last written.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from functools import cache

import msgspec

from supervisor.core.facts import JobState
from supervisor.edges.machine.network_folders import is_of_this_node
from supervisor.edges.machine.processes import job_claims, process_table
from supervisor.local_time import local_time
from supervisor.ports.reports import JobReport

NS_PER_S = 1_000_000_000
LOGS_LOOKED_AT_MAX = 10_000  # files of one job
ENDED_RANKS = ("exited", "failed", "stopped")


class Identity(msgspec.Struct, frozen=True):
    """Identifies a process among all others, past and future."""

    boot: str
    pid_namespace: int
    pid: int
    started_ticks: int


@cache
def own_identity() -> str:
    """Returns the identity of this process, for a journal; "" if /proc does not report it."""
    pid = os.getpid()
    process, namespace = process_table.look_up(pid), process_table.namespace(pid, "pid")
    if process is None or namespace is None:
        return ""
    return f"{process_table.boot_id()} {namespace} {pid} {process.started_ticks}"


def judged(report: JobReport, *, recorded_by: str, recorded_at_s: int) -> JobReport:
    """Returns the report as it is true now. `recorded_by`: the writer's `own_identity`; `recorded_at_s`: Unix time."""
    if report.state.has_ended or not _is_gone(report, recorded_by):
        return report
    known_until_s = max(recorded_at_s, _last_written_s(report.log_dir))
    at = local_time(known_until_s * NS_PER_S)
    lost = f"{_ended(report)} a verdict: it was killed, or could not write its journal; the job is known until {at}"
    folder = job_claims.folder_of_run(report.job_id, report.submitted_at_ns)
    if folder is not None:
        return msgspec.structs.replace(
            report,
            state=JobState.STOPPING,
            reason=f"{lost}; processes of the job are left: {job_claims.how_they_end(report.job_id, [folder])}; "
            f"last: {report.reason}",
        )
    return msgspec.structs.replace(
        report,
        state=JobState.FAILED,
        reason=f"{lost}; its processes are gone; last: {report.reason}",
        ended_at_ns=known_until_s * NS_PER_S,
        ranks=tuple(
            rank if rank.state in ENDED_RANKS else msgspec.structs.replace(rank, state="stopped")
            for rank in report.ranks
        ),
    )


def is_lost(report: JobReport) -> bool:
    """Returns whether the report is one by `judged`, of a job whose supervisor has certainly ended."""
    return report.reason.startswith(_ended(report))


def _ended(report: JobReport) -> str:
    return f"its supervisor (pid {report.supervisor_pid}) has ended without recording"


def _last_written_s(folder: str) -> int:
    """Returns when a log of this run was last written, in whole seconds of Unix time; 0: never, or not known here."""
    newest_s, looked_at = 0.0, 0
    for parent, _, names in os.walk(folder) if folder else ():
        for name in names[: LOGS_LOOKED_AT_MAX - looked_at]:
            with suppress(OSError):
                newest_s = max(newest_s, os.lstat(os.path.join(parent, name)).st_mtime)
        looked_at += len(names)
        if looked_at >= LOGS_LOOKED_AT_MAX:
            break
    return int(newest_s)


def _is_gone(report: JobReport, recorded_by: str) -> bool:
    """Returns True only if it is certain: another node, or a container, may share the journal."""
    identity = _identity_of(recorded_by)
    if identity is None:
        return False
    if identity.boot != process_table.boot_id():
        return _ran_here(report)  # this node has rebooted since
    if identity.pid_namespace != process_table.namespace(os.getpid(), "pid"):
        return False
    process = process_table.look_up(identity.pid)
    return process is None or process.started_ticks != identity.started_ticks or process.state in "ZX"


def _ran_here(report: JobReport) -> bool:
    """Returns whether the job certainly ran on this node, even if the node had another name."""
    return socket.gethostname() in [node.name for node in report.nodes] or is_of_this_node(report.log_dir)


def _identity_of(text: str) -> Identity | None:
    try:
        boot, namespace, pid, ticks = text.split(" ")
        return Identity(boot, int(namespace), int(pid), int(ticks))
    except ValueError:
        return None
