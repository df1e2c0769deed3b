"""`holdfast uncordon NODE`: the node takes jobs again."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from supervisor.cli import output
from supervisor.cli.control import ask_node
from supervisor.cli.supervisors import Supervisors, add_place_arguments


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("node", metavar="NODE")
    add_place_arguments(parser)


def execute(arguments: Namespace) -> int:
    with Supervisors(arguments, waits=True) as supervisors:
        ask_node(supervisors, arguments.node, verb="uncordon").uncordon(arguments.node)
    output.say(f"node {arguments.node} takes jobs again")
    return 0
