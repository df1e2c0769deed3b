"""What do the bytes of the worker channel mean? Protobuf stops here.

Values from a worker are checked for shape and bounds: what passes is finite, of a sane size and of a known kind.
Protobuf is loaded with the first frame: it takes 15 ms, which would delay the first workers.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

import msgspec
from holdfast_wire.framing import SUPERVISOR_FRAME_BYTES_MAX, encode
from holdfast_wire.page import SECTION_SLOTS_MAX

from supervisor.core.calls.words import FromRank
from supervisor.core.facts import HangLimits
from supervisor.edges.workers.channel import call_codec

if TYPE_CHECKING:
    from holdfast_wire.v1 import worker_pb2

PROTOCOL = 1
NAME_CHARACTERS_MAX = 256  # of a section
DESCRIPTION_CHARACTERS_MAX = 4096
LIMIT_S_MAX = 10 * 365 * 24 * 3600.0


class WorkerProtocolError(ValueError):
    """Raised for bytes that no client of ours sends. Their connection can't be trusted any more."""


class Hello(msgspec.Struct, frozen=True):
    protocol: int
    token: bytes
    job_id: str
    cycle: int
    rank: int
    local_rank: int
    can_share_page: bool
    monotonic_ns: int
    warm_up_steps: int | None
    stacks_signal: int  # 0: none
    stacks_fd: int


class CallWatchTold(msgspec.Struct, frozen=True):
    """The Wrapper's words of the page as ages; None: never, or not pending."""

    watch: int
    since_age_ns: int
    tick_age_ns: int
    pending_age_ns: int | None
    ping_age_ns: int | None


class ProgressTold(msgspec.Struct, frozen=True):
    """A rank's progress in a frame. Ages are those at sending."""

    initialised_age_ns: int
    heartbeat_age_ns: int | None
    heartbeats: int
    out_of_section_age_ns: int
    first_step_seen: bool
    steps_since_first: int
    open_slots: tuple[tuple[int, int], ...]  # (slot, age_ns)
    call_watch: CallWatchTold | None = None


class LimitsTold(msgspec.Struct, frozen=True):
    initial_heartbeat_s: float | None
    heartbeat_s: float | None
    out_of_section_s: float | None
    sections: tuple[tuple[str, float | None], ...]


class ControlTold(msgspec.Struct, frozen=True):
    action: str  # named as in node.messages.ControlRequested
    description: str
    request_id: int


class Goodbye(msgspec.Struct, frozen=True):
    pass


class StacksTold(msgspec.Struct, frozen=True):
    request_id: int
    text: str


FromWorker = Hello | ProgressTold | LimitsTold | ControlTold | Goodbye | StacksTold | FromRank


class Greeting(msgspec.Struct, frozen=True):
    """The greeting that answers a client's hello."""

    cycle: int
    rank: int
    page_shared: bool
    limits: HangLimits
    section_names: tuple[str, ...]  # in the order of their slots
    safety_factor: float
    learned_limit_floor_s: float
    install_exception_hook: bool


# --- from the worker -----------------------------------------------------------------------------------------------


def decode(payload: bytes) -> FromWorker:
    """Decodes a frame. Raises WorkerProtocolError."""
    from google.protobuf.message import DecodeError
    from holdfast_wire.v1 import worker_pb2

    frame = worker_pb2.WorkerFrame()
    try:
        frame.ParseFromString(payload)
    except DecodeError as error:
        raise WorkerProtocolError(f"cannot read a frame of {len(payload)} bytes: {error}") from error
    match frame.WhichOneof("body"):
        case "hello":
            return _hello(frame.hello)
        case "progress":
            return _progress(frame.progress)
        case "limits_calculated":
            return _limits(frame.limits_calculated.limits)
        case "workload_control":
            return _control(frame.workload_control)
        case "goodbye":
            return Goodbye()
        case "stacks_answer":
            return StacksTold(frame.stacks_answer.request_id, frame.stacks_answer.text)
        case kind if kind in call_codec.KINDS:
            try:
                return call_codec.decode(frame, kind)
            except call_codec.CallFrameError as error:
                raise WorkerProtocolError(str(error)) from error
        case unknown:
            raise WorkerProtocolError(f"cannot read a frame of {len(payload)} bytes: its kind is {unknown}")


def _hello(hello: worker_pb2.Hello) -> Hello:
    return Hello(
        protocol=hello.protocol,
        token=hello.token,
        job_id=hello.job_id,
        cycle=hello.cycle,
        rank=hello.rank,
        local_rank=hello.local_rank,
        can_share_page=hello.can_share_page,
        monotonic_ns=hello.monotonic_ns,
        warm_up_steps=hello.warm_up_steps if hello.HasField("warm_up_steps") else None,
        stacks_signal=hello.stacks_signal,
        stacks_fd=hello.stacks_fd,
    )


def _progress(progress: worker_pb2.Progress) -> ProgressTold:
    if len(progress.open_sections) > SECTION_SLOTS_MAX:
        raise WorkerProtocolError(f"cannot have {len(progress.open_sections)} sections open")
    return ProgressTold(
        initialised_age_ns=progress.initialised_age_ns,
        heartbeat_age_ns=progress.heartbeat_age_ns if progress.HasField("heartbeat_age_ns") else None,
        heartbeats=progress.heartbeats,
        out_of_section_age_ns=progress.out_of_section_age_ns,
        first_step_seen=progress.first_step_seen,
        steps_since_first=progress.steps_since_first,
        open_slots=tuple((section.slot, section.age_ns) for section in progress.open_sections),
        call_watch=_call_watch(progress.call_watch) if progress.HasField("call_watch") else None,
    )


def _call_watch(told: worker_pb2.CallWatch) -> CallWatchTold:
    return CallWatchTold(
        watch=told.watch,
        since_age_ns=told.watch_since_age_ns,
        tick_age_ns=told.tick_age_ns,
        pending_age_ns=told.pending_age_ns if told.HasField("pending_age_ns") else None,
        ping_age_ns=told.ping_age_ns if told.HasField("ping_age_ns") else None,
    )


def _limits(limits: worker_pb2.Limits) -> LimitsTold:
    names = [section.name for section in limits.sections]
    if len(names) > SECTION_SLOTS_MAX or len(set(names)) != len(names):
        raise WorkerProtocolError(f"cannot take limits of {len(names)} sections")
    if any(not 0 < len(name) <= NAME_CHARACTERS_MAX for name in names):
        raise WorkerProtocolError("cannot take a section name that is empty or too long")
    return LimitsTold(
        initial_heartbeat_s=_limit(limits.initial_heartbeat_s) if limits.HasField("initial_heartbeat_s") else None,
        heartbeat_s=_limit(limits.heartbeat_s) if limits.HasField("heartbeat_s") else None,
        out_of_section_s=_limit(limits.out_of_section_s) if limits.HasField("out_of_section_s") else None,
        sections=tuple(
            (section.name, _limit(section.limit_s) if section.HasField("limit_s") else None)
            for section in limits.sections
        ),
    )


def _limit(limit_s: float) -> float:
    # A NaN or zero limit would end a healthy rank.
    if not (math.isfinite(limit_s) and 0 < limit_s <= LIMIT_S_MAX):
        raise WorkerProtocolError(f"cannot take a limit of {limit_s} s")
    return limit_s


def _control(control: worker_pb2.WorkloadControl) -> ControlTold:
    action = _actions().get(control.action)
    if action is None:
        raise WorkerProtocolError(f"cannot take workload control action {control.action}")
    return ControlTold(action, control.description[:DESCRIPTION_CHARACTERS_MAX], control.request_id)


@cache
def _actions() -> dict[int, str]:
    from holdfast_wire.v1 import worker_pb2

    return {
        worker_pb2.WorkloadControl.CONTINUE: "continue",
        worker_pb2.WorkloadControl.EXCLUDE_THIS_NODE: "exclude_this_node",
        worker_pb2.WorkloadControl.SHUTDOWN_WORKLOAD: "shutdown_workload",
    }


# --- to the worker -------------------------------------------------------------------------------------------------


def encode_welcome(greeting: Greeting) -> bytes:
    """Returns the whole frame. Raises FrameTooLongError."""
    from holdfast_wire.v1 import worker_pb2

    limits = worker_pb2.Limits()
    source = greeting.limits
    if source.initial_heartbeat_s is not None:
        limits.initial_heartbeat_s = source.initial_heartbeat_s
    if source.heartbeat_s is not None:
        limits.heartbeat_s = source.heartbeat_s
    if source.out_of_section_s is not None:
        limits.out_of_section_s = source.out_of_section_s
    for name, limit_s in source.sections:
        section = limits.sections.add(name=name)
        if limit_s is not None:
            section.limit_s = limit_s
    return _frame(
        worker_pb2.SupervisorFrame(
            welcome=worker_pb2.Welcome(
                protocol=PROTOCOL,
                cycle=greeting.cycle,
                rank=greeting.rank,
                page_shared=greeting.page_shared,
                limits=limits,
                sections=greeting.section_names,
                warm_up_steps=max(0, source.warm_up_steps),
                safety_factor=greeting.safety_factor,
                learned_limit_floor_s=greeting.learned_limit_floor_s,
                install_exception_hook=greeting.install_exception_hook,
            )
        )
    )


def encode_refused(reason: str, *, retry: bool) -> bytes:
    from holdfast_wire.v1 import worker_pb2

    return _frame(worker_pb2.SupervisorFrame(refused=worker_pb2.Refused(reason=reason, retry=retry)))


def encode_accepted(request_id: int) -> bytes:
    from holdfast_wire.v1 import worker_pb2

    return _frame(worker_pb2.SupervisorFrame(accepted=worker_pb2.Accepted(request_id=request_id)))


def encode_stacks_request(request_id: int) -> bytes:
    from holdfast_wire.v1 import worker_pb2

    return _frame(worker_pb2.SupervisorFrame(stacks_request=worker_pb2.StacksRequest(request_id=request_id)))


def _frame(message: worker_pb2.SupervisorFrame) -> bytes:
    return encode(message.SerializeToString(), frame_bytes_max=SUPERVISOR_FRAME_BYTES_MAX)
