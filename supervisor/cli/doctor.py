"""`holdfast doctor`: is this node fit for a job, and do the job's settings match each other?"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections import Counter
from collections.abc import Callable, Iterator

import msgspec

import supervisor
from supervisor.cli import output
from supervisor.cli.current_folder import current_folder
from supervisor.cli.events import events_of
from supervisor.cli.supervisor_discovery import Supervisors
from supervisor.config.job_spec import JobSpec
from supervisor.config.resolve import RunRequest, parse_run
from supervisor.core.printable import one_line
from supervisor.programs.doctor import (
    control_groups,
    cycle_checks,
    folders,
    gpus,
    kernel,
    network,
    slurm,
    timeout_checks,
    training,
)
from supervisor.programs.doctor.doctor_finding import DoctorFinding, Grade
from supervisor.programs.doctor.machine_probe import Machine
from supervisor.report.timeline.timeline_builder import longest_silence

SCHEMA = "holdfast.doctor/v1"
PROBLEMS = 1
EXAMPLES = """\
examples:
  holdfast doctor
  holdfast doctor --python /opt/env/bin/python
  holdfast doctor -- --ft-cfg-path job.yaml --nnodes 2 --rdzv-id j1 --rdzv-endpoint node1:29400
  holdfast doctor --job train-1 -- --ft-auto-heartbeat-timeout 60

Nothing is changed. Exit code 0: no problem was found; 1: a job would fail here.
"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.formatter_class = RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    parser.add_argument("run_options", nargs="*", metavar="-- OPTION", help="options of the holdfast run that is meant")
    parser.add_argument("--python", metavar="P", default="", help="the job's Python (default: this one)")
    parser.add_argument("--job", metavar="JOB", default="", help="judge limits by what this earlier job has measured")
    parser.add_argument("--socket-dir", metavar="DIR", help="socket directory of the service")
    parser.add_argument("--state-dir", metavar="DIR", help="directory for history and logs")
    output.add_output_arguments(parser, "table", "json")


def execute(arguments: Namespace) -> int:
    request = _request(arguments)
    earlier = _earlier(arguments) if arguments.job else None
    layout = output.text_layout(arguments.no_color)
    findings: list[DoctorFinding] = []
    if arguments.output == "table":
        output.write(f"{os.uname().nodename}: holdfast {supervisor.__version__}, {sys.executable}\n")
    for area in _areas(arguments, request, earlier):
        findings += area
        if arguments.output == "table":
            output.write("".join(["\n", *(_told(finding, layout) for finding in area)]))
    if arguments.output == "json":
        output.write_json(_document(findings), one_line=False)
    else:
        output.write(f"\n{_summary(findings)}\n")
    return PROBLEMS if any(finding.grade is Grade.PROBLEM for finding in findings) else 0


def _request(arguments: Namespace) -> RunRequest:
    """Returns what a run with these options would ask for. Raises what the run would raise."""
    options: list[str] = arguments.run_options
    return parse_run([*options, "script.py"], environ=os.environ, cwd=current_folder())


def _earlier(arguments: Namespace) -> timeout_checks.Measured:
    """Reads what the job has measured. Raises what `holdfast events` would raise."""
    with Supervisors(arguments) as supervisors:
        found = supervisors.find(arguments.job, verb="judge limits by")
        events = list(events_of(found, supervisors, follow=False))
    calculated = [event.reason for event in events if event.kind == "limits_calculated"]
    return timeout_checks.Measured(found.report.job_id, longest_silence(events), calculated[-1] if calculated else "")


def _areas(
    arguments: Namespace, request: RunRequest, earlier: timeout_checks.Measured | None
) -> Iterator[list[DoctorFinding]]:
    """Yields one area after the other, so that people read the first results while the slow checks run."""
    machine, spec = Machine(), request.spec
    looks: tuple[Callable[[], list[DoctorFinding]], ...] = (
        lambda: kernel.look(machine),
        lambda: control_groups.look(machine),
        lambda: folders.look(
            machine,
            sockets=arguments.socket_dir or request.socket_dir,
            state=arguments.state_dir or request.state_dir,
        ),
        lambda: network.look(machine, _endpoint(spec)),
        lambda: slurm.look(machine, term_timeout_s=spec.term_timeout_s, is_given="term_timeout" in request.sources),
        lambda: gpus.look(machine),
        lambda: cycle_checks.look(spec, os.uname().nodename),
        lambda: timeout_checks.look(spec, machine.environ, has_gpus=bool(gpus.device_files(machine)), earlier=earlier),
        lambda: training.look(machine, arguments.python or spec.python or sys.executable),
    )
    for look in looks:
        yield look()


def _endpoint(spec: JobSpec) -> network.Endpoint | None:
    nodes = spec.nodes
    if nodes is None:
        return None
    is_etcd = nodes.backend == "etcd" and not nodes.brings_etcd
    return network.Endpoint(nodes.host, nodes.port, is_etcd=is_etcd)


def _told(finding: DoctorFinding, layout: output.TextLayout) -> str:
    """Prints a finding, and below it why it matters and what to type."""
    cells = (finding.grade.value, finding.area, finding.check, finding.found)
    lines = [output.row(cells, (8, 14, 21, 0), layout)]
    for label, text in (("why", finding.why), ("do", finding.remedy)):
        if text:
            lines.append(f"{'':10}{label + ':':<5}" + output.folded(one_line(text), layout, indent=15))
    return "".join(lines)


def _summary(findings: list[DoctorFinding]) -> str:
    counts = Counter(finding.grade for finding in findings)
    parts = [
        output.plural(counts[grade], grade.value)
        for grade in (Grade.PROBLEM, Grade.WARNING, Grade.NOTE)
        if counts[grade]
    ]
    rest = f"{counts[Grade.OK]} ok, {counts[Grade.SKIPPED]} skipped"
    return f"{', '.join(parts) or 'nothing to mend'}; {rest}"


def _document(findings: list[DoctorFinding]) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "node": os.uname().nodename,
        "version": supervisor.__version__,
        "findings": [msgspec.to_builtins(finding) for finding in findings],
    }
