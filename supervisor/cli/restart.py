"""`holdfast restart JOB`: ends all its workers and starts them in a new cycle; takes nothing from the budget."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from supervisor.cli import output
from supervisor.cli.control import ask_live
from supervisor.cli.job_owners import who_asks
from supervisor.cli.supervisor_discovery import Supervisors, add_place_arguments


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", help="job id, or a unique prefix of it")
    parser.add_argument("--reason", help="why, for the job's history (default: who asked)")
    add_place_arguments(parser)


def execute(arguments: Namespace) -> int:
    with Supervisors(arguments, waits=True) as supervisors:
        job, client = ask_live(supervisors, arguments.job, verb="restart")
        cycle = client.restart(job.report.job_id, reason=arguments.reason or f"holdfast restart by {who_asks()}")
    output.say(f"job {job.name} restarts: cycle {cycle} comes next")
    return 0
