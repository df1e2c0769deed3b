"""What does each call of holdfast.v1.Supervisor answer?"""

from __future__ import annotations

import contextlib
import logging
import math
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, cast

import anyio
import msgspec
from google.protobuf.message import DecodeError, Message
from holdfast_wire.v1 import control_pb2 as wire

from supervisor.config.redaction import redacted_text
from supervisor.edges.machine.own_process.own_descriptors import OwnThread
from supervisor.edges.machine.own_process.threads import in_thread
from supervisor.edges.operators import event_streams, log_follower, log_merge, node_pages
from supervisor.edges.operators.control_callers import CLIENT, is_root, limits_of_caller
from supervisor.edges.operators.control_decoding import rendezvous_from_wire, submission_from_wire
from supervisor.edges.operators.control_encoding import (
    SERVICE,
    code_of,
    event_to_wire,
    evidence_to_wire,
    job_to_wire,
    node_to_wire,
    refusal_to_wire,
)
from supervisor.edges.operators.job_pages import key_of, merge, page_of
from supervisor.edges.operators.log_follower import LogPiece
from supervisor.edges.operators.log_stream_server import set_at_end
from supervisor.edges.rpc.grpc_connection import Call, Handler, unless_cancelled
from supervisor.edges.rpc.statuses import CallError, Status
from supervisor.errors import (
    ExhaustedError,
    HoldfastError,
    InvalidRequestError,
    NotFoundError,
    NotNowError,
    NotPermittedError,
)
from supervisor.ports.job_requests import JobHistory, JobRequests
from supervisor.ports.reports import JobReport, RecordedEvent

MESSAGE_CHARACTERS_MAX = 1_500  # for a refusal: a client takes 8 KiB of trailers
REASON_CHARACTERS_MAX = 1_000
HISTORY_THREADS_MAX = 2
FOLLOWERS_MAX = 40  # of logs: each needs one inotify instance of the user's 128
FOLLOWERS_OF_RUNS_MAX = 32  # a `holdfast run` has no place beyond it: the others are for `holdfast logs`

Answer: TypeAlias = Callable[[Any], Awaitable[Message]]
Stream: TypeAlias = Callable[[Any, Callable[[Message], Awaitable[None]]], Awaitable[None]]

_log = logging.getLogger("holdfast.control")


class ControlService:
    """Answers calls from the job service, which is on this event loop, and from the history, which threads read."""

    def __init__(self, job_service: JobRequests, history: JobHistory, *, for_users: bool = False) -> None:
        """`for_users`: see ControlApi."""
        self._job_service = job_service
        self._for_users = for_users
        self._history = history
        self._limiter = anyio.CapacityLimiter(HISTORY_THREADS_MAX)
        self._followers = 0

    def handlers(self) -> Mapping[bytes, Handler]:
        """Returns the handler of each method, by its path."""
        unary: list[tuple[str, type[Message], Answer]] = [
            ("SubmitJob", wire.SubmitJobRequest, self._submit_job),
            ("GetJob", wire.GetJobRequest, self._get_job),
            ("ListJobs", wire.ListJobsRequest, self._list_jobs),
            ("StopJob", wire.StopJobRequest, self._stop_job),
            ("RestartJob", wire.RestartJobRequest, self._restart_job),
            ("GetStacks", wire.GetStacksRequest, self._get_stacks),
            ("GetNode", wire.GetNodeRequest, self._get_node),
            ("ListNodes", wire.ListNodesRequest, self._list_nodes),
            ("CordonNode", wire.CordonNodeRequest, self._cordon_node),
            ("UncordonNode", wire.UncordonNodeRequest, self._uncordon_node),
            ("LeadRendezvous", wire.LeadRendezvousRequest, self._lead_rendezvous),
        ]
        streams: list[tuple[str, type[Message], Stream]] = [
            ("WatchJob", wire.WatchJobRequest, self._watch_job),
            ("StreamLogs", wire.StreamLogsRequest, self._stream_logs),
        ]
        found = {name: _answering(name, request, answer) for name, request, answer in unary}
        found |= {name: _streaming(name, request, stream) for name, request, stream in streams}
        # Its client tells a scheduler to start the job elsewhere. A stop is obeyed: its client sends it only once.
        found["SubmitJob"] = unless_cancelled(found["SubmitJob"])
        return {f"/{SERVICE}/{name}".encode(): handler for name, handler in found.items()}

    async def _submit_job(self, request: wire.SubmitJobRequest) -> Message:
        spec, environment = submission_from_wire(request)
        if self._for_users:
            try:
                spec = msgspec.structs.replace(spec, resource_limits=limits_of_caller())
            except OSError as error:
                raise NotPermittedError(
                    f"cannot start job {spec.job_id}: the limits of the process that submits it are not known: "
                    f"{error}; submit it from this node itself"
                ) from error
        job_id = await self._job_service.submit(spec, environment)
        return wire.SubmitJobResponse(job_id=job_id)

    async def _get_job(self, request: wire.GetJobRequest) -> Message:
        if request.until_left:
            await self._job_service.until_left(request.job_id, request.until_left)
        job = job_to_wire(await self._find(request.job_id, "show"))
        job.waited_for = request.until_left
        return job

    async def _list_jobs(self, request: wire.ListJobsRequest) -> Message:
        live = await self._job_service.look_at_all()

        def page_from(reports: Iterator[JobReport]) -> wire.ListJobsResponse:
            page, next_token = page_of(reports, job_to_wire, size=request.page_size, token=request.page_token)
            return wire.ListJobsResponse(jobs=page, next_page_token=next_token)

        if not request.include_ended:
            return page_from(merge([report for report in live if not report.state.has_ended], ()))
        recorded = self._history.jobs(below=key_of(request.page_token))
        return await in_thread(lambda: page_from(merge(live, recorded)), limiter=self._limiter)

    async def _stop_job(self, request: wire.StopJobRequest) -> Message:
        if not 0 <= request.signal <= 64:
            raise InvalidRequestError(
                f"cannot stop job {request.job_id}: there is no signal {request.signal}; give one from 1 to 64, or 0"
            )
        await self._live(request.job_id, "stop")
        grace_s = request.grace_s if request.HasField("grace_s") else None
        if grace_s is not None and not 0 <= grace_s < math.inf:
            raise InvalidRequestError(
                f"cannot stop job {request.job_id}: its ranks cannot have {grace_s} s to end; give 0 or more"
            )
        reason = _reason(request.reason)
        self._job_service.stop(
            request.job_id, reason=reason, signal=request.signal, grace_s=grace_s, of_node=request.of_node
        )
        return wire.StopJobResponse()

    async def _restart_job(self, request: wire.RestartJobRequest) -> Message:
        await self._live(request.job_id, "restart")
        report = await self._find(request.job_id, "restart")
        self._job_service.restart(request.job_id, reason=_reason(request.reason))
        return wire.RestartJobResponse(next_cycle=report.cycle + 1)

    async def _get_stacks(self, request: wire.GetStacksRequest) -> Message:
        await self._live(request.job_id, "take stacks of")
        rank = request.rank if request.HasField("rank") else None
        return evidence_to_wire(await self._job_service.stacks(request.job_id, rank))

    async def _get_node(self, request: wire.GetNodeRequest) -> Message:
        nodes = {node.name: node for node in await self._job_service.nodes()}
        name = request.name or self._job_service.node().name
        if name not in nodes:
            names = ", ".join(nodes)
            raise NotFoundError(f"cannot show node {name[:80]}: it is not known here; choose one of {names}")
        return node_to_wire(nodes[name])

    async def _list_nodes(self, request: wire.ListNodesRequest) -> Message:
        page, next_token = node_pages.page_of(
            await self._job_service.nodes(), node_to_wire, size=request.page_size, token=request.page_token
        )
        return wire.ListNodesResponse(nodes=page, next_page_token=next_token)

    def _check_node_is_theirs(self) -> None:
        """Raises if the caller may not change the node: a node that several users share belongs to root."""
        if self._for_users and os.geteuid() and not is_root():
            raise NotPermittedError("cannot change the node: several users share it; ask root to do it")

    async def _cordon_node(self, request: wire.CordonNodeRequest) -> Message:
        self._check_node_is_theirs()
        reason = _reason(request.reason)
        return node_to_wire(
            await self._job_service.set_cordon(request.name, cordoned=True, reason=reason, leaves=request.leaves)
        )

    async def _uncordon_node(self, request: wire.UncordonNodeRequest) -> Message:
        self._check_node_is_theirs()
        return node_to_wire(await self._job_service.set_cordon(request.name, cordoned=False))

    async def _lead_rendezvous(self, request: wire.LeadRendezvousRequest) -> Message:
        return wire.LeadRendezvousResponse(leads=await self._job_service.lead_rendezvous(rendezvous_from_wire(request)))

    async def _watch_job(self, request: wire.WatchJobRequest, send: Callable[[Message], Awaitable[None]]) -> None:
        report = await self._find(request.job_id, "watch", this_node=request.this_node)
        await send(wire.WatchJobResponse(snapshot=job_to_wire(report)))

        async def note(text: str) -> None:
            await send(wire.WatchJobResponse(note=text))

        async with contextlib.aclosing(self._events(request, note)) as events:
            async for event in events:
                if not request.this_node or event.node in {node.name for node in report.nodes}:
                    await send(wire.WatchJobResponse(event=event_to_wire(event)))
        if request.follow:  # the verdict, for callers that can't ask again because the supervisor may be ending, too
            report = await self._find(request.job_id, "watch", this_node=request.this_node)
            await send(wire.WatchJobResponse(snapshot=job_to_wire(report)))

    def _events(self, request: wire.WatchJobRequest, note: event_streams.Note) -> AsyncGenerator[RecordedEvent]:
        job, after, limiter = (self._job_service, self._history, request.job_id), request.after_sequence, self._limiter
        if request.this_node:
            return event_streams.own_events(*job, after_sequence=after, follow=request.follow, limiter=limiter)
        of_all_nodes = event_streams.followed_events if request.follow else event_streams.recorded_events
        return of_all_nodes(*job, after_sequence=after, limiter=limiter, note=note)

    async def _stream_logs(self, request: wire.StreamLogsRequest, send: Callable[[Message], Awaitable[None]]) -> None:
        report = await self._find(request.job_id, "show output of", this_node=request.this_node)
        choice = log_follower.LogChoice(
            rank=request.rank if request.HasField("rank") else None,
            cycle=request.cycle if request.HasField("cycle") else None,
            tail_lines=request.tail_lines,
            first_cycle=request.first_cycle,
        )
        ended = anyio.Event()
        if not request.follow or report.ended_at_ns is not None:
            ended.set()
        places = FOLLOWERS_OF_RUNS_MAX if request.this_node and request.follow else FOLLOWERS_MAX
        if self._followers >= places:
            raise ExhaustedError(
                f"cannot show output of job {report.job_id}: {self._followers} readers follow logs already; end one"
            )
        self._followers += 1
        try:
            async with anyio.create_task_group() as tasks:
                if not ended.is_set():
                    tasks.start_soon(set_at_end, self._job_service, report.job_id, ended)
                await self._send_logs(report, choice, ended, send, this_node=request.this_node)
                tasks.cancel_scope.cancel()
        finally:
            self._followers -= 1

    async def _send_logs(
        self,
        report: JobReport,
        choice: log_follower.LogChoice,
        ended: anyio.Event,
        send: Callable[[Message], Awaitable[None]],
        *,
        this_node: bool,
    ) -> None:
        own = log_follower.follow(Path(report.log_dir), choice, ended)
        missing: list[str] = []
        has_others = found = False

        def others(*, follow: bool) -> dict[str, log_merge.NodeOutput]:
            nonlocal has_others
            outputs = {} if this_node else self._outputs_elsewhere(report, choice, follow=follow)
            has_others = has_others or bool(outputs)
            return outputs

        async def look() -> Mapping[str, log_merge.NodeOutput]:
            nonlocal report
            try:
                report = await self._job_service.look(report.job_id) or report
            except HoldfastError:
                return {}  # The next look may be answered.
            return others(follow=True)

        async def send_piece(piece: LogPiece) -> None:
            nonlocal found
            found = True
            await send(wire.LogChunk(**msgspec.structs.asdict(piece)))

        async def send_note(text: str) -> None:
            await send(wire.LogChunk(note=text))

        if ended.is_set():
            await log_merge.merge_in_order(own, others(follow=False), send_piece, missing.append)
        else:
            await log_merge.follow(own, None if this_node else look, send_piece, send_note, ended=ended)
        for note in (*missing, *_lost_output(report, choice.rank)):
            await send_note(note)
        if not found and not has_others:
            await _check_any(Path(report.log_dir), report.job_id, choice)

    def _outputs_elsewhere(
        self, report: JobReport, choice: log_follower.LogChoice, *, follow: bool
    ) -> dict[str, log_merge.NodeOutput]:
        """Returns the output of the job's other nodes, by node."""
        log_dirs = {node.name: node.log_dir for node in report.nodes}
        return {
            name: log_merge.NodeOutput(log_dirs.get(name, ""), choice, partial(open_logs, follow=follow))
            for name, open_logs in self._job_service.logs_elsewhere(report).items()
        }

    async def _find(self, job_id: str, verb: str, *, this_node: bool = False) -> JobReport:
        """Returns the job. `this_node`: only its own part of a job on several nodes, without asking other nodes."""
        report = await self._job_service.look(job_id, this_node=this_node)
        if report is None:
            report = await in_thread(lambda: self._history.job(job_id), limiter=self._limiter)
        if report is None:
            raise NotFoundError(f"cannot {verb} job {job_id[:80]}: there is no such job here; see holdfast jobs")
        return report

    async def _live(self, job_id: str, verb: str) -> None:
        report = self._job_service.job(job_id) or await self._find(job_id, verb)
        if report.state.has_ended:
            raise NotNowError(
                f"cannot {verb} job {job_id}: it has ended ({report.state}); holdfast jobs shows what runs"
            )
        if self._job_service.job(job_id) is None:
            raise NotFoundError(
                f"cannot {verb} job {job_id}: another supervisor had it, and has not recorded its end; "
                "see holdfast jobs"
            )


def _lost_output(report: JobReport, rank: int | None) -> list[str]:
    """Returns notes on output that can't be shown because it is on a lost node."""
    return [
        f"the output of node {node.name} is on that node in {node.log_dir}: {node.reason}"
        for node in report.nodes
        if node.lost_at_ns is not None and node.log_dir and (rank is None or rank in node.ranks)
    ]


def _answering(name: str, request: type[Message], answer: Answer) -> Handler:
    async def handle(call: Call) -> None:
        asked = await _asked(call, name, request)
        CLIENT.set(call.client)
        try:
            told = await answer(asked)
        # A fault of ours must neither end the server nor show its text to the caller.
        except Exception as error:
            raise _refusal(name, error) from error
        await call.send(told.SerializeToString())

    return handle


def _streaming(name: str, request: type[Message], stream: Stream) -> Handler:
    async def handle(call: Call) -> None:
        asked = await _asked(call, name, request)

        async def send(message: Message) -> None:
            await call.send(message.SerializeToString())

        try:
            await stream(asked, send)
        # As above: our own fault must neither end the server nor show its text.
        except Exception as error:
            raise _refusal(name, error) from error

    return handle


async def _asked(call: Call, name: str, request: type[Message]) -> Message:
    data = await call.receive()
    try:
        return request.FromString(data or b"")
    except DecodeError as error:
        why = "the request can't be decoded; send it as control.proto says"
        raise _refusal(name, InvalidRequestError(f"cannot answer {name}: {why}")) from error


class _Fault(HoldfastError):
    reason = "FAULT"


def _refusal(name: str, error: Exception) -> CallError:
    refusal = _in_words(name, error)
    code = Status.INTERNAL if isinstance(refusal, _Fault) else code_of(refusal)
    return CallError(code, redacted_text(str(refusal))[:MESSAGE_CHARACTERS_MAX], refusal_to_wire(refusal))


def _in_words(name: str, error: Exception) -> HoldfastError:
    while isinstance(error, ExceptionGroup):
        error = cast("ExceptionGroup[Exception]", error).exceptions[0]
    if isinstance(error, HoldfastError):
        return error
    if isinstance(error, OSError):  # the disk, or there is no thread, descriptor or inotify instance left
        return ExhaustedError(f"cannot answer {name}: {error}; free what is used up, and ask again")
    if isinstance(error, MemoryError):
        return ExhaustedError(f"cannot answer {name}: no memory is left; check the limit on memory (ulimit -v)")
    _log.error("cannot answer %s: a fault of the supervisor", name, exc_info=error)
    return _Fault(f"cannot answer {name}: a fault of the supervisor; see its log")


def _reason(text: str) -> str:
    return text[:REASON_CHARACTERS_MAX] or "asked for through the control API"


async def _check_any(log_dir: Path, job_id: str, choice: log_follower.LogChoice) -> None:
    """Does the same as `log_follower.check_any`, without blocking."""
    thread = OwnThread()
    try:
        await thread.call(lambda: log_follower.check_any(log_dir, job_id, choice))
    finally:
        thread.end(lambda: None)  # No file is open.
