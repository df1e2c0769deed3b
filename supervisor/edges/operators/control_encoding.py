"""How are reports, events and refusals encoded for the control API? control_decoding.py decodes them."""

from __future__ import annotations

import os
from collections.abc import Mapping

from google.protobuf import any_pb2
from holdfast_wire.v1 import control_pb2 as wire
from holdfast_wire.v1 import rpc_status_pb2

from supervisor import errors
from supervisor.config.job_spec import JobSpec
from supervisor.config.job_spec_json import job_spec_to_json
from supervisor.config.redaction import redacted_text
from supervisor.config.truncation import shown_command, shown_text
from supervisor.core.facts import Evidence
from supervisor.core.stragglers.straggler_messages import Straggler
from supervisor.errors import HoldfastError
from supervisor.ports.reports import CheckReport, JobNodeReport, JobReport, NodeReport, RankReport, RecordedEvent

SERVICE = "holdfast.v1.Supervisor"
ERROR_DOMAIN = "holdfast"
ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"
REQUEST_BYTES_MAX = 4 << 20
ANSWER_BYTES_MAX = 64 << 20  # a job with 100,000 ranks on 10,000 nodes has about 15

# gRPC's canonical numbers (google.rpc.Code), so this module does not need grpc.
CODES: dict[type[HoldfastError], int] = {
    errors.NotFoundError: 5,
    errors.AlreadyExistsError: 6,
    errors.InvalidRequestError: 3,
    errors.NotNowError: 9,
    errors.CordonedError: 9,
    errors.NotPermittedError: 7,
    errors.InUseError: 9,
    errors.ExhaustedError: 8,
    errors.NoSupervisorError: 14,
    errors.NoAnswerError: 14,
    errors.ConfigurationError: 3,
}
UNKNOWN_CODE = 2


def submission_to_wire(spec: JobSpec, environment: Mapping[str, str], umask: int | None) -> wire.SubmitJobRequest:
    """Encodes a submission; a variable with other bytes than UTF-8's, as os.environ has it, travels in a list."""
    texts = {name: value for name, value in environment.items() if _is_utf8(name) and _is_utf8(value)}
    return wire.SubmitJobRequest(
        spec_json=job_spec_to_json(spec),
        environment=texts,
        other_variables=[os.fsencode(f"{name}={environment[name]}") for name in environment.keys() - texts.keys()],
        umask=umask,
    )


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def job_to_wire(report: JobReport) -> wire.Job:
    return wire.Job(
        job_id=report.job_id,
        state=f"JOB_STATE_{report.state.name}",
        cycle=report.cycle,
        iteration=report.iteration,
        max_restarts=report.max_restarts,
        restarts_used=report.restarts_used,
        reason=_told(report.reason),
        nodes=[_job_node_to_wire(node) for node in report.nodes],
        ranks=[_rank_to_wire(rank) for rank in report.ranks],
        exit_code=report.exit_code,
        submitted_at_ns=report.submitted_at_ns,
        ended_at_ns=report.ended_at_ns,
        log_dir=wire_text(report.log_dir),
        command=[wire_text(word) for word in shown_command(report.command)],
        supervisor_pid=report.supervisor_pid,
        stragglers=[_straggler_to_wire(each) for each in report.stragglers],
        script=_told(report.script),
    )


def _straggler_to_wire(each: Straggler) -> wire.Straggler:
    return wire.Straggler(
        section=wire_text(each.section),
        node=each.node,
        ranks=each.ranks,
        is_node=each.is_node,
        ratio=each.ratio,
        took_s=each.took_s,
        median_s=each.median_s,
        of_ranks=each.of_ranks,
        reason=_told(each.reason),
    )


def _job_node_to_wire(node: JobNodeReport) -> wire.JobNode:
    return wire.JobNode(
        name=node.name,
        state=node.state,
        group_rank=node.group_rank,
        reason=_told(node.reason),
        heard_at_ns=node.heard_at_ns,
        lost_at_ns=node.lost_at_ns,
        ranks=node.ranks,
        log_dir=wire_text(node.log_dir),
        checks=[_check_to_wire(each) for each in node.checks],
        unreachable_pid=node.unreachable_pid,
        unreachable_state=node.unreachable_state,
    )


def _check_to_wire(check: CheckReport) -> wire.Check:
    return wire.Check(
        check=check.check,
        subject=wire_text(check.subject),
        verdict=check.verdict,
        reason=_told(check.reason),
        took_s=check.took_s,
        found_at_ns=check.found_at_ns,
    )


def _rank_to_wire(rank: RankReport) -> wire.Rank:
    return wire.Rank(
        rank=rank.rank,
        local_rank=rank.local_rank,
        node=rank.node,
        pid=rank.pid,
        state=rank.state,
        heartbeat_age_s=rank.heartbeat_age_s,
        heartbeat_limit_s=rank.heartbeat_limit_s,
        main_thread_age_s=rank.main_thread_age_s,
        main_thread_limit_s=rank.main_thread_limit_s,
        sections=[
            wire.Section(name=wire_text(each.name), age_s=each.age_s, limit_s=each.limit_s) for each in rank.sections
        ],
        cycle_started_at_ns=rank.cycle_started_at_ns,
        exit_code=rank.exit_code,
        exit_signal=rank.exit_signal,
    )


def event_to_wire(event: RecordedEvent) -> wire.Event:
    return wire.Event(
        at_ns=event.at_ns,
        job_id=event.job_id,
        cycle=event.cycle,
        iteration=event.iteration,
        node=event.node,
        rank=event.rank,
        kind=event.kind,
        reason=_told(event.reason),
        details={wire_text(key): _told(value) for key, value in event.details},
        sequence=event.sequence,
    )


def node_to_wire(report: NodeReport) -> wire.Node:
    return wire.Node(
        name=report.name,
        state=report.state,
        reason=_told(report.reason),
        job_ids=report.job_ids,
        supervisor_pid=report.supervisor_pid,
        version=report.version,
        started_at_ns=report.started_at_ns,
        checks=[_check_to_wire(each) for each in report.checks],
        leaves=report.leaves,
        cordon_ends=report.cordon_ends,
    )


def evidence_to_wire(evidence: Evidence) -> wire.GetStacksResponse:
    return wire.GetStacksResponse(
        groups=[
            wire.StackGroup(ranks=group.ranks, stack=wire_text(redacted_text(group.stack))) for group in evidence.groups
        ],
        notes=[_told(note) for note in evidence.notes],
        source=evidence.source,
    )


def code_of(error: HoldfastError) -> int:
    return next((CODES[kind] for kind in type(error).__mro__ if kind in CODES), UNKNOWN_CODE)


def refusal_to_wire(error: HoldfastError) -> bytes:
    """Encodes an error as google.rpc.Status with ErrorInfo, for the trailer grpc-status-details-bin."""
    info = rpc_status_pb2.ErrorInfo(reason=error.reason, domain=ERROR_DOMAIN)
    detail = any_pb2.Any(type_url=ERROR_INFO, value=info.SerializeToString())
    return rpc_status_pb2.RpcStatus(
        code=code_of(error), message=_told(str(error)), details=[detail]
    ).SerializeToString()


def _told(text: str) -> str:
    """Returns a sentence without secrets, not too long; journals of older versions and other nodes may have others."""
    return wire_text(shown_text(text))


def wire_text(text: str) -> str:
    """Replaces lone surrogates, which protobuf refuses and file names and broken output may contain."""
    return text.encode("utf-8", "backslashreplace").decode()
