"""`holdfast nodes`: which nodes can be asked, and do they take jobs?"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from supervisor.cli import checks, documents, output
from supervisor.cli.supervisors import Supervisors, add_place_arguments
from supervisor.errors import NoSupervisorError
from supervisor.ports import NodeReport

HEADS = ("NODE", "STATE", "SUPERVISOR", "VERSION", "SINCE", "JOBS", "CHECKS", "REASON")


def add_arguments(parser: ArgumentParser) -> None:
    output.add_output_arguments(parser, "table", "json", "jsonl")
    add_place_arguments(parser)


def execute(arguments: Namespace) -> int:
    with Supervisors(arguments, waits=True) as supervisors:
        nodes: list[tuple[NodeReport, bool]] = []
        shared: list[tuple[NodeReport, bool]] = []
        for each in supervisors.answering:
            known = [(report, each.is_private) for report in each.client.nodes()]
            if len(known) > 1:
                shared += known
            else:
                nodes += known
        nodes += _each_once(shared)
        supervisors.tell_refusals()
        if not nodes:
            raise NoSupervisorError("cannot list nodes: no supervisor is running; start one with holdfast daemon")
    if arguments.output == "json":
        output.write_json(documents.nodes_document(report for report, _ in nodes), one_line=False)
    elif arguments.output == "jsonl":
        for report, _ in nodes:
            output.write_json(documents.node_document(report), one_line=True)
    else:
        rows = [_row(report, is_private) for report, is_private in nodes]
        output.write(output.table(HEADS, rows, output.paper(arguments.no_color)))
    return 0


def _each_once(nodes: list[tuple[NodeReport, bool]]) -> list[tuple[NodeReport, bool]]:
    """Lists each node once: all supervisors of a job know its nodes."""
    found = {(each.name, each.supervisor_pid, each.started_at_ns): (each, private) for each, private in nodes}
    return list(found.values())


def _row(report: NodeReport, is_private: bool) -> tuple[str, ...]:
    return (
        report.name,
        report.state,
        (f"pid {report.supervisor_pid}" + (" (private)" if is_private else "")) if report.supervisor_pid else "",
        report.version,
        output.local_time(report.started_at_ns) if report.started_at_ns else "",
        ", ".join(report.job_ids) or "none",
        checks.counts(report.checks) or "none",
        report.reason,
    )
