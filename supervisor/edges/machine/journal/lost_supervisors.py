"""Is the supervisor that recorded a job as live still alive, and if not, what is true of the job?

A journal holds the last word of each supervisor; a killed one had no time for a verdict.
"""

from __future__ import annotations

import os
import socket
from datetime import datetime
from functools import cache

import msgspec

from supervisor.core.facts import JobState
from supervisor.edges.machine.processes import job_claims, process_table
from supervisor.ports.reports import JobReport

NS_PER_S = 1_000_000_000
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
    at = datetime.fromtimestamp(recorded_at_s).isoformat(sep=" ")
    holder = job_claims.holder(report.job_id)
    if holder is not None and holder.since_ns == report.submitted_at_ns:
        return msgspec.structs.replace(
            report,
            state=JobState.STOPPING,
            reason=f"its supervisor (pid {report.supervisor_pid}) was killed at {at} or later; processes of the "
            f"job are left: {job_claims.how_they_end(report.job_id)}; last: {report.reason}",
        )
    return msgspec.structs.replace(
        report,
        state=JobState.FAILED,
        reason=f"its supervisor (pid {report.supervisor_pid}) was killed at {at} or later, without a verdict, and its "
        f"processes are gone; last: {report.reason}",
        ended_at_ns=recorded_at_s * NS_PER_S,
        ranks=tuple(
            rank if rank.state in ENDED_RANKS else msgspec.structs.replace(rank, state="stopped")
            for rank in report.ranks
        ),
    )


def _is_gone(report: JobReport, recorded_by: str) -> bool:
    """Returns True only if it is certain: another node, or a container, may share the journal."""
    identity = _identity_of(recorded_by)
    if identity is None:
        return False
    if identity.boot != process_table.boot_id():
        return socket.gethostname() in [node.name for node in report.nodes]  # this node has rebooted since
    if identity.pid_namespace != process_table.namespace(os.getpid(), "pid"):
        return False
    process = process_table.look_up(identity.pid)
    return process is None or process.started_ticks != identity.started_ticks or process.state in "ZX"


def _identity_of(text: str) -> Identity | None:
    try:
        boot, namespace, pid, ticks = text.split(" ")
        return Identity(boot, int(namespace), int(pid), int(ticks))
    except ValueError:
        return None
