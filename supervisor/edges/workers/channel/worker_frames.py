"""What do a rank's client and its supervisor send each other over the worker channel?

One record per frame, named as in worker.proto; worker_codec.py encodes and decodes them. What they say about a wrapped
call is in core/wrapped_calls/call_messages.py.
"""

from __future__ import annotations

import enum

import msgspec

from supervisor.core.node.node_messages import Accepted
from supervisor.core.wrapped_calls.call_messages import FromRank, ToRank

PROTOCOL = 1


class WorkerProtocolError(ValueError):
    """Raised for bytes that no client of ours sends. Their connection can't be trusted any more."""


class Limits(msgspec.Struct, frozen=True):
    """What a client knows of HangLimits. None: no limit."""

    initial_heartbeat_s: float | None = None
    heartbeat_s: float | None = None
    out_of_section_s: float | None = None
    sections: tuple[tuple[str, float | None], ...] = ()


# --- from the worker -----------------------------------------------------------------------------------------------


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


class CallWatch(msgspec.Struct, frozen=True):
    """The Wrapper's words of the page as ages; None: never, or not pending."""

    watch: int
    watch_since_age_ns: int
    tick_age_ns: int
    pending_age_ns: int | None
    ping_age_ns: int | None


class Progress(msgspec.Struct, frozen=True):
    """A rank's progress in a frame. Ages are those at sending."""

    initialised_age_ns: int | None  # None: the rank is only in a wrapped call
    heartbeat_age_ns: int | None
    heartbeats: int
    out_of_section_age_ns: int
    first_step_seen: bool
    steps_since_first: int
    open_sections: tuple[tuple[int, int], ...]  # (slot, age_ns)
    call_watch: CallWatch | None = None


class LimitsCalculated(msgspec.Struct, frozen=True):
    limits: Limits


class Control(enum.IntEnum):
    CONTINUE = 0
    EXCLUDE_THIS_NODE = 1
    SHUTDOWN_WORKLOAD = 2


class WorkloadControl(msgspec.Struct, frozen=True):
    action: Control
    description: str
    request_id: int


class Goodbye(msgspec.Struct, frozen=True):
    pass


class StacksAnswer(msgspec.Struct, frozen=True):
    request_id: int
    text: str


class LeaseQuestion(msgspec.Struct, frozen=True):
    request_id: int


class Unknown(msgspec.Struct, frozen=True):
    """A frame of a newer client; it is skipped."""

    why: str


FromWorker = (
    Hello | Progress | LimitsCalculated | WorkloadControl | Goodbye | StacksAnswer | LeaseQuestion | FromRank | Unknown
)

# --- to the worker -------------------------------------------------------------------------------------------------


class Welcome(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a hello."""

    protocol: int = PROTOCOL
    cycle: int
    rank: int
    page_shared: bool
    limits: Limits
    sections: tuple[str, ...]  # in the order of their slots
    warm_up_steps: int
    safety_factor: float
    learned_limit_floor_s: float
    install_exception_hook: bool
    answers_lease_questions: bool = True
    lease_is_unbounded: bool = False


class Refused(msgspec.Struct, frozen=True):
    reason: str
    retry: bool


class StacksRequest(msgspec.Struct, frozen=True):
    request_id: int


class Lease(msgspec.Struct, frozen=True):
    """The answer to LeaseQuestion, once the lease holds."""

    request_id: int
    left_ns: int  # from the question on; 0: it did not hold then


ToWorker = Welcome | Refused | Accepted | StacksRequest | Lease | ToRank
