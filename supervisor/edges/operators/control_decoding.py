"""What do the messages of the control API say? They may be a stranger's word.

Root's commands ask the supervisors of all users, and a user can put a program of her own in the place of hers. So all
text is cleaned here, all numbers are made finite, and an answer with too many parts is refused.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable

import msgspec
from google.protobuf.message import DecodeError
from holdfast_wire.v1 import control_pb2 as wire
from holdfast_wire.v1 import rpc_status_pb2

from supervisor import errors
from supervisor.config.job_spec import JobSpec
from supervisor.config.job_spec_json import job_spec_from_json
from supervisor.config.submitted_nodes import is_of_this_machine
from supervisor.core import printable
from supervisor.core.facts import Evidence, JobState, StackGroup
from supervisor.core.stragglers.straggler_messages import Straggler
from supervisor.edges.operators.control_encoding import CODES, ERROR_DOMAIN, ERROR_INFO
from supervisor.errors import HoldfastError
from supervisor.ports.job_requests import RendezvousRequest
from supervisor.ports.reports import (
    CheckReport,
    JobNodeReport,
    JobReport,
    NodeReport,
    RankReport,
    RecordedEvent,
    SectionReport,
)

JOB_PARTS_MAX = 2_000_000  # ranks, nodes, sections … of one job: 10,000 nodes of 8 ranks have some 350,000
JOBS_OF_NODE_MAX = 1_000
NAME_CHARACTERS_MAX = 256
SENTENCE_CHARACTERS_MAX = 20_000  # more than a journal keeps of one
UMASK_MAX = 0o777
NUMBER_MIN, NUMBER_MAX = 1e-12, 1e12


def submission_from_wire(request: wire.SubmitJobRequest) -> tuple[JobSpec, dict[str, str]]:
    """Decodes a job and its environment. Raises InvalidRequestError."""
    spec = job_spec_from_json(request.spec_json)
    if request.HasField("umask"):
        if request.umask > UMASK_MAX:
            raise errors.InvalidRequestError(
                f"cannot start job {spec.job_id}: umask {request.umask:#o} is above {UMASK_MAX:#o}; give one below"
            )
        spec = msgspec.structs.replace(spec, umask=request.umask)
    environment = dict(request.environment)
    for variable in request.other_variables:
        name, _, value = os.fsdecode(variable).partition("=")
        environment[name] = value
    return spec, environment


def rendezvous_from_wire(request: wire.LeadRendezvousRequest) -> RendezvousRequest:
    """Decodes the request. Raises InvalidRequestError."""
    paths = (request.token_file, request.tls_cert, request.tls_key, request.tls_ca)
    if any(path and (not path.startswith("/") or "\0" in path) for path in paths):
        raise errors.InvalidRequestError("cannot lead a rendezvous: a file has no absolute path; give one")
    if not 1 <= request.port <= 65535 or not request.host or not request.job_id:
        raise errors.InvalidRequestError("cannot lead a rendezvous: job, host or port is missing; give all three")
    if any(paths[1:]) and not all(paths[1:]):
        raise errors.InvalidRequestError(
            "cannot lead a rendezvous: one of tls_cert, tls_key and tls_ca is missing; give all three"
        )
    if not any(paths) and (request.everywhere or not is_of_this_machine(request.host)):
        raise errors.InvalidRequestError(
            f"cannot lead a rendezvous at {request.host[:80]}: anybody who reaches that address could join the job; "
            "name a token file, or certificates"
        )
    return RendezvousRequest(request.job_id, request.host, request.port, request.everywhere, *paths)


def job_from_wire(job: wire.Job) -> JobReport:
    """Decodes a job. Raises HoldfastError if it has too many parts."""
    _check_size(job)
    try:
        state = JobState[wire.JobState.Name(job.state).removeprefix("JOB_STATE_")]
    except (KeyError, ValueError):  # a later version added this state; its end must not be waited for
        state = JobState.FAILED if job.HasField("ended_at_ns") else JobState.PENDING
    return JobReport(
        job_id=_name(job.job_id),
        state=state,
        submitted_at_ns=max(0, job.submitted_at_ns),
        cycle=job.cycle,
        iteration=job.iteration,
        max_restarts=job.max_restarts,
        restarts_used=job.restarts_used,
        reason=_sentence(job.reason),
        nodes=tuple(_job_node_from_wire(node) for node in job.nodes),
        ranks=tuple(_rank_from_wire(rank) for rank in job.ranks),
        exit_code=job.exit_code if job.HasField("exit_code") else None,
        ended_at_ns=max(0, job.ended_at_ns) if job.HasField("ended_at_ns") else None,
        log_dir=_sentence(job.log_dir),
        command=tuple(printable.lines(word) for word in job.command),
        supervisor_pid=job.supervisor_pid,
        stragglers=tuple(_straggler_from_wire(each) for each in job.stragglers),
        script=_sentence(job.script),
    )


def _check_size(job: wire.Job) -> None:
    """Raises HoldfastError for more parts than a job has: four bytes make one, and each costs memory and time."""
    parts = len(job.nodes) + len(job.ranks) + len(job.stragglers) + len(job.command)
    if parts <= JOB_PARTS_MAX:
        parts += sum(len(node.ranks) + len(node.checks) for node in job.nodes)
        parts += sum(len(rank.sections) for rank in job.ranks) + sum(len(each.ranks) for each in job.stragglers)
    if parts > JOB_PARTS_MAX:
        raise HoldfastError(
            f"cannot read job {_name(job.job_id)}: the supervisor names more than {JOB_PARTS_MAX:,} ranks or parts; "
            "check which program serves the socket"
        )


def _rank_from_wire(rank: wire.Rank) -> RankReport:
    return RankReport(
        rank=rank.rank,
        local_rank=rank.local_rank,
        node=_name(rank.node),
        state=_name(rank.state),
        pid=rank.pid if rank.HasField("pid") else None,
        heartbeat_age_s=_number(rank.heartbeat_age_s) if rank.HasField("heartbeat_age_s") else None,
        heartbeat_limit_s=_number(rank.heartbeat_limit_s) if rank.HasField("heartbeat_limit_s") else None,
        main_thread_age_s=_number(rank.main_thread_age_s) if rank.HasField("main_thread_age_s") else None,
        main_thread_limit_s=_number(rank.main_thread_limit_s) if rank.HasField("main_thread_limit_s") else None,
        sections=tuple(
            SectionReport(
                _name(each.name), _number(each.age_s), _number(each.limit_s) if each.HasField("limit_s") else None
            )
            for each in rank.sections
        ),
        cycle_started_at_ns=max(0, rank.cycle_started_at_ns) if rank.HasField("cycle_started_at_ns") else None,
        exit_code=rank.exit_code if rank.HasField("exit_code") else None,
        exit_signal=rank.exit_signal if rank.HasField("exit_signal") else None,
    )


def _job_node_from_wire(node: wire.JobNode) -> JobNodeReport:
    return JobNodeReport(
        name=_name(node.name),
        state=_name(node.state),
        group_rank=node.group_rank if node.HasField("group_rank") else None,
        reason=_sentence(node.reason),
        heard_at_ns=max(0, node.heard_at_ns) if node.HasField("heard_at_ns") else None,
        lost_at_ns=max(0, node.lost_at_ns) if node.HasField("lost_at_ns") else None,
        ranks=tuple(node.ranks),
        log_dir=_sentence(node.log_dir),
        checks=tuple(_check_from_wire(each) for each in node.checks),
        unreachable_pid=node.unreachable_pid if node.HasField("unreachable_pid") else None,
        unreachable_state=_name(node.unreachable_state),
    )


def _check_from_wire(check: wire.Check) -> CheckReport:
    return CheckReport(
        check=_name(check.check),
        verdict=_name(check.verdict),
        reason=_sentence(check.reason),
        took_s=_number(check.took_s),
        subject=_sentence(check.subject),
        found_at_ns=max(0, check.found_at_ns),
    )


def _straggler_from_wire(told: wire.Straggler) -> Straggler:
    return Straggler(
        section=_name(told.section),
        node=_name(told.node),
        ranks=tuple(told.ranks),
        is_node=told.is_node,
        ratio=_number(told.ratio),
        took_s=_number(told.took_s),
        median_s=_number(told.median_s),
        of_ranks=told.of_ranks,
        reason=_sentence(told.reason),
    )


def event_from_wire(event: wire.Event) -> RecordedEvent:
    return RecordedEvent(
        job_id=_name(event.job_id),
        sequence=event.sequence,
        at_ns=max(0, event.at_ns),
        kind=_name(event.kind),
        reason=_sentence(event.reason),
        cycle=event.cycle,
        iteration=event.iteration,
        node=_name(event.node),
        rank=event.rank if event.HasField("rank") else None,
        details=tuple(sorted((_sentence(key), printable.lines(value)) for key, value in event.details.items())),
    )


def node_from_wire(node: wire.Node) -> NodeReport:
    return NodeReport(
        name=_name(node.name),
        state=_name(node.state),
        reason=_sentence(node.reason),
        job_ids=tuple(_name(each) for each in node.job_ids[:JOBS_OF_NODE_MAX]),
        supervisor_pid=node.supervisor_pid,
        version=_name(node.version),
        started_at_ns=max(0, node.started_at_ns),
        checks=tuple(_check_from_wire(each) for each in node.checks[:JOB_PARTS_MAX]),
        leaves=tuple(_name(each) for each in node.leaves[:JOBS_OF_NODE_MAX]),
        cordon_ends=node.cordon_ends,
    )


def evidence_from_wire(response: wire.GetStacksResponse) -> Evidence:
    return Evidence(
        groups=tuple(StackGroup(tuple(group.ranks), printable.lines(group.stack)) for group in response.groups),
        notes=notes_from_wire(response.notes),
        source=_name(response.source),
    )


def notes_from_wire(notes: Iterable[str]) -> tuple[str, ...]:
    """Decodes notes and sentences about a call, each as one line."""
    return tuple(printable.one_line(_sentence(each)) for each in notes)


def refusal_from_wire(trailer: bytes) -> HoldfastError | None:
    """Returns the error that the other side raised; None if the trailer is not ours."""
    try:
        status = rpc_status_pb2.RpcStatus.FromString(trailer)
        for detail in status.details:
            if detail.type_url != ERROR_INFO:
                continue
            info = rpc_status_pb2.ErrorInfo.FromString(detail.value)
            if info.domain == ERROR_DOMAIN:
                kinds = {kind.reason: kind for kind in CODES}
                return kinds.get(info.reason, HoldfastError)(*notes_from_wire([status.message]))
    except DecodeError:
        return None
    return None


def _name(text: str) -> str:
    return printable.one_line(text[:NAME_CHARACTERS_MAX])


def _sentence(text: str) -> str:
    return printable.lines(text[:SENTENCE_CHARACTERS_MAX])


def _number(value: float) -> float:
    """Returns a number that can be shown, and divided by if it is not 0. Ages, limits and ratios are not negative."""
    return 0.0 if math.isnan(value) or value < NUMBER_MIN else min(value, NUMBER_MAX)
