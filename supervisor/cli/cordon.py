"""`holdfast cordon NODE`: the node takes no new jobs; running jobs go on.

The supervisor of a job that was started without a daemon ends with the job, and so does its cordon: that is said.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from supervisor.cli import output
from supervisor.cli.control import ask_node, node_name
from supervisor.cli.job_owners import who_asks
from supervisor.cli.supervisor_discovery import Supervisors, add_place_arguments


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("node", type=node_name, metavar="NODE", help="name of the node, as holdfast nodes shows it")
    parser.add_argument("--reason", help="why, shown by holdfast nodes (default: who asked)")
    add_place_arguments(parser)


def execute(arguments: Namespace) -> int:
    with Supervisors(arguments, waits=True) as supervisors:
        client = ask_node(supervisors, arguments.node, verb="cordon")
        told = client.cordon(arguments.node, reason=arguments.reason or f"holdfast cordon by {who_asks()}")
    what = "takes no new jobs"
    if told.cordon_ends:
        jobs = " and ".join(told.job_ids) or "its job"
        what = f"takes part in no later cycle of {jobs}; no holdfast daemon keeps later jobs away from it"
    output.say(f"node {arguments.node} {what}; undo this with holdfast uncordon {arguments.node}")
    return 0
