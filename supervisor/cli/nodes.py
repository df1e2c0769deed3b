"""`holdfast nodes`: which nodes can be asked, and do they take jobs?"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from supervisor.cli import command_json, node_check_table, output
from supervisor.cli.job_owners import name_of, user_name
from supervisor.cli.supervisor_discovery import Answering, Supervisors, add_place_arguments
from supervisor.errors import NoSupervisorError
from supervisor.local_time import local_time
from supervisor.ports.reports import NodeReport

Known = tuple[NodeReport, Answering]
HEADS = ("NODE", "STATE", "SUPERVISOR", "VERSION", "SINCE", "JOBS", "CHECKS", "REASON")


def add_arguments(parser: ArgumentParser) -> None:
    output.add_output_arguments(parser, "table", "json", "jsonl")
    add_place_arguments(parser)


def execute(arguments: Namespace) -> int:
    with Supervisors(arguments, waits=True) as supervisors:
        nodes: list[Known] = []
        shared: list[Known] = []
        for each, reports in supervisors.ask_each(lambda each, limit_s: each.client.nodes(within_s=limit_s)):
            (shared if len(reports) > 1 else nodes).extend((report, each) for report in reports)
        nodes += _each_once(shared)
        supervisors.tell_refusals()
        if not nodes:
            supervisors.silence.check("list nodes")
            raise NoSupervisorError("cannot list nodes: no supervisor is running; start one with holdfast daemon")
    if arguments.output == "json":
        output.write_json(command_json.nodes_document(report for report, _ in nodes), one_line=False)
    elif arguments.output == "jsonl":
        for report, _ in nodes:
            output.write_json(command_json.node_document(report), one_line=True)
    else:
        rows = [_row(report, each) for report, each in nodes]
        output.write(output.table(HEADS, rows, output.text_layout(arguments.no_color)))
    return supervisors.silence.exit_code


def _each_once(nodes: list[Known]) -> list[Known]:
    """Lists each node once for each user: all supervisors of a job know its nodes."""
    found = {
        (each.uid, report.name, report.supervisor_pid, report.started_at_ns): (report, each) for report, each in nodes
    }
    return list(found.values())


def _row(report: NodeReport, supervisor: Answering) -> tuple[str, ...]:
    kind = "" if supervisor.is_own else f" (of {user_name(supervisor.uid)})"
    kind = " (private)" if supervisor.is_private else kind
    return (
        report.name,
        report.state,
        f"pid {report.supervisor_pid}{kind}" if report.supervisor_pid else "",
        report.version,
        local_time(report.started_at_ns) if report.started_at_ns else "",
        ", ".join(name_of(job_id, supervisor.uid) for job_id in report.job_ids) or "none",
        node_check_table.counts(report.checks) or "none",
        report.reason,
    )
