from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

BASE_EXCEPTION: Interruption
DESCRIPTOR: _descriptor.FileDescriptor
EXCEPTION: Interruption
HARD_TIMEOUT: Interruption
MONITOR_PROCESS_EXCEPTION: Interruption
SOFT_TIMEOUT: Interruption
TERMINATED: Interruption
UNRESPONSIVE: Interruption

class Accepted(_message.Message):
    __slots__ = ["request_id"]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    def __init__(self, request_id: _Optional[int] = ...) -> None: ...

class BarrierArrive(_message.Message):
    __slots__ = ["active", "barrier", "call", "iteration", "overdue", "rank"]
    class Barrier(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = []
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    BARRIER_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    COMPLETION: BarrierArrive.Barrier
    ITERATION: BarrierArrive.Barrier
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    OVERDUE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    active: bool
    barrier: BarrierArrive.Barrier
    call: int
    iteration: int
    overdue: bool
    rank: int
    def __init__(self, call: _Optional[int] = ..., iteration: _Optional[int] = ..., barrier: _Optional[_Union[BarrierArrive.Barrier, str]] = ..., rank: _Optional[int] = ..., active: bool = ..., overdue: bool = ...) -> None: ...

class BeginIteration(_message.Message):
    __slots__ = ["anew", "call", "iteration", "terminated_ranks", "world_size"]
    ANEW_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    TERMINATED_RANKS_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    anew: bool
    call: int
    iteration: int
    terminated_ranks: _containers.RepeatedScalarFieldContainer[int]
    world_size: int
    def __init__(self, call: _Optional[int] = ..., iteration: _Optional[int] = ..., world_size: _Optional[int] = ..., terminated_ranks: _Optional[_Iterable[int]] = ..., anew: bool = ...) -> None: ...

class CallCompleted(_message.Message):
    __slots__ = ["call", "iteration"]
    CALL_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    call: int
    iteration: int
    def __init__(self, call: _Optional[int] = ..., iteration: _Optional[int] = ...) -> None: ...

class CallEnter(_message.Message):
    __slots__ = ["active", "call", "initial_rank", "initial_world_size", "iteration", "overdue", "rank", "settings", "stage", "world_size"]
    class Stage(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = []
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    COMPLETING: CallEnter.Stage
    ENTERING: CallEnter.Stage
    INITIAL_RANK_FIELD_NUMBER: _ClassVar[int]
    INITIAL_WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    OVERDUE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    RESTARTING: CallEnter.Stage
    RUNNING: CallEnter.Stage
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    UNWINDING: CallEnter.Stage
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    active: bool
    call: int
    initial_rank: int
    initial_world_size: int
    iteration: int
    overdue: bool
    rank: int
    settings: CallSettings
    stage: CallEnter.Stage
    world_size: int
    def __init__(self, call: _Optional[int] = ..., initial_rank: _Optional[int] = ..., initial_world_size: _Optional[int] = ..., settings: _Optional[_Union[CallSettings, _Mapping]] = ..., stage: _Optional[_Union[CallEnter.Stage, str]] = ..., iteration: _Optional[int] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., active: bool = ..., overdue: bool = ...) -> None: ...

class CallLeave(_message.Message):
    __slots__ = ["call", "iteration", "reason", "unfit", "why"]
    class Why(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = []
    CALL_FIELD_NUMBER: _ClassVar[int]
    DISCARDED: CallLeave.Why
    DONE: CallLeave.Why
    FAULT: CallLeave.Why
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    UNFIT_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    call: int
    iteration: int
    reason: str
    unfit: bool
    why: CallLeave.Why
    def __init__(self, call: _Optional[int] = ..., iteration: _Optional[int] = ..., why: _Optional[_Union[CallLeave.Why, str]] = ..., reason: _Optional[str] = ..., unfit: bool = ...) -> None: ...

class CallRefused(_message.Message):
    __slots__ = ["call", "given_up", "reason"]
    CALL_FIELD_NUMBER: _ClassVar[int]
    GIVEN_UP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    call: int
    given_up: bool
    reason: str
    def __init__(self, call: _Optional[int] = ..., reason: _Optional[str] = ..., given_up: bool = ...) -> None: ...

class CallSettings(_message.Message):
    __slots__ = ["barrier_timeout_s", "completion_timeout_s", "hard_timeout_s", "heartbeat_timeout_s", "last_call_wait_s", "soft_timeout_s", "termination_grace_s"]
    BARRIER_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    HARD_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    LAST_CALL_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    SOFT_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    TERMINATION_GRACE_S_FIELD_NUMBER: _ClassVar[int]
    barrier_timeout_s: float
    completion_timeout_s: float
    hard_timeout_s: float
    heartbeat_timeout_s: float
    last_call_wait_s: float
    soft_timeout_s: float
    termination_grace_s: float
    def __init__(self, last_call_wait_s: _Optional[float] = ..., soft_timeout_s: _Optional[float] = ..., hard_timeout_s: _Optional[float] = ..., termination_grace_s: _Optional[float] = ..., barrier_timeout_s: _Optional[float] = ..., completion_timeout_s: _Optional[float] = ..., heartbeat_timeout_s: _Optional[float] = ...) -> None: ...

class CallUnderway(_message.Message):
    __slots__ = ["call"]
    CALL_FIELD_NUMBER: _ClassVar[int]
    call: int
    def __init__(self, call: _Optional[int] = ...) -> None: ...

class CallWatch(_message.Message):
    __slots__ = ["pending_age_ns", "ping_age_ns", "tick_age_ns", "watch", "watch_since_age_ns"]
    PENDING_AGE_NS_FIELD_NUMBER: _ClassVar[int]
    PING_AGE_NS_FIELD_NUMBER: _ClassVar[int]
    TICK_AGE_NS_FIELD_NUMBER: _ClassVar[int]
    WATCH_FIELD_NUMBER: _ClassVar[int]
    WATCH_SINCE_AGE_NS_FIELD_NUMBER: _ClassVar[int]
    pending_age_ns: int
    ping_age_ns: int
    tick_age_ns: int
    watch: int
    watch_since_age_ns: int
    def __init__(self, watch: _Optional[int] = ..., watch_since_age_ns: _Optional[int] = ..., tick_age_ns: _Optional[int] = ..., pending_age_ns: _Optional[int] = ..., ping_age_ns: _Optional[int] = ...) -> None: ...

class Committed(_message.Message):
    __slots__ = ["call", "iteration"]
    CALL_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    call: int
    iteration: int
    def __init__(self, call: _Optional[int] = ..., iteration: _Optional[int] = ...) -> None: ...

class Entered(_message.Message):
    __slots__ = ["call", "exchanges", "history", "iteration"]
    CALL_FIELD_NUMBER: _ClassVar[int]
    EXCHANGES_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    call: int
    exchanges: _containers.RepeatedCompositeFieldContainer[Exchanged]
    history: _containers.RepeatedCompositeFieldContainer[BeginIteration]
    iteration: int
    def __init__(self, call: _Optional[int] = ..., iteration: _Optional[int] = ..., history: _Optional[_Iterable[_Union[BeginIteration, _Mapping]]] = ..., exchanges: _Optional[_Iterable[_Union[Exchanged, _Mapping]]] = ...) -> None: ...

class ExchangeValue(_message.Message):
    __slots__ = ["call", "iteration", "name", "overdue", "rank", "value"]
    CALL_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OVERDUE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    call: int
    iteration: int
    name: str
    overdue: bool
    rank: int
    value: str
    def __init__(self, call: _Optional[int] = ..., iteration: _Optional[int] = ..., name: _Optional[str] = ..., rank: _Optional[int] = ..., value: _Optional[str] = ..., overdue: bool = ...) -> None: ...

class Exchanged(_message.Message):
    __slots__ = ["call", "iteration", "name", "values"]
    class ValuesEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: str
        def __init__(self, key: _Optional[int] = ..., value: _Optional[str] = ...) -> None: ...
    CALL_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    call: int
    iteration: int
    name: str
    values: _containers.ScalarMap[int, str]
    def __init__(self, call: _Optional[int] = ..., iteration: _Optional[int] = ..., name: _Optional[str] = ..., values: _Optional[_Mapping[int, str]] = ...) -> None: ...

class FaultRecord(_message.Message):
    __slots__ = ["interruption", "rank", "reason"]
    INTERRUPTION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    interruption: Interruption
    rank: int
    reason: str
    def __init__(self, rank: _Optional[int] = ..., interruption: _Optional[_Union[Interruption, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class FaultsReported(_message.Message):
    __slots__ = ["call", "iteration"]
    CALL_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    call: int
    iteration: int
    def __init__(self, call: _Optional[int] = ..., iteration: _Optional[int] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class Hello(_message.Message):
    __slots__ = ["can_share_page", "client_version", "cycle", "job_id", "local_rank", "monotonic_ns", "protocol", "rank", "stacks_fd", "stacks_signal", "token", "warm_up_steps"]
    CAN_SHARE_PAGE_FIELD_NUMBER: _ClassVar[int]
    CLIENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    CYCLE_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    LOCAL_RANK_FIELD_NUMBER: _ClassVar[int]
    MONOTONIC_NS_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    STACKS_FD_FIELD_NUMBER: _ClassVar[int]
    STACKS_SIGNAL_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    WARM_UP_STEPS_FIELD_NUMBER: _ClassVar[int]
    can_share_page: bool
    client_version: str
    cycle: int
    job_id: str
    local_rank: int
    monotonic_ns: int
    protocol: int
    rank: int
    stacks_fd: int
    stacks_signal: int
    token: bytes
    warm_up_steps: int
    def __init__(self, protocol: _Optional[int] = ..., token: _Optional[bytes] = ..., job_id: _Optional[str] = ..., cycle: _Optional[int] = ..., rank: _Optional[int] = ..., local_rank: _Optional[int] = ..., can_share_page: bool = ..., monotonic_ns: _Optional[int] = ..., client_version: _Optional[str] = ..., warm_up_steps: _Optional[int] = ..., stacks_signal: _Optional[int] = ..., stacks_fd: _Optional[int] = ...) -> None: ...

class Interrupt(_message.Message):
    __slots__ = ["call", "iteration"]
    CALL_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    call: int
    iteration: int
    def __init__(self, call: _Optional[int] = ..., iteration: _Optional[int] = ...) -> None: ...

class IterationBegan(_message.Message):
    __slots__ = ["active_rank", "active_world_size", "call", "iteration", "rank", "world_size"]
    ACTIVE_RANK_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    active_rank: int
    active_world_size: int
    call: int
    iteration: int
    rank: int
    world_size: int
    def __init__(self, call: _Optional[int] = ..., iteration: _Optional[int] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., active_rank: _Optional[int] = ..., active_world_size: _Optional[int] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ["left_ns", "request_id"]
    LEFT_NS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    left_ns: int
    request_id: int
    def __init__(self, request_id: _Optional[int] = ..., left_ns: _Optional[int] = ...) -> None: ...

class LeaseQuestion(_message.Message):
    __slots__ = ["request_id"]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    def __init__(self, request_id: _Optional[int] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ["heartbeat_s", "initial_heartbeat_s", "out_of_section_s", "sections"]
    HEARTBEAT_S_FIELD_NUMBER: _ClassVar[int]
    INITIAL_HEARTBEAT_S_FIELD_NUMBER: _ClassVar[int]
    OUT_OF_SECTION_S_FIELD_NUMBER: _ClassVar[int]
    SECTIONS_FIELD_NUMBER: _ClassVar[int]
    heartbeat_s: float
    initial_heartbeat_s: float
    out_of_section_s: float
    sections: _containers.RepeatedCompositeFieldContainer[SectionLimit]
    def __init__(self, initial_heartbeat_s: _Optional[float] = ..., heartbeat_s: _Optional[float] = ..., out_of_section_s: _Optional[float] = ..., sections: _Optional[_Iterable[_Union[SectionLimit, _Mapping]]] = ...) -> None: ...

class LimitsCalculated(_message.Message):
    __slots__ = ["limits"]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    limits: Limits
    def __init__(self, limits: _Optional[_Union[Limits, _Mapping]] = ...) -> None: ...

class OpenSection(_message.Message):
    __slots__ = ["age_ns", "slot"]
    AGE_NS_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    age_ns: int
    slot: int
    def __init__(self, slot: _Optional[int] = ..., age_ns: _Optional[int] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ["call_watch", "first_step_seen", "heartbeat_age_ns", "heartbeats", "initialised_age_ns", "open_sections", "out_of_section_age_ns", "steps_since_first"]
    CALL_WATCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_SEEN_FIELD_NUMBER: _ClassVar[int]
    HEARTBEATS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_AGE_NS_FIELD_NUMBER: _ClassVar[int]
    INITIALISED_AGE_NS_FIELD_NUMBER: _ClassVar[int]
    OPEN_SECTIONS_FIELD_NUMBER: _ClassVar[int]
    OUT_OF_SECTION_AGE_NS_FIELD_NUMBER: _ClassVar[int]
    STEPS_SINCE_FIRST_FIELD_NUMBER: _ClassVar[int]
    call_watch: CallWatch
    first_step_seen: bool
    heartbeat_age_ns: int
    heartbeats: int
    initialised_age_ns: int
    open_sections: _containers.RepeatedCompositeFieldContainer[OpenSection]
    out_of_section_age_ns: int
    steps_since_first: int
    def __init__(self, initialised_age_ns: _Optional[int] = ..., heartbeat_age_ns: _Optional[int] = ..., heartbeats: _Optional[int] = ..., out_of_section_age_ns: _Optional[int] = ..., first_step_seen: bool = ..., steps_since_first: _Optional[int] = ..., open_sections: _Optional[_Iterable[_Union[OpenSection, _Mapping]]] = ..., call_watch: _Optional[_Union[CallWatch, _Mapping]] = ...) -> None: ...

class RankFault(_message.Message):
    __slots__ = ["call", "interruption", "iteration", "rank", "reason"]
    CALL_FIELD_NUMBER: _ClassVar[int]
    INTERRUPTION_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    call: int
    interruption: Interruption
    iteration: int
    rank: int
    reason: str
    def __init__(self, call: _Optional[int] = ..., iteration: _Optional[int] = ..., rank: _Optional[int] = ..., interruption: _Optional[_Union[Interruption, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class RanksMissing(_message.Message):
    __slots__ = ["call", "ranks", "total"]
    CALL_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    call: int
    ranks: _containers.RepeatedScalarFieldContainer[int]
    total: int
    def __init__(self, call: _Optional[int] = ..., ranks: _Optional[_Iterable[int]] = ..., total: _Optional[int] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ["reason", "retry"]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RETRY_FIELD_NUMBER: _ClassVar[int]
    reason: str
    retry: bool
    def __init__(self, reason: _Optional[str] = ..., retry: bool = ...) -> None: ...

class Restart(_message.Message):
    __slots__ = ["call", "iteration", "records"]
    CALL_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    call: int
    iteration: int
    records: _containers.RepeatedCompositeFieldContainer[FaultRecord]
    def __init__(self, call: _Optional[int] = ..., iteration: _Optional[int] = ..., records: _Optional[_Iterable[_Union[FaultRecord, _Mapping]]] = ...) -> None: ...

class SectionLimit(_message.Message):
    __slots__ = ["limit_s", "name"]
    LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    limit_s: float
    name: str
    def __init__(self, name: _Optional[str] = ..., limit_s: _Optional[float] = ...) -> None: ...

class StacksAnswer(_message.Message):
    __slots__ = ["request_id", "text"]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    text: str
    def __init__(self, request_id: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class StacksRequest(_message.Message):
    __slots__ = ["request_id"]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    def __init__(self, request_id: _Optional[int] = ...) -> None: ...

class SupervisorFrame(_message.Message):
    __slots__ = ["accepted", "begin_iteration", "call_completed", "call_refused", "call_underway", "committed", "entered", "exchanged", "interrupt", "lease", "ranks_missing", "refused", "restart", "stacks_request", "welcome"]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    BEGIN_ITERATION_FIELD_NUMBER: _ClassVar[int]
    CALL_COMPLETED_FIELD_NUMBER: _ClassVar[int]
    CALL_REFUSED_FIELD_NUMBER: _ClassVar[int]
    CALL_UNDERWAY_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    ENTERED_FIELD_NUMBER: _ClassVar[int]
    EXCHANGED_FIELD_NUMBER: _ClassVar[int]
    INTERRUPT_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    RANKS_MISSING_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    RESTART_FIELD_NUMBER: _ClassVar[int]
    STACKS_REQUEST_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    accepted: Accepted
    begin_iteration: BeginIteration
    call_completed: CallCompleted
    call_refused: CallRefused
    call_underway: CallUnderway
    committed: Committed
    entered: Entered
    exchanged: Exchanged
    interrupt: Interrupt
    lease: Lease
    ranks_missing: RanksMissing
    refused: Refused
    restart: Restart
    stacks_request: StacksRequest
    welcome: Welcome
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., accepted: _Optional[_Union[Accepted, _Mapping]] = ..., stacks_request: _Optional[_Union[StacksRequest, _Mapping]] = ..., lease: _Optional[_Union[Lease, _Mapping]] = ..., entered: _Optional[_Union[Entered, _Mapping]] = ..., interrupt: _Optional[_Union[Interrupt, _Mapping]] = ..., restart: _Optional[_Union[Restart, _Mapping]] = ..., begin_iteration: _Optional[_Union[BeginIteration, _Mapping]] = ..., call_completed: _Optional[_Union[CallCompleted, _Mapping]] = ..., committed: _Optional[_Union[Committed, _Mapping]] = ..., exchanged: _Optional[_Union[Exchanged, _Mapping]] = ..., call_refused: _Optional[_Union[CallRefused, _Mapping]] = ..., call_underway: _Optional[_Union[CallUnderway, _Mapping]] = ..., ranks_missing: _Optional[_Union[RanksMissing, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ["answers_lease_questions", "cycle", "install_exception_hook", "learned_limit_floor_s", "lease_is_unbounded", "limits", "page_shared", "protocol", "rank", "safety_factor", "sections", "warm_up_steps"]
    ANSWERS_LEASE_QUESTIONS_FIELD_NUMBER: _ClassVar[int]
    CYCLE_FIELD_NUMBER: _ClassVar[int]
    INSTALL_EXCEPTION_HOOK_FIELD_NUMBER: _ClassVar[int]
    LEARNED_LIMIT_FLOOR_S_FIELD_NUMBER: _ClassVar[int]
    LEASE_IS_UNBOUNDED_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    PAGE_SHARED_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    SAFETY_FACTOR_FIELD_NUMBER: _ClassVar[int]
    SECTIONS_FIELD_NUMBER: _ClassVar[int]
    WARM_UP_STEPS_FIELD_NUMBER: _ClassVar[int]
    answers_lease_questions: bool
    cycle: int
    install_exception_hook: bool
    learned_limit_floor_s: float
    lease_is_unbounded: bool
    limits: Limits
    page_shared: bool
    protocol: int
    rank: int
    safety_factor: float
    sections: _containers.RepeatedScalarFieldContainer[str]
    warm_up_steps: int
    def __init__(self, protocol: _Optional[int] = ..., cycle: _Optional[int] = ..., rank: _Optional[int] = ..., page_shared: bool = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., sections: _Optional[_Iterable[str]] = ..., warm_up_steps: _Optional[int] = ..., safety_factor: _Optional[float] = ..., install_exception_hook: bool = ..., learned_limit_floor_s: _Optional[float] = ..., answers_lease_questions: bool = ..., lease_is_unbounded: bool = ...) -> None: ...

class WorkerFrame(_message.Message):
    __slots__ = ["barrier_arrive", "call_enter", "call_leave", "exchange_value", "faults_reported", "goodbye", "hello", "iteration_began", "lease_question", "limits_calculated", "progress", "rank_fault", "stacks_answer", "workload_control"]
    BARRIER_ARRIVE_FIELD_NUMBER: _ClassVar[int]
    CALL_ENTER_FIELD_NUMBER: _ClassVar[int]
    CALL_LEAVE_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_VALUE_FIELD_NUMBER: _ClassVar[int]
    FAULTS_REPORTED_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ITERATION_BEGAN_FIELD_NUMBER: _ClassVar[int]
    LEASE_QUESTION_FIELD_NUMBER: _ClassVar[int]
    LIMITS_CALCULATED_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    RANK_FAULT_FIELD_NUMBER: _ClassVar[int]
    STACKS_ANSWER_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_CONTROL_FIELD_NUMBER: _ClassVar[int]
    barrier_arrive: BarrierArrive
    call_enter: CallEnter
    call_leave: CallLeave
    exchange_value: ExchangeValue
    faults_reported: FaultsReported
    goodbye: Goodbye
    hello: Hello
    iteration_began: IterationBegan
    lease_question: LeaseQuestion
    limits_calculated: LimitsCalculated
    progress: Progress
    rank_fault: RankFault
    stacks_answer: StacksAnswer
    workload_control: WorkloadControl
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., limits_calculated: _Optional[_Union[LimitsCalculated, _Mapping]] = ..., workload_control: _Optional[_Union[WorkloadControl, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., stacks_answer: _Optional[_Union[StacksAnswer, _Mapping]] = ..., lease_question: _Optional[_Union[LeaseQuestion, _Mapping]] = ..., call_enter: _Optional[_Union[CallEnter, _Mapping]] = ..., iteration_began: _Optional[_Union[IterationBegan, _Mapping]] = ..., rank_fault: _Optional[_Union[RankFault, _Mapping]] = ..., faults_reported: _Optional[_Union[FaultsReported, _Mapping]] = ..., barrier_arrive: _Optional[_Union[BarrierArrive, _Mapping]] = ..., call_leave: _Optional[_Union[CallLeave, _Mapping]] = ..., exchange_value: _Optional[_Union[ExchangeValue, _Mapping]] = ...) -> None: ...

class WorkloadControl(_message.Message):
    __slots__ = ["action", "description", "request_id"]
    class Action(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = []
    ACTION_FIELD_NUMBER: _ClassVar[int]
    CONTINUE: WorkloadControl.Action
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_THIS_NODE: WorkloadControl.Action
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SHUTDOWN_WORKLOAD: WorkloadControl.Action
    action: WorkloadControl.Action
    description: str
    request_id: int
    def __init__(self, action: _Optional[_Union[WorkloadControl.Action, str]] = ..., description: _Optional[str] = ..., request_id: _Optional[int] = ...) -> None: ...

class Interruption(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
