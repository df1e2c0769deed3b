"""What do programs read: the JSON of status, jobs, nodes and stacks? Keys may be added, none renamed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from supervisor.cli.job_owners import user_name
from supervisor.cli.supervisor_discovery import FoundJob
from supervisor.core.facts import Evidence
from supervisor.core.stragglers.straggler_messages import Straggler
from supervisor.edges.operators.event_json import timestamp
from supervisor.ports.reports import CheckReport, JobNodeReport, NodeReport, RankReport

STATUS_SCHEMA = "holdfast.status/v1"
NODES_SCHEMA = "holdfast.nodes/v1"
EVENTS_SCHEMA = "holdfast.events/v1"
STACKS_SCHEMA = "holdfast.stacks/v1"

Document: TypeAlias = dict[str, object]


def status_document(jobs: Iterable[FoundJob]) -> Document:
    return {"schema": STATUS_SCHEMA, "jobs": [job_document(job) for job in jobs]}


def job_document(job: FoundJob) -> Document:
    report = job.report
    return {
        "job_id": report.job_id,
        "user": user_name(job.uid),
        "state": report.state.value,
        "cycle": report.cycle,
        "iteration": report.iteration,
        "max_restarts": report.max_restarts,
        "restarts_used": report.restarts_used,
        "reason": report.reason,
        "nodes": [_job_node_document(node) for node in report.nodes],
        "ranks": [_rank_document(rank) for rank in report.ranks],
        "exit_code": report.exit_code,
        "submitted_at": timestamp(report.submitted_at_ns),
        "ended_at": None if report.ended_at_ns is None else timestamp(report.ended_at_ns),
        "log_dir": report.log_dir,
        "command": list(report.command),
        "supervisor_pid": report.supervisor_pid,
        "script": report.script,
        "stragglers": [_straggler_document(each) for each in report.stragglers],
    }


def _straggler_document(each: Straggler) -> Document:
    return {
        "section": each.section,
        "node": each.node,
        "ranks": list(each.ranks),
        "is_node": each.is_node,
        "ratio": round(each.ratio, 3),
        "took_s": round(each.took_s, 6),
        "median_s": round(each.median_s, 6),
        "compared_ranks": each.of_ranks,
        "reason": each.reason,
    }


def _job_node_document(node: JobNodeReport) -> Document:
    return {
        "name": node.name,
        "state": node.state,
        "group_rank": node.group_rank,
        "reason": node.reason,
        "heard_at": None if node.heard_at_ns is None else timestamp(node.heard_at_ns),
        "lost_at": None if node.lost_at_ns is None else timestamp(node.lost_at_ns),
        "ranks": list(node.ranks),
        "log_dir": node.log_dir,
        "unreachable": (
            None if node.unreachable_pid is None else {"pid": node.unreachable_pid, "state": node.unreachable_state}
        ),
        "checks": [_check_document(check) for check in node.checks],
    }


def _check_document(check: CheckReport) -> Document:
    return {
        "check": check.check,
        "subject": check.subject,
        "verdict": check.verdict,
        "reason": check.reason,
        "took_s": _seconds(check.took_s),
        "found_at": timestamp(check.found_at_ns),
    }


def _rank_document(rank: RankReport) -> Document:
    return {
        "rank": rank.rank,
        "local_rank": rank.local_rank,
        "node": rank.node,
        "pid": rank.pid,
        "state": rank.state,
        "heartbeat_age_s": _seconds(rank.heartbeat_age_s),
        "heartbeat_limit_s": _seconds(rank.heartbeat_limit_s),
        "main_thread_age_s": _seconds(rank.main_thread_age_s),
        "main_thread_limit_s": _seconds(rank.main_thread_limit_s),
        "sections": [
            {"name": each.name, "age_s": _seconds(each.age_s), "limit_s": each.limit_s} for each in rank.sections
        ],
        "cycle_started_at": None if rank.cycle_started_at_ns is None else timestamp(rank.cycle_started_at_ns),
        "exit_code": rank.exit_code,
        "exit_signal": rank.exit_signal,
    }


def nodes_document(reports: Iterable[NodeReport]) -> Document:
    return {"schema": NODES_SCHEMA, "nodes": [node_document(report) for report in reports]}


def node_document(report: NodeReport) -> Document:
    return {
        "name": report.name,
        "state": report.state,
        "reason": report.reason,
        "jobs": list(report.job_ids),
        "supervisor_pid": report.supervisor_pid,
        "version": report.version,
        "started_at": timestamp(report.started_at_ns),
        "checks": [_check_document(check) for check in report.checks],
    }


def events_document(job_id: str, events: Iterable[Document]) -> Document:
    return {"schema": EVENTS_SCHEMA, "job_id": job_id, "events": list(events)}


def stacks_document(job_id: str, evidence: Evidence) -> Document:
    return {
        "schema": STACKS_SCHEMA,
        "job_id": job_id,
        "source": evidence.source,
        "groups": [{"ranks": list(group.ranks), "stack": group.stack} for group in evidence.groups],
        "notes": list(evidence.notes),
    }


def _seconds(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
