"""`holdfast drain`: a node takes no new jobs, and leaves those that go on without it; returns once it has none."""

from __future__ import annotations

import platform
import threading
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import TypeVar

import msgspec

from supervisor.cli import INTERRUPTED, output
from supervisor.cli.concurrent_queries import ask_all
from supervisor.cli.control import ask_node, node_name
from supervisor.cli.interrupt import ends_at_once
from supervisor.cli.job_owners import name_of, user_name, who_asks
from supervisor.cli.reconnecting_client import SteadyClient
from supervisor.cli.supervisor_discovery import Answering, Supervisors, add_place_arguments
from supervisor.core.event_weights import Weight, weight
from supervisor.edges.machine.clock import Clock
from supervisor.edges.operators.control_client import ControlClient
from supervisor.errors import (
    HoldfastError,
    NoAnswerError,
    NoSupervisorError,
    NotFoundError,
    NotNowError,
    NotPermittedError,
)
from supervisor.ports.reports import JobReport, NodeReport, RecordedEvent

Answer = TypeVar("Answer")

AFTER_ALL = 1 << 62  # no job has so many events


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--reason", help="why, shown by holdfast nodes beside who asked")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--node", type=node_name, metavar="NODE", help="another node of a job that runs here (default: this node)"
    )
    which.add_argument(
        "--stop-jobs", action="store_true", help="end the jobs; otherwise those that must run to their end"
    )
    add_place_arguments(parser)


def execute(arguments: Namespace) -> int:
    reason = f"holdfast drain by {who_asks()} on {platform.node()}"
    if arguments.reason:
        reason = f"{reason}: {arguments.reason}"
    with Supervisors(arguments, waits=True) as supervisors:
        if not arguments.node:
            asked = [each for each in supervisors.answering if not each.is_private]
            return _drain_own(supervisors, asked, reason, stops=arguments.stop_jobs)
        if asked := [each for each in supervisors.own if _is_named(each, arguments.node)]:
            return _drain_own(supervisors, asked, reason, stops=False)
        _drain_other(supervisors, arguments.node, reason)
    return 0


# --- this node ------------------------------------------------------------------------------------------------------


def _drain_own(supervisors: Supervisors, asked: Sequence[Answering], reason: str, *, stops: bool) -> int:
    """Returns the exit code: that of the first refusal of another user's supervisor, if any."""
    if not asked:
        supervisors.silence.check("drain this node")
        others = "; ".join(_jobs_of_their_own(supervisors)) or "there is nothing to do"
        raise NoSupervisorError(f"cannot drain this node: no holdfast daemon runs here; {others}")
    asked_at_ns = Clock().unix_ns()
    own = [each for each in asked if each in supervisors.own]
    told = _cordon_own(own, reason, leaves=not stops, are_all=len(own) == len(asked))
    nodes = [each.node for each in told]
    stays: set[str] = set()

    def drain(each: Answering) -> NodeReport:
        if each in own:
            cordoned = told[own.index(each)]
        else:
            cordoned = _cordon(each, reason, leaves=not stops)
            nodes.append(cordoned.node)
        _await_ends(each, cordoned, asked_at_ns, stays, stops=stops)
        return cordoned.node

    calls = _Calls(supervisors)
    with ends_at_once(INTERRUPTED, last_words=lambda: _last_words(nodes, stays)):
        drained = calls.ask(asked, drain)
    if all(each.is_private for each in asked):  # They had a name in their jobs, and have ended.
        jobs = ", ".join(dict.fromkeys(job_id for node in nodes for job_id in node.leaves)) or "its jobs"
        names = " and ".join(dict.fromkeys(node.name for node in nodes))
        output.say(f"node {names} has left {jobs}; no holdfast daemon runs here, so nothing keeps new jobs away")
        return 0
    node_of = {each.client.socket_path: node for each, node in drained}
    calls.ask([each for each, _ in drained], lambda each: _check_cordon(each, node_of[each.client.socket_path]))
    others = _jobs_of_their_own(supervisors)
    for each in others:
        output.say(each)
    if calls.refused:
        output.say("not every supervisor of this node is drained: see above; type holdfast drain again")
        return calls.refused[0].exit_code
    none = "the service of this node has no jobs" if others else "this node has no jobs"
    output.say(f"{none} and takes none: its service may stop; holdfast uncordon undoes this")
    return 0


class _Calls:
    """Calls supervisors at the same time. One of another user that refuses is named and holds up none of the others."""

    def __init__(self, supervisors: Supervisors) -> None:
        self._own = supervisors.own
        self.refused: list[HoldfastError] = []

    def ask(
        self, supervisors: Sequence[Answering], ask: Callable[[Answering], Answer]
    ) -> list[tuple[Answering, Answer]]:
        """Returns the answers of those that do not refuse. Raises the refusal of this user's own."""
        answers = ask_all([partial(self._ask, each, ask) for each in supervisors], within_s=None)
        found: list[tuple[Answering, Answer]] = []
        for each, answer in zip(supervisors, answers, strict=True):
            if not isinstance(answer, HoldfastError):
                found.append((each, answer))
            elif each in self._own:
                raise answer
            else:
                self.refused.append(answer)
        return found

    def _ask(self, supervisor: Answering, ask: Callable[[Answering], Answer]) -> Answer:
        try:
            return ask(supervisor)
        except HoldfastError as error:
            if supervisor not in self._own:
                output.say(f"what user {user_name(supervisor.uid)} has here is not drained: {error}")
            raise


def _check_cordon(supervisor: Answering, node: NodeReport) -> None:
    """Raises NotNowError if somebody has uncordoned the node while its jobs were waited for."""
    with suppress(NoSupervisorError):  # Its service has ended.
        now = next((each for each in supervisor.client.nodes() if each.name == node.name), None)
        if now is not None and now.state != "cordoned":
            has = f", and has job {', '.join(now.job_ids)}" if now.job_ids else ""
            raise NotNowError(
                f"cannot drain node {node.name}: somebody has uncordoned it meanwhile; it takes jobs{has}; "
                "type holdfast drain again"
            )


def _jobs_of_their_own(supervisors: Supervisors) -> list[str]:
    """Returns sentences about jobs that belong to no service: nothing keeps a user from starting them."""
    return [
        f"job {job.report.job_id} runs under a supervisor of its own (pid {job.report.supervisor_pid}), which no drain "
        f"of this node asks: {_remedy(job.supervisor, job.report.job_id)}"
        for job in supervisors.jobs(include_ended=False)
        if job.supervisor is not None and job.supervisor.is_private
    ]


def _remedy(supervisor: Answering, job_id: str) -> str:
    """Returns what a person can type instead."""
    try:
        nodes = supervisor.client.nodes()
        name = _name_in(supervisor, job_id) if len(nodes) > 1 else ""
    except NoSupervisorError:
        return "it has just ended"
    if name:
        return f"holdfast drain --node {name} takes this node out of it, holdfast stop {job_id} ends it on all nodes"
    return f"holdfast stop {job_id} ends it"


class _Cordoned(msgspec.Struct, frozen=True):
    """What a supervisor has answered. `before`: the jobs that it had, as one may be left before anybody asks for it."""

    node: NodeReport
    before: list[JobReport]


def _cordon(supervisor: Answering, reason: str, *, leaves: bool) -> _Cordoned:
    """Cordons the node, and asks its jobs to go on without it."""
    before = _jobs_of(supervisor)
    return _Cordoned(supervisor.client.cordon("", reason=reason, leaves=leaves), before)  # whatever its name is in them


def _cordon_own(own: Sequence[Answering], reason: str, *, leaves: bool, are_all: bool) -> list[_Cordoned]:
    """Cordons by this user's own supervisors. If several users share the node, only root may do so."""
    told: list[_Cordoned] = []
    refused: list[NotPermittedError] = []
    for each in own:
        try:
            told.append(_cordon(each, reason, leaves=leaves))
        except NotPermittedError as error:
            refused.append(error)
            told.append(_Cordoned(NodeReport("", "cordoned", reason), []))
            continue
        if not each.is_private:
            node = told[-1].node
            output.say(f"node {node.name} (supervisor {node.supervisor_pid}) takes no new jobs: {node.reason}")
    if are_all and refused and len(refused) == len(own):
        raise refused[0]
    return told


def _jobs_of(supervisor: Answering) -> list[JobReport]:
    with suppress(HoldfastError):  # It has ended, or says why when it is asked for more.
        return supervisor.client.jobs()
    return []


def _await_ends(supervisor: Answering, cordoned: _Cordoned, asked_at_ns: int, stays: set[str], *, stops: bool) -> None:
    node = cordoned.node
    with suppress(NoSupervisorError) if supervisor.is_private else nullcontext():  # It ends with its job.
        now = supervisor.client.jobs()
        left = [job for job in cordoned.before if job.job_id in set(node.leaves) - {each.job_id for each in now}]
        for job in now if stops else ():
            _stop(supervisor.client, job.job_id, node.reason)
        for job in (*left, *now):
            _await_end(supervisor, job, node, asked_at_ns, stays)


def _stop(client: ControlClient, job_id: str, reason: str) -> None:
    """Stops the job, unless it has ended meanwhile."""
    try:
        client.stop(job_id, reason=reason, of_node=True)
    except (NotFoundError, NotNowError):
        if any(each.job_id == job_id for each in client.jobs()):
            raise


def _await_end(supervisor: Answering, job: JobReport, node: NodeReport, asked_at_ns: int, stays: set[str]) -> None:
    name, leaves = name_of(job.job_id, supervisor.uid), job.job_id in node.leaves
    if not leaves:
        why = f": {job.reason}" if any(each.unreachable_pid is not None for each in job.nodes) else ""
        output.say(f"waiting for job {name} ({job.state}){why}")
    if supervisor.is_private:
        stream = supervisor.client.watch(job.job_id, follow=True, this_node=True, on_note=output.say)
    else:
        steady = SteadyClient(supervisor.client, job.job_id, say=output.say, is_own=supervisor.is_own)
        stream = steady.watch(on_note=output.say, this_node=True)
    is_said = False
    for told in stream:
        if isinstance(told, RecordedEvent):
            if leaves and told.at_ns >= asked_at_ns:
                _tell(job.job_id, name, told, stays)
        elif leaves and not is_said and told.nodes:
            output.say(f"node {told.nodes[0].name} is to leave job {name}: {node.reason}")
            is_said = True


def _tell(job_id: str, name: str, event: RecordedEvent, stays: set[str]) -> None:
    """Says what happens to a job that the node is to leave. `stays` gets the id of one that it can't leave."""
    if event.kind == "leave_refused":
        stays.add(job_id)
        output.say(f"{event.reason}; waiting for the end of job {name}, unless holdfast drain is typed again")
    elif event.kind != "leave_requested" and weight(event.kind) > Weight.ROUTINE:
        output.say(f"job {name}: {event.reason}")


def _last_words(nodes: Sequence[NodeReport], stays: Collection[str]) -> str:
    names = " and ".join(dict.fromkeys(each.name for each in nodes if each.name))
    left = ", ".join(dict.fromkeys(job_id for each in nodes for job_id in each.leaves if job_id not in stays))
    leaves = f", and leaves job {left} all the same" if left else ""
    return f"node {names} stays cordoned{leaves}; holdfast uncordon {names} lets it take jobs again"


# --- another node ---------------------------------------------------------------------------------------------------


def _is_named(supervisor: Answering, name: str) -> bool:
    """Returns whether this node has that name, by itself or in one of its jobs."""
    with suppress(NoSupervisorError):  # It has just ended.
        jobs = [job.job_id for job in supervisor.client.jobs()]
        if not jobs:
            return name in {each.name for each in supervisor.client.nodes()}
        return name in {_name_in(supervisor, job_id) for job_id in jobs}
    return False


def _name_in(supervisor: Answering, job_id: str) -> str:
    """Returns what this node is called in that job, "" if the job is gone. Raises NoSupervisorError."""
    for told in supervisor.client.watch(job_id, this_node=True, after_sequence=AFTER_ALL):
        if isinstance(told, JobReport):
            return told.nodes[0].name
    return ""


def _drain_other(supervisors: Supervisors, name: str, reason: str) -> None:
    each, node, known = _ask_other(supervisors, name, reason)
    if not node.cordon_ends:
        output.say(f"node {name} takes no new jobs: {node.reason}")
    stays: set[str] = set()
    with ends_at_once(INTERRUPTED, last_words=lambda: _last_words([node], stays)):
        for job_id in node.job_ids:
            if job_id in known:
                _await_left(each.client, job_id, node, known[job_id], stays)
    others = [job_id for job_id in node.job_ids if job_id not in known]
    if others:
        raise NoAnswerError(
            f"cannot wait for job {', '.join(others)} of node {name}, in which this node has no part; type holdfast "
            f"drain on node {name}"
        )
    if node.cordon_ends:
        output.say(f"node {name} has left its job; no holdfast daemon keeps new ones away from it")
        return
    output.say(f"node {name} has no jobs and takes none; holdfast uncordon, typed there, undoes this")


def _ask_other(supervisors: Supervisors, name: str, reason: str) -> tuple[Answering, NodeReport, dict[str, int]]:
    """Returns who has asked the node, what it answered, and the last event so far of each job here."""
    refused: list[NotFoundError] = []
    for each in sorted(supervisors.own, key=lambda each: each.is_private):
        known = {job.job_id: _last_event(each.client, job.job_id) for job in each.client.jobs()}
        try:
            return each, each.client.cordon(name, reason=reason, leaves=True), known
        except NotFoundError as error:
            refused.append(error)
    ask_node(supervisors, name, verb="drain")  # Its refusal names the nodes that all supervisors know.
    raise refused[0]


def _last_event(client: ControlClient, job_id: str) -> int:
    return max((told.sequence for told in client.watch(job_id) if isinstance(told, RecordedEvent)), default=0)


def _await_left(client: ControlClient, job_id: str, node: NodeReport, last_event: int, stays: set[str]) -> None:
    if job_id in node.leaves:
        output.say(f"node {node.name} is to leave job {job_id}: {node.reason}")
    else:
        output.say(f"waiting for job {job_id}, which node {node.name} was not asked to leave")
    threading.Thread(target=_tell_events, args=(client, job_id, last_event, stays), daemon=True).start()
    job = client.until_left(job_id, node.name)
    part = next((each for each in job.nodes if each.name == node.name), None)
    if job.state.has_ended:
        output.say(f"job {job_id} has ended: {job.reason}")
    elif part is not None and part.lost_at_ns is not None:
        output.say(f"node {node.name} is lost: {part.reason}")
    else:
        output.say(f"node {node.name} has left job {job_id}, which goes on without it")


def _tell_events(client: ControlClient, job_id: str, last_event: int, stays: set[str]) -> None:
    with suppress(HoldfastError):
        for told in client.watch(job_id, after_sequence=last_event, follow=True):
            if isinstance(told, RecordedEvent) and told.kind != "node_left":
                _tell(job_id, job_id, told, stays)
