"""What do the client's messages look like, and what do the supervisor's messages mean?

Sans-I/O: bytes in, events and frames out. Only this module and call_protocol.py use protobuf in
the client.
"""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.message import DecodeError
from holdfast_wire.framing import SUPERVISOR_FRAME_BYTES_MAX, WORKER_FRAME_BYTES_MAX, Decoder, FrameTooLongError, encode
from holdfast_wire.v1 import worker_pb2

from worker_client import call_protocol
from worker_client.call_protocol import CallEvent
from worker_client.errors import ChannelProtocolError
from worker_client.progress_page_writer import Snapshot, WatchSnapshot
from worker_client.timeouts import Limits
from worker_client.workload_control import WorkloadControlRequest

PROTOCOL = 1
CLIENT_VERSION = "0.1.0"
DESCRIPTION_CHARS_MAX = 4096
STACKS_BYTES_MAX = 60 * 1024


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity that this rank claims; the supervisor checks it against the process that it spawned."""

    job_id: str
    cycle: int
    rank: int
    local_rank: int
    token: bytes


@dataclass(frozen=True, slots=True)
class Welcomed:
    cycle: int
    rank: int
    page_shared: bool
    limits: Limits
    sections: tuple[str, ...]  # in the order of their slots
    warm_up_steps: int
    safety_factor: float
    learned_limit_floor_s: float
    install_exception_hook: bool
    answers_lease_questions: bool = False
    lease_is_unbounded: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    reason: str
    retry: bool


@dataclass(frozen=True, slots=True)
class Accepted:
    request_id: int


@dataclass(frozen=True, slots=True)
class StacksRequested:
    request_id: int


@dataclass(frozen=True, slots=True)
class LeaseTold:
    request_id: int
    left_ns: int  # from the question on; 0: it did not hold then


Event = Welcomed | Refused | Accepted | StacksRequested | LeaseTold | CallEvent


class ChannelProtocol:
    """The protocol of one connection. After `hello()`, send nothing until Welcomed is received."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._decoder = Decoder(frame_bytes_max=SUPERVISOR_FRAME_BYTES_MAX)
        self.is_welcome = False

    def hello(
        self, *, now_ns: int, can_share_page: bool, warm_up_steps: int | None, stacks: tuple[int, int] = (0, 0)
    ) -> bytes:
        """Returns the first frame. `stacks`: the signal that makes this process write stacks, and the descriptor."""
        hello = worker_pb2.Hello(
            protocol=PROTOCOL,
            token=self._identity.token,
            job_id=call_protocol.sendable(self._identity.job_id),
            cycle=self._identity.cycle,
            rank=self._identity.rank,
            local_rank=self._identity.local_rank,
            can_share_page=can_share_page,
            monotonic_ns=now_ns,
            client_version=CLIENT_VERSION,
            stacks_signal=stacks[0],
            stacks_fd=stacks[1],
        )
        if warm_up_steps is not None:
            hello.warm_up_steps = warm_up_steps
        return _frame(worker_pb2.WorkerFrame(hello=hello))

    def receive(self, data: bytes) -> list[Event]:
        """Returns what `data` completes, in order; skips frames of a later protocol. Raises ChannelProtocolError."""
        try:
            payloads = self._decoder.feed(data)
            frames = [worker_pb2.SupervisorFrame.FromString(payload) for payload in payloads]
        except (FrameTooLongError, DecodeError) as error:
            raise ChannelProtocolError(f"cannot read the supervisor's frame: {error}") from error
        events: list[Event] = []
        for frame in frames:
            event = _event(frame)
            if event is None:
                continue
            if not self.is_welcome and not isinstance(event, Welcomed | Refused):
                raise ChannelProtocolError(f"cannot take {type(event).__name__} before Welcome")
            self.is_welcome = self.is_welcome or isinstance(event, Welcomed)
            events.append(event)
        return events

    def progress(self, snapshot: Snapshot, *, now_ns: int) -> bytes:
        """Returns a progress frame. `now_ns` must be read after the snapshot is taken."""
        progress = worker_pb2.Progress(
            heartbeats=snapshot.heartbeats,
            out_of_section_age_ns=now_ns - snapshot.out_of_section_since_ns,
            first_step_seen=snapshot.first_step_seen,
            steps_since_first=snapshot.steps_since_first,
            open_sections=[
                worker_pb2.OpenSection(slot=slot, age_ns=now_ns - opened_ns)
                for slot, opened_ns in snapshot.open_sections
            ],
        )
        if snapshot.initialised_ns:
            progress.initialised_age_ns = now_ns - snapshot.initialised_ns
        if snapshot.heartbeat_ns:
            progress.heartbeat_age_ns = now_ns - snapshot.heartbeat_ns
        if snapshot.call_watch is not None:
            progress.call_watch.CopyFrom(_call_watch(snapshot.call_watch, now_ns))
        return _frame(worker_pb2.WorkerFrame(progress=progress))

    def limits_calculated(self, limits: Limits) -> bytes:
        calculated = worker_pb2.LimitsCalculated(limits=_limits_message(limits))
        return _frame(worker_pb2.WorkerFrame(limits_calculated=calculated))

    def workload_control(self, request: WorkloadControlRequest, request_id: int) -> bytes:
        control = worker_pb2.WorkloadControl(
            action=worker_pb2.WorkloadControl.Action.Name(request.action.value),
            description=call_protocol.sendable(request.description)[:DESCRIPTION_CHARS_MAX],
            request_id=request_id,
        )
        return _frame(worker_pb2.WorkerFrame(workload_control=control))

    def lease_question(self, request_id: int) -> bytes:
        question = worker_pb2.LeaseQuestion(request_id=request_id)
        return _frame(worker_pb2.WorkerFrame(lease_question=question))

    def stacks_answer(self, request_id: int, text: str) -> bytes:
        """Returns the frame with the stacks. Too long a text is cut at its end, the least interesting threads."""
        kept = text.encode(errors="replace")[:STACKS_BYTES_MAX].decode(errors="ignore")
        return _frame(worker_pb2.WorkerFrame(stacks_answer=worker_pb2.StacksAnswer(request_id=request_id, text=kept)))

    def goodbye(self) -> bytes:
        return _frame(worker_pb2.WorkerFrame(goodbye=worker_pb2.Goodbye()))


def _frame(message: worker_pb2.WorkerFrame) -> bytes:
    return encode(message.SerializeToString(), frame_bytes_max=WORKER_FRAME_BYTES_MAX)


def _event(frame: worker_pb2.SupervisorFrame) -> Event | None:
    match frame.WhichOneof("body"):
        case "welcome":
            return _welcomed(frame.welcome)
        case "refused":
            return Refused(frame.refused.reason, frame.refused.retry)
        case "accepted":
            return Accepted(frame.accepted.request_id)
        case "stacks_request":
            return StacksRequested(frame.stacks_request.request_id)
        case "lease":
            return LeaseTold(frame.lease.request_id, frame.lease.left_ns)
        case _:
            return call_protocol.event(frame)


def _welcomed(welcome: worker_pb2.Welcome) -> Welcomed:
    limits = welcome.limits
    return Welcomed(
        cycle=welcome.cycle,
        rank=welcome.rank,
        page_shared=welcome.page_shared,
        limits=Limits(
            initial_heartbeat_s=limits.initial_heartbeat_s if limits.HasField("initial_heartbeat_s") else None,
            heartbeat_s=limits.heartbeat_s if limits.HasField("heartbeat_s") else None,
            out_of_section_s=limits.out_of_section_s if limits.HasField("out_of_section_s") else None,
            sections=tuple(
                (section.name, section.limit_s if section.HasField("limit_s") else None) for section in limits.sections
            ),
        ),
        sections=tuple(welcome.sections),
        warm_up_steps=welcome.warm_up_steps,
        safety_factor=welcome.safety_factor,
        learned_limit_floor_s=welcome.learned_limit_floor_s,
        install_exception_hook=welcome.install_exception_hook,
        answers_lease_questions=welcome.answers_lease_questions,
        lease_is_unbounded=welcome.lease_is_unbounded,
    )


def _call_watch(watch: WatchSnapshot, now_ns: int) -> worker_pb2.CallWatch:
    message = worker_pb2.CallWatch(
        watch=watch.watch, watch_since_age_ns=now_ns - watch.since_ns, tick_age_ns=now_ns - watch.tick_ns
    )
    if watch.pending_since_ns:
        message.pending_age_ns = now_ns - watch.pending_since_ns
    if watch.ping_ns:
        message.ping_age_ns = now_ns - watch.ping_ns
    return message


def _limits_message(limits: Limits) -> worker_pb2.Limits:
    message = worker_pb2.Limits(
        sections=[
            worker_pb2.SectionLimit(name=call_protocol.sendable(name))
            if limit_s is None
            else worker_pb2.SectionLimit(name=call_protocol.sendable(name), limit_s=limit_s)
            for name, limit_s in limits.sections
        ]
    )
    if limits.initial_heartbeat_s is not None:
        message.initial_heartbeat_s = limits.initial_heartbeat_s
    if limits.heartbeat_s is not None:
        message.heartbeat_s = limits.heartbeat_s
    if limits.out_of_section_s is not None:
        message.out_of_section_s = limits.out_of_section_s
    return message
