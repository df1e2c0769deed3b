"""`holdfast uncordon [NODE]`: the node takes jobs again."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from supervisor.cli import output
from supervisor.cli.control import ask_node, node_name
from supervisor.cli.supervisor_discovery import Supervisors, add_place_arguments
from supervisor.errors import NoSupervisorError


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("node", type=node_name, metavar="NODE", nargs="?", help="its name (default: this node)")
    add_place_arguments(parser)


def execute(arguments: Namespace) -> int:
    with Supervisors(arguments, waits=True) as supervisors:
        if arguments.node:
            told = [ask_node(supervisors, arguments.node, verb="uncordon").uncordon(arguments.node)]
        else:
            told = [each.client.uncordon("") for each in supervisors.own if not each.is_private]
        if not told:
            supervisors.silence.check("uncordon this node")
            raise NoSupervisorError(
                "cannot uncordon this node: no holdfast daemon runs here, so nothing keeps jobs away; give the name "
                "that the node has in a job of several nodes"
            )
    output.say(f"node {' and '.join(dict.fromkeys(each.name for each in told))} takes jobs again")
    return 0
