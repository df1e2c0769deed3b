"""`holdfast stacks JOB`: where is each rank at this moment?"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from supervisor.cli import command_json, output
from supervisor.cli.argument_values import rank_number
from supervisor.cli.control import ask_live
from supervisor.cli.supervisor_discovery import Supervisors, add_place_arguments
from supervisor.core.facts import Evidence
from supervisor.core.printable import one_line


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", help="job id, or a unique prefix of it")
    parser.add_argument("--rank", type=rank_number, metavar="N", help="only this rank")
    output.add_output_arguments(parser, "text", "json")
    add_place_arguments(parser)


def execute(arguments: Namespace) -> int:
    with Supervisors(arguments, waits=True) as supervisors:
        job, client = ask_live(supervisors, arguments.job, verb="take stacks of")
        evidence = client.stacks(job.report.job_id, arguments.rank)
    if arguments.output == "json":
        output.write_json(command_json.stacks_document(job.report.job_id, evidence), one_line=False)
    else:
        output.write(stacks_text(evidence))
    return 0


def stacks_text(evidence: Evidence) -> str:
    """Returns the stacks with the innermost frame last, as in a traceback."""
    parts: list[str] = []
    for group in evidence.groups:
        word = "rank" if len(group.ranks) == 1 else "ranks"
        frames = [f"  {one_line(line.strip())}" for line in group.stack.splitlines() if line.strip()]
        parts.append("\n".join([f"{word} {output.ranges(group.ranks)}:", *frames]))
    if evidence.notes:
        parts.append("\n".join(one_line(note) for note in evidence.notes))
    if evidence.source:
        parts.append(f"(by {evidence.source})")
    return "\n\n".join(parts) + "\n"
