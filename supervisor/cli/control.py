"""How does a command reach the supervisor of a live job, or of a node, to change something?"""

from __future__ import annotations

from argparse import ArgumentTypeError
from typing import TYPE_CHECKING

from supervisor.cli.supervisor_discovery import FoundJob, Supervisors
from supervisor.errors import NoSupervisorError, NotFoundError, NotNowError

if TYPE_CHECKING:
    from supervisor.edges.operators.control_client import ControlClient


def ask_live(supervisors: Supervisors, name: str, *, verb: str) -> tuple[FoundJob, ControlClient]:
    """Returns the job and its supervisor. Raises NotNowError for a job that has ended, NotFoundError, …"""
    found = supervisors.find(name, verb=verb, live_only=True)
    report = found.report
    if report.state.has_ended:
        raise NotNowError(
            f"cannot {verb} job {found.name}: it has ended ({report.state}); holdfast jobs shows what runs"
        )
    if found.is_lost:
        raise NoSupervisorError(f"cannot {verb} job {found.name}: {report.reason}")
    if found.supervisor is None:
        raise NoSupervisorError(
            f"cannot {verb} job {found.name}: its supervisor (pid {report.supervisor_pid}) does not answer; try again"
        )
    return found, found.supervisor.client


def node_name(text: str) -> str:
    """Reads a node's name as typed. An unset variable of a shell must not mean this node."""
    if not text:
        raise ArgumentTypeError("an empty text names no node; give a name that holdfast nodes shows")
    return text


def ask_node(supervisors: Supervisors, name: str, *, verb: str) -> ControlClient:
    """Returns a supervisor that can reach the node: its own daemon, or one that shares a job with it.

    A private supervisor alone on its node takes no other jobs anyway. Those of other users are not asked: they can't
    keep jobs away from a node.
    """
    known: list[str] = []
    for each in sorted(supervisors.own, key=lambda each: each.is_private):
        nodes = each.client.nodes()
        for report in nodes if not each.is_private or len(nodes) > 1 else []:
            if report.name == name:
                return each.client
            known.append(report.name)
    if not known:
        raise NoSupervisorError(
            f"cannot {verb} node {name}: no holdfast daemon and no job of several nodes runs here; "
            "start one with holdfast daemon"
        )
    names = ", ".join(dict.fromkeys(known))
    raise NotFoundError(f"cannot {verb} node {name}: it is not among the nodes known here; choose one of {names}")
