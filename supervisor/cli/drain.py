"""`holdfast drain`: this node takes no new jobs; returns once it has none, so that its service may stop for good."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from supervisor.cli import output
from supervisor.cli.owners import name_of, who_asks
from supervisor.cli.steady_client import SteadyClient
from supervisor.cli.supervisors import Answering, Supervisors, add_place_arguments
from supervisor.errors import HoldfastError, NoSupervisorError, NotPermittedError


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--reason", help="why, shown by holdfast nodes (default: who asked)")
    parser.add_argument("--stop-jobs", action="store_true", help="end the jobs; otherwise they run to their end")
    add_place_arguments(parser)


def execute(arguments: Namespace) -> int:
    reason = arguments.reason or f"holdfast drain by {who_asks()}"
    with Supervisors(arguments, waits=True) as supervisors:
        asked = [each for each in supervisors.answering if not each.is_private]
        if not asked:
            supervisors.silence.check("drain this node")
            others = "; ".join(_jobs_of_their_own(supervisors)) or "there is nothing to do"
            raise NoSupervisorError(f"cannot drain this node: no holdfast daemon runs here; {others}")
        _cordon([each for each in supervisors.own if not each.is_private] or asked, reason)
        refused: list[HoldfastError] = []
        for each in asked:
            try:
                _await_end(each, reason, stops=arguments.stop_jobs)
            except HoldfastError as error:
                refused.append(error)  # The jobs of the others are waited for all the same.
        if refused:
            raise refused[0]
        others = _jobs_of_their_own(supervisors)
    for each in others:
        output.say(each)
    none = "the service of this node has no jobs" if others else "this node has no jobs"
    output.say(f"{none} and takes none: its service may stop; holdfast uncordon undoes this")
    return 0


def _jobs_of_their_own(supervisors: Supervisors) -> list[str]:
    """Returns sentences about jobs that belong to no service: nothing keeps a user from starting them."""
    return [
        f"job {job.report.job_id} runs under a supervisor of its own (pid {job.report.supervisor_pid}), which no drain "
        f"waits for: holdfast stop {job.report.job_id} ends it"
        for job in supervisors.jobs(include_ended=False)
        if job.supervisor is not None and job.supervisor.is_private
    ]


def _cordon(asked: Sequence[Answering], reason: str) -> None:
    """Cordons the node. If several users share it, only root's own supervisor does so; those of a user refuse."""
    refused: list[NotPermittedError] = []
    for each in asked:
        try:
            own = each.client.cordon("", reason=reason)  # its own node, whatever that is called in its jobs
            output.say(f"node {own.name} (supervisor {own.supervisor_pid}) takes no new jobs: {own.reason}")
        except NotPermittedError as error:
            refused.append(error)
    if len(refused) == len(asked):
        raise refused[0]


def _await_end(supervisor: Answering, reason: str, *, stops: bool) -> None:
    for job in supervisor.client.jobs():
        if stops:
            supervisor.client.stop(job.job_id, reason=reason, of_node=True)
        why = f": {job.reason}" if any(node.unreachable_pid is not None for node in job.nodes) else ""
        output.say(f"waiting for job {name_of(job.job_id, supervisor.uid)} ({job.state}){why}")
        for _ in SteadyClient(supervisor.client, job.job_id, say=output.say).watch(on_note=output.say, this_node=True):
            pass  # Only its end counts.
