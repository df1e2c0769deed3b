"""How does a program on this node ask a supervisor? Blocking calls, each bounded in time and size.

A supervisor may be another user's program, which answers slowly or without end.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import grpc
import msgspec
from google.protobuf.message import Message
from holdfast_wire.v1 import control_pb2 as wire

from supervisor.config.job_spec import JobSpec
from supervisor.core.facts import Evidence
from supervisor.edges.machine.clock import Clock
from supervisor.edges.machine.own_process import threads
from supervisor.edges.machine.own_process.kernel_error_remedies import NoThreadError
from supervisor.edges.operators.control_decoding import (
    event_from_wire,
    evidence_from_wire,
    job_from_wire,
    node_from_wire,
    notes_from_wire,
    refusal_from_wire,
)
from supervisor.edges.operators.control_encoding import (
    ANSWER_BYTES_MAX,
    REQUEST_BYTES_MAX,
    SERVICE,
    submission_to_wire,
    wire_text,
)
from supervisor.edges.operators.log_follower import LogChoice, LogPiece
from supervisor.errors import ExhaustedError, HoldfastError, NoAnswerError, NoSupervisorError
from supervisor.ports.job_requests import RendezvousRequest
from supervisor.ports.reports import JobReport, NodeReport, RecordedEvent

CALL_TIMEOUT_S = 10.0
LIST_TIMEOUT_S = 5.0  # for all pages
LIST_JOBS_MAX = 5_000  # a journal keeps 1,000
LIST_NODES_MAX = 100_000
PAST_EVENTS_MAX = 400_000  # a journal keeps 200,000, about 60 MB
PAST_EVENTS_BYTES_MAX = 160 << 20
COLLECTED_BYTES_MAX = 64 << 20
STACKS_TIMEOUT_S = 30.0
MEETING_TIMEOUT_S = 60.0  # looking up the address where the job's nodes meet asks name servers
THREADS_OF_CPUS_MAX, THREADS_BESIDE = 16, 8  # of gRPC's library: one a processor, and what it has beside
RECONNECT_MIN_MS = 50  # between attempts to reach a supervisor that is away
RECONNECT_MAX_MS = 250
DETAILS_TRAILER = "grpc-status-details-bin"

Response = TypeVar("Response", bound=Message)


class DeadlineExceededError(ExhaustedError):
    """The supervisor has not answered in time: it may have done what was asked, or do it yet."""


def _own_umask() -> int | None:
    """Returns this process's umask without setting it for a moment; None: the kernel does not tell."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(errors="replace").splitlines():
            if line.startswith("Umask:"):
                return int(line.partition(":")[2], 8)
    return None


def _unread(note: str) -> None:
    """Ignores a note: for callers that take what is there."""


@cache
def _check_room() -> None:
    """Raises NoThreadError: gRPC's library ends the process if one of its threads can't be started."""
    threads.check_room(THREADS_BESIDE + min(os.cpu_count() or 1, THREADS_OF_CPUS_MAX))


class ControlClient:
    """A client of one supervisor. Raises the HoldfastError that the supervisor raised, or NoSupervisorError."""

    def __init__(self, socket_path: Path, *, reached_by: Path | None = None) -> None:
        """Raises ExhaustedError without room for threads.

        `reached_by`: another path to the same socket: see supervisor_owner.opened, for clients that send secrets.
        """
        self.socket_path = socket_path
        self._clock = Clock()
        try:
            _check_room()
        except NoThreadError as error:
            raise ExhaustedError(f"cannot ask the supervisor at {socket_path}: {error}; try again") from error
        self._channel = grpc.insecure_channel(
            f"unix:{reached_by or socket_path}",
            options=(
                ("grpc.max_receive_message_length", ANSWER_BYTES_MAX),
                ("grpc.max_send_message_length", REQUEST_BYTES_MAX),
                ("grpc.enable_http_proxy", 0),
                ("grpc.default_authority", "localhost"),
                ("grpc.initial_reconnect_backoff_ms", RECONNECT_MIN_MS),
                # Not grpc.min_reconnect_backoff_ms: it bounds an attempt, and a busy supervisor would seem absent.
                ("grpc.max_reconnect_backoff_ms", RECONNECT_MAX_MS),
            ),
        )

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def wait_until_ready(self, timeout_s: float) -> bool:
        """Returns whether a supervisor answers within the time."""
        try:
            cast("Any", grpc).channel_ready_future(self._channel).result(timeout_s)
        except grpc.FutureTimeoutError:
            return False
        return True

    def submit(self, spec: JobSpec, environment: Mapping[str, str], *, given_up: threading.Event | None = None) -> str:
        """Submits the job and returns its id. `given_up`: see `_call`."""
        request = submission_to_wire(spec, environment, _own_umask())
        timeout_s = CALL_TIMEOUT_S if spec.nodes is None else MEETING_TIMEOUT_S
        return self._call("SubmitJob", request, wire.SubmitJobResponse, timeout_s, given_up=given_up).job_id

    def job(
        self, job_id: str, *, within_s: float = CALL_TIMEOUT_S, given_up: threading.Event | None = None
    ) -> JobReport:
        request = wire.GetJobRequest(job_id=wire_text(job_id))
        return job_from_wire(self._call("GetJob", request, wire.Job, within_s, given_up=given_up))

    def until_left(self, job_id: str, node: str) -> JobReport:
        """Returns the job once the node has no part in it, or the job has ended.

        Raises NoAnswerError if the supervisor is of an older version, which does not wait.
        """
        answer = self._call("GetJob", wire.GetJobRequest(job_id=job_id, until_left=node), wire.Job, math.inf)
        job = job_from_wire(answer)
        if answer.waited_for != node and not job.state.has_ended:
            raise NoAnswerError(
                f"cannot wait until node {node} has left job {job_id}: the supervisor at {self.socket_path} is of an "
                f"older version, which does not tell; see holdfast status {job_id}"
            )
        return job

    def jobs(
        self,
        *,
        include_ended: bool = False,
        within_s: float | None = None,
        on_unreadable: Callable[[str], None] | None = None,
    ) -> list[JobReport]:
        """Returns the jobs of all pages. `within_s` None: LIST_TIMEOUT_S. Raises HoldfastError if they have no end.

        `on_unreadable` gets a sentence about each job that has too many parts; None: it is raised.
        """
        timeout_s = within_s or LIST_TIMEOUT_S
        until_s = self._clock.now_s() + timeout_s
        found: list[JobReport] = []
        token, taken = "", 0
        while True:
            request = wire.ListJobsRequest(include_ended=include_ended, page_token=token)
            left_s = max(until_s - self._clock.now_s(), 0.001)
            response = self._call("ListJobs", request, wire.ListJobsResponse, left_s, told_s=timeout_s)
            taken += response.ByteSize()
            if len(found) + len(response.jobs) > LIST_JOBS_MAX or taken > ANSWER_BYTES_MAX:
                raise self._unending("list the jobs", f"{LIST_JOBS_MAX:,} jobs or {ANSWER_BYTES_MAX >> 20} MiB")
            for job in response.jobs:
                try:
                    found.append(job_from_wire(job))
                except HoldfastError as error:
                    if on_unreadable is None:
                        raise
                    on_unreadable(str(error))
                if self._clock.now_s() > until_s:
                    raise self._no_answer(timeout_s)
            token = response.next_page_token
            if not token:
                return found

    def watch(
        self,
        job_id: str,
        *,
        after_sequence: int = 0,
        follow: bool = False,
        this_node: bool = False,
        within_s: float | None = None,
        on_note: Callable[[str], None] = _unread,
    ) -> Generator[JobReport | RecordedEvent]:
        """Yields the job, then its events. With `follow` there is no deadline: the stream ends with the job.

        `within_s` None: CALL_TIMEOUT_S for all past events.

        `this_node`: for a job on several nodes, only the supervisor's own part. `on_note` gets notes about missing
        events.
        """
        request = wire.WatchJobRequest(job_id=job_id, after_sequence=after_sequence, follow=follow, this_node=this_node)
        timeout_s = None if follow else within_s or CALL_TIMEOUT_S
        number = taken = 0
        for response in self._stream("WatchJob", request, wire.WatchJobResponse, timeout_s):
            if not follow:
                number, taken = number + 1, taken + response.ByteSize()
                if number > PAST_EVENTS_MAX or taken > PAST_EVENTS_BYTES_MAX:
                    raise self._unending(f"list the events of job {job_id}", f"{PAST_EVENTS_MAX:,} events")
            if response.HasField("snapshot"):
                yield job_from_wire(response.snapshot)
            elif response.HasField("note"):
                on_note(*notes_from_wire([response.note]))
            elif response.HasField("event"):  # a newer supervisor may send others
                yield event_from_wire(response.event)

    def stop(
        self, job_id: str, *, reason: str, signal: int = 0, grace_s: float | None = None, of_node: bool = False
    ) -> None:
        request = wire.StopJobRequest(
            job_id=job_id, reason=wire_text(reason), signal=signal, grace_s=grace_s, of_node=of_node
        )
        self._call("StopJob", request, wire.StopJobResponse)

    def restart(self, job_id: str, *, reason: str) -> int:
        request = wire.RestartJobRequest(job_id=job_id, reason=wire_text(reason))
        return self._call("RestartJob", request, wire.RestartJobResponse).next_cycle

    def stacks(self, job_id: str, rank: int | None = None) -> Evidence:
        request = wire.GetStacksRequest(job_id=job_id, rank=rank)
        return evidence_from_wire(self._call("GetStacks", request, wire.GetStacksResponse, STACKS_TIMEOUT_S))

    def logs(
        self,
        job_id: str,
        choice: LogChoice,
        *,
        follow: bool = False,
        this_node: bool = False,
        within_s: float | None = None,
        on_note: Callable[[str], None] = _unread,
    ) -> Generator[LogPiece]:
        """Yields output. `this_node`: as for `watch`. `on_note` gets notes about whose output is missing, and why.

        `within_s`: the deadline for all of it, for a caller that keeps what comes; None: none.
        """
        request = wire.StreamLogsRequest(
            job_id=job_id,
            rank=choice.rank,
            cycle=choice.cycle,
            tail_lines=choice.tail_lines,
            follow=follow,
            this_node=this_node,
            first_cycle=choice.first_cycle,
        )
        for chunk in self._stream("StreamLogs", request, wire.LogChunk, within_s):
            if chunk.note:
                on_note(*notes_from_wire([chunk.note]))
                continue
            yield LogPiece(chunk.rank, chunk.cycle, chunk.is_stderr, chunk.data, chunk.file, chunk.offset)

    def nodes(self, *, within_s: float | None = None) -> list[NodeReport]:
        """Returns the nodes of all pages. `within_s` None: CALL_TIMEOUT_S. Raises HoldfastError if they have no end."""
        timeout_s = within_s or CALL_TIMEOUT_S
        until_s = self._clock.now_s() + timeout_s
        found: list[NodeReport] = []
        token, taken = "", 0
        while True:
            request = wire.ListNodesRequest(page_token=token)
            left_s = max(until_s - self._clock.now_s(), 0.001)
            response = self._call("ListNodes", request, wire.ListNodesResponse, left_s, told_s=timeout_s)
            taken += response.ByteSize()
            if len(found) + len(response.nodes) > LIST_NODES_MAX or taken > ANSWER_BYTES_MAX:
                raise self._unending("list the nodes", f"{LIST_NODES_MAX:,} nodes or {ANSWER_BYTES_MAX >> 20} MiB")
            found += [node_from_wire(node) for node in response.nodes]
            token = response.next_page_token
            if not token:
                return found

    def cordon(self, name: str, *, reason: str, leaves: bool = False) -> NodeReport:
        """Cordons the node. `leaves`: see ports.JobRequests.set_cordon."""
        request = wire.CordonNodeRequest(name=wire_text(name), reason=wire_text(reason), leaves=leaves)
        return node_from_wire(self._call("CordonNode", request, wire.Node))

    def uncordon(self, name: str) -> NodeReport:
        return node_from_wire(self._call("UncordonNode", wire.UncordonNodeRequest(name=wire_text(name)), wire.Node))

    def lead_rendezvous(self, rendezvous: RendezvousRequest) -> bool:
        request = wire.LeadRendezvousRequest(**msgspec.structs.asdict(rendezvous))
        return self._call("LeadRendezvous", request, wire.LeadRendezvousResponse).leads

    def _call(
        self,
        method: str,
        request: Message,
        response: type[Response],
        timeout_s: float | None = None,
        *,
        told_s: float | None = None,
        given_up: threading.Event | None = None,
    ) -> Response:
        """Calls the method. `told_s`: the time that a refusal names; None: `timeout_s`.

        `given_up`: an event of this call alone. If somebody sets it before the answer, the call is cancelled, and
        DeadlineExceededError raised: what was asked may be done all the same. The answer sets it, too.
        """
        call = cast("Any", self._channel).unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=_serialise,
            response_deserializer=response.FromString,
        )
        timeout_s = timeout_s or CALL_TIMEOUT_S
        bound_s = timeout_s if timeout_s < math.inf else None
        with self._errors(told_s or timeout_s):
            if given_up is None:
                return call(request, timeout=bound_s)
            answer = call.future(request, timeout=bound_s)

            def wake(_: object) -> None:
                given_up.set()

            answer.add_done_callback(wake)
            given_up.wait()
            if answer.done():
                return answer.result()
            answer.cancel()
        raise DeadlineExceededError(
            f"cannot ask the supervisor at {self.socket_path}: given up before it answered; try again"
        )

    def _stream(
        self, method: str, request: Message, response: type[Response], timeout_s: float | None
    ) -> Generator[Response]:
        call = cast("Any", self._channel).unary_stream(
            f"/{SERVICE}/{method}",
            request_serializer=_serialise,
            response_deserializer=response.FromString,
        )
        with self._errors(timeout_s or CALL_TIMEOUT_S):
            answers = call(request, timeout=timeout_s)
            try:
                yield from answers
            finally:
                answers.cancel()

    @contextlib.contextmanager
    def _errors(self, timeout_s: float) -> Generator[None]:
        try:
            yield
        except grpc.RpcError as error:
            raise self._translated(cast("grpc.Call", error), timeout_s) from error

    def _translated(self, error: grpc.Call, timeout_s: float) -> HoldfastError:
        trailers = cast("dict[str, bytes]", dict(error.trailing_metadata() or ()))
        refusal = refusal_from_wire(trailers.get(DETAILS_TRAILER, b""))
        if refusal is not None:
            return refusal
        (details,) = notes_from_wire([error.details() or "no reason given"])
        match error.code():
            case grpc.StatusCode.UNAVAILABLE:
                return NoSupervisorError(
                    f"cannot ask the supervisor at {self.socket_path}: it has gone ({details}); see holdfast jobs"
                )
            case grpc.StatusCode.DEADLINE_EXCEEDED:
                return self._no_answer(timeout_s)
            case grpc.StatusCode.RESOURCE_EXHAUSTED:
                return ExhaustedError(f"cannot ask the supervisor at {self.socket_path}: {details}; try again")
            case code:
                return HoldfastError(f"cannot ask the supervisor at {self.socket_path}: {details} ({code.name})")

    def _no_answer(self, timeout_s: float) -> DeadlineExceededError:
        return DeadlineExceededError(
            f"cannot ask the supervisor at {self.socket_path}: no answer within {timeout_s:g} s; try again"
        )

    def _unending(self, what: str, most: str) -> HoldfastError:
        return HoldfastError(f"cannot {what} of the supervisor at {self.socket_path}: it sends more than {most}")


def _serialise(message: Message) -> bytes:
    return message.SerializeToString()


def bounded(pieces: Iterable[LogPiece]) -> Iterator[LogPiece]:
    """Yields the first pieces, for a caller that keeps them: another user's supervisor may send them without end."""
    taken = 0
    for piece in pieces:
        taken += len(piece.data)
        if taken > COLLECTED_BYTES_MAX:
            return
        yield piece
