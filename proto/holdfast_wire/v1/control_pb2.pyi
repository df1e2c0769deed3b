from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor
JOB_STATE_FAILED: JobState
JOB_STATE_PENDING: JobState
JOB_STATE_RENDEZVOUS: JobState
JOB_STATE_RESTARTING: JobState
JOB_STATE_RUNNING: JobState
JOB_STATE_STARTING: JobState
JOB_STATE_STOPPED: JobState
JOB_STATE_STOPPING: JobState
JOB_STATE_SUCCEEDED: JobState
JOB_STATE_UNSPECIFIED: JobState

class Check(_message.Message):
    __slots__ = ["check", "found_at_ns", "reason", "subject", "took_s", "verdict"]
    CHECK_FIELD_NUMBER: _ClassVar[int]
    FOUND_AT_NS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    TOOK_S_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    check: str
    found_at_ns: int
    reason: str
    subject: str
    took_s: float
    verdict: str
    def __init__(self, check: _Optional[str] = ..., subject: _Optional[str] = ..., verdict: _Optional[str] = ..., reason: _Optional[str] = ..., took_s: _Optional[float] = ..., found_at_ns: _Optional[int] = ...) -> None: ...

class CordonNodeRequest(_message.Message):
    __slots__ = ["leaves", "name", "reason"]
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    leaves: bool
    name: str
    reason: str
    def __init__(self, name: _Optional[str] = ..., reason: _Optional[str] = ..., leaves: bool = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ["at_ns", "cycle", "details", "iteration", "job_id", "kind", "node", "rank", "reason", "sequence"]
    class DetailsEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    AT_NS_FIELD_NUMBER: _ClassVar[int]
    CYCLE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    at_ns: int
    cycle: int
    details: _containers.ScalarMap[str, str]
    iteration: int
    job_id: str
    kind: str
    node: str
    rank: int
    reason: str
    sequence: int
    def __init__(self, at_ns: _Optional[int] = ..., job_id: _Optional[str] = ..., cycle: _Optional[int] = ..., iteration: _Optional[int] = ..., node: _Optional[str] = ..., rank: _Optional[int] = ..., kind: _Optional[str] = ..., reason: _Optional[str] = ..., details: _Optional[_Mapping[str, str]] = ..., sequence: _Optional[int] = ...) -> None: ...

class GetJobRequest(_message.Message):
    __slots__ = ["job_id", "until_left"]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    UNTIL_LEFT_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    until_left: str
    def __init__(self, job_id: _Optional[str] = ..., until_left: _Optional[str] = ...) -> None: ...

class GetNodeRequest(_message.Message):
    __slots__ = ["name"]
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class GetStacksRequest(_message.Message):
    __slots__ = ["job_id", "rank"]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    rank: int
    def __init__(self, job_id: _Optional[str] = ..., rank: _Optional[int] = ...) -> None: ...

class GetStacksResponse(_message.Message):
    __slots__ = ["groups", "notes", "source"]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[StackGroup]
    notes: _containers.RepeatedScalarFieldContainer[str]
    source: str
    def __init__(self, groups: _Optional[_Iterable[_Union[StackGroup, _Mapping]]] = ..., notes: _Optional[_Iterable[str]] = ..., source: _Optional[str] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ["command", "cycle", "ended_at_ns", "exit_code", "iteration", "job_id", "log_dir", "max_restarts", "nodes", "ranks", "reason", "restarts_used", "script", "state", "stragglers", "submitted_at_ns", "supervisor_pid", "waited_for"]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    CYCLE_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_NS_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    LOG_DIR_FIELD_NUMBER: _ClassVar[int]
    MAX_RESTARTS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_USED_FIELD_NUMBER: _ClassVar[int]
    SCRIPT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STRAGGLERS_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_AT_NS_FIELD_NUMBER: _ClassVar[int]
    SUPERVISOR_PID_FIELD_NUMBER: _ClassVar[int]
    WAITED_FOR_FIELD_NUMBER: _ClassVar[int]
    command: _containers.RepeatedScalarFieldContainer[str]
    cycle: int
    ended_at_ns: int
    exit_code: int
    iteration: int
    job_id: str
    log_dir: str
    max_restarts: int
    nodes: _containers.RepeatedCompositeFieldContainer[JobNode]
    ranks: _containers.RepeatedCompositeFieldContainer[Rank]
    reason: str
    restarts_used: int
    script: str
    state: JobState
    stragglers: _containers.RepeatedCompositeFieldContainer[Straggler]
    submitted_at_ns: int
    supervisor_pid: int
    waited_for: str
    def __init__(self, job_id: _Optional[str] = ..., state: _Optional[_Union[JobState, str]] = ..., cycle: _Optional[int] = ..., iteration: _Optional[int] = ..., max_restarts: _Optional[int] = ..., restarts_used: _Optional[int] = ..., reason: _Optional[str] = ..., nodes: _Optional[_Iterable[_Union[JobNode, _Mapping]]] = ..., ranks: _Optional[_Iterable[_Union[Rank, _Mapping]]] = ..., exit_code: _Optional[int] = ..., submitted_at_ns: _Optional[int] = ..., ended_at_ns: _Optional[int] = ..., log_dir: _Optional[str] = ..., command: _Optional[_Iterable[str]] = ..., supervisor_pid: _Optional[int] = ..., stragglers: _Optional[_Iterable[_Union[Straggler, _Mapping]]] = ..., script: _Optional[str] = ..., waited_for: _Optional[str] = ...) -> None: ...

class JobNode(_message.Message):
    __slots__ = ["checks", "group_rank", "heard_at_ns", "log_dir", "lost_at_ns", "name", "ranks", "reason", "state", "unreachable_pid", "unreachable_state"]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    GROUP_RANK_FIELD_NUMBER: _ClassVar[int]
    HEARD_AT_NS_FIELD_NUMBER: _ClassVar[int]
    LOG_DIR_FIELD_NUMBER: _ClassVar[int]
    LOST_AT_NS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    UNREACHABLE_PID_FIELD_NUMBER: _ClassVar[int]
    UNREACHABLE_STATE_FIELD_NUMBER: _ClassVar[int]
    checks: _containers.RepeatedCompositeFieldContainer[Check]
    group_rank: int
    heard_at_ns: int
    log_dir: str
    lost_at_ns: int
    name: str
    ranks: _containers.RepeatedScalarFieldContainer[int]
    reason: str
    state: str
    unreachable_pid: int
    unreachable_state: str
    def __init__(self, name: _Optional[str] = ..., state: _Optional[str] = ..., group_rank: _Optional[int] = ..., reason: _Optional[str] = ..., heard_at_ns: _Optional[int] = ..., lost_at_ns: _Optional[int] = ..., ranks: _Optional[_Iterable[int]] = ..., log_dir: _Optional[str] = ..., checks: _Optional[_Iterable[_Union[Check, _Mapping]]] = ..., unreachable_pid: _Optional[int] = ..., unreachable_state: _Optional[str] = ...) -> None: ...

class LeadRendezvousRequest(_message.Message):
    __slots__ = ["everywhere", "host", "job_id", "port", "tls_ca", "tls_cert", "tls_key", "token_file"]
    EVERYWHERE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    TLS_CA_FIELD_NUMBER: _ClassVar[int]
    TLS_CERT_FIELD_NUMBER: _ClassVar[int]
    TLS_KEY_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FILE_FIELD_NUMBER: _ClassVar[int]
    everywhere: bool
    host: str
    job_id: str
    port: int
    tls_ca: str
    tls_cert: str
    tls_key: str
    token_file: str
    def __init__(self, job_id: _Optional[str] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., everywhere: bool = ..., token_file: _Optional[str] = ..., tls_cert: _Optional[str] = ..., tls_key: _Optional[str] = ..., tls_ca: _Optional[str] = ...) -> None: ...

class LeadRendezvousResponse(_message.Message):
    __slots__ = ["leads"]
    LEADS_FIELD_NUMBER: _ClassVar[int]
    leads: bool
    def __init__(self, leads: bool = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ["include_ended", "page_size", "page_token"]
    INCLUDE_ENDED_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    include_ended: bool
    page_size: int
    page_token: str
    def __init__(self, include_ended: bool = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListJobsResponse(_message.Message):
    __slots__ = ["jobs", "next_page_token"]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    next_page_token: str
    def __init__(self, jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ListNodesRequest(_message.Message):
    __slots__ = ["page_size", "page_token"]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListNodesResponse(_message.Message):
    __slots__ = ["next_page_token", "nodes"]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    next_page_token: str
    nodes: _containers.RepeatedCompositeFieldContainer[Node]
    def __init__(self, nodes: _Optional[_Iterable[_Union[Node, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class LogChunk(_message.Message):
    __slots__ = ["cycle", "data", "file", "is_stderr", "note", "offset", "rank"]
    CYCLE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    IS_STDERR_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    cycle: int
    data: bytes
    file: int
    is_stderr: bool
    note: str
    offset: int
    rank: int
    def __init__(self, rank: _Optional[int] = ..., cycle: _Optional[int] = ..., is_stderr: bool = ..., data: _Optional[bytes] = ..., note: _Optional[str] = ..., file: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ["checks", "cordon_ends", "job_ids", "leaves", "name", "reason", "started_at_ns", "state", "supervisor_pid", "version"]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    CORDON_ENDS_FIELD_NUMBER: _ClassVar[int]
    JOB_IDS_FIELD_NUMBER: _ClassVar[int]
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_NS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SUPERVISOR_PID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    checks: _containers.RepeatedCompositeFieldContainer[Check]
    cordon_ends: bool
    job_ids: _containers.RepeatedScalarFieldContainer[str]
    leaves: _containers.RepeatedScalarFieldContainer[str]
    name: str
    reason: str
    started_at_ns: int
    state: str
    supervisor_pid: int
    version: str
    def __init__(self, name: _Optional[str] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., job_ids: _Optional[_Iterable[str]] = ..., supervisor_pid: _Optional[int] = ..., version: _Optional[str] = ..., started_at_ns: _Optional[int] = ..., checks: _Optional[_Iterable[_Union[Check, _Mapping]]] = ..., leaves: _Optional[_Iterable[str]] = ..., cordon_ends: bool = ...) -> None: ...

class Rank(_message.Message):
    __slots__ = ["cycle_started_at_ns", "exit_code", "exit_signal", "heartbeat_age_s", "heartbeat_limit_s", "local_rank", "main_thread_age_s", "main_thread_limit_s", "node", "pid", "rank", "sections", "state"]
    CYCLE_STARTED_AT_NS_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    EXIT_SIGNAL_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_AGE_S_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    LOCAL_RANK_FIELD_NUMBER: _ClassVar[int]
    MAIN_THREAD_AGE_S_FIELD_NUMBER: _ClassVar[int]
    MAIN_THREAD_LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    SECTIONS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    cycle_started_at_ns: int
    exit_code: int
    exit_signal: int
    heartbeat_age_s: float
    heartbeat_limit_s: float
    local_rank: int
    main_thread_age_s: float
    main_thread_limit_s: float
    node: str
    pid: int
    rank: int
    sections: _containers.RepeatedCompositeFieldContainer[Section]
    state: str
    def __init__(self, rank: _Optional[int] = ..., local_rank: _Optional[int] = ..., node: _Optional[str] = ..., pid: _Optional[int] = ..., state: _Optional[str] = ..., heartbeat_age_s: _Optional[float] = ..., sections: _Optional[_Iterable[_Union[Section, _Mapping]]] = ..., cycle_started_at_ns: _Optional[int] = ..., exit_code: _Optional[int] = ..., exit_signal: _Optional[int] = ..., heartbeat_limit_s: _Optional[float] = ..., main_thread_age_s: _Optional[float] = ..., main_thread_limit_s: _Optional[float] = ...) -> None: ...

class RestartJobRequest(_message.Message):
    __slots__ = ["job_id", "reason"]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    reason: str
    def __init__(self, job_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class RestartJobResponse(_message.Message):
    __slots__ = ["next_cycle"]
    NEXT_CYCLE_FIELD_NUMBER: _ClassVar[int]
    next_cycle: int
    def __init__(self, next_cycle: _Optional[int] = ...) -> None: ...

class Section(_message.Message):
    __slots__ = ["age_s", "limit_s", "name"]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    age_s: float
    limit_s: float
    name: str
    def __init__(self, name: _Optional[str] = ..., age_s: _Optional[float] = ..., limit_s: _Optional[float] = ...) -> None: ...

class StackGroup(_message.Message):
    __slots__ = ["ranks", "stack"]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    STACK_FIELD_NUMBER: _ClassVar[int]
    ranks: _containers.RepeatedScalarFieldContainer[int]
    stack: str
    def __init__(self, ranks: _Optional[_Iterable[int]] = ..., stack: _Optional[str] = ...) -> None: ...

class StopJobRequest(_message.Message):
    __slots__ = ["grace_s", "job_id", "of_node", "reason", "signal"]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    OF_NODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    grace_s: float
    job_id: str
    of_node: bool
    reason: str
    signal: int
    def __init__(self, job_id: _Optional[str] = ..., reason: _Optional[str] = ..., signal: _Optional[int] = ..., grace_s: _Optional[float] = ..., of_node: bool = ...) -> None: ...

class StopJobResponse(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class Straggler(_message.Message):
    __slots__ = ["is_node", "median_s", "node", "of_ranks", "ranks", "ratio", "reason", "section", "took_s"]
    IS_NODE_FIELD_NUMBER: _ClassVar[int]
    MEDIAN_S_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    OF_RANKS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    RATIO_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SECTION_FIELD_NUMBER: _ClassVar[int]
    TOOK_S_FIELD_NUMBER: _ClassVar[int]
    is_node: bool
    median_s: float
    node: str
    of_ranks: int
    ranks: _containers.RepeatedScalarFieldContainer[int]
    ratio: float
    reason: str
    section: str
    took_s: float
    def __init__(self, section: _Optional[str] = ..., node: _Optional[str] = ..., ranks: _Optional[_Iterable[int]] = ..., is_node: bool = ..., ratio: _Optional[float] = ..., took_s: _Optional[float] = ..., median_s: _Optional[float] = ..., of_ranks: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class StreamLogsRequest(_message.Message):
    __slots__ = ["cycle", "first_cycle", "follow", "job_id", "rank", "tail_lines", "this_node"]
    CYCLE_FIELD_NUMBER: _ClassVar[int]
    FIRST_CYCLE_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    TAIL_LINES_FIELD_NUMBER: _ClassVar[int]
    THIS_NODE_FIELD_NUMBER: _ClassVar[int]
    cycle: int
    first_cycle: int
    follow: bool
    job_id: str
    rank: int
    tail_lines: int
    this_node: bool
    def __init__(self, job_id: _Optional[str] = ..., rank: _Optional[int] = ..., follow: bool = ..., cycle: _Optional[int] = ..., tail_lines: _Optional[int] = ..., this_node: bool = ..., first_cycle: _Optional[int] = ...) -> None: ...

class SubmitJobRequest(_message.Message):
    __slots__ = ["environment", "other_variables", "spec_json", "umask"]
    class EnvironmentEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    OTHER_VARIABLES_FIELD_NUMBER: _ClassVar[int]
    SPEC_JSON_FIELD_NUMBER: _ClassVar[int]
    UMASK_FIELD_NUMBER: _ClassVar[int]
    environment: _containers.ScalarMap[str, str]
    other_variables: _containers.RepeatedScalarFieldContainer[bytes]
    spec_json: str
    umask: int
    def __init__(self, spec_json: _Optional[str] = ..., environment: _Optional[_Mapping[str, str]] = ..., other_variables: _Optional[_Iterable[bytes]] = ..., umask: _Optional[int] = ...) -> None: ...

class SubmitJobResponse(_message.Message):
    __slots__ = ["job_id"]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class UncordonNodeRequest(_message.Message):
    __slots__ = ["name"]
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class WatchJobRequest(_message.Message):
    __slots__ = ["after_sequence", "follow", "job_id", "this_node"]
    AFTER_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    THIS_NODE_FIELD_NUMBER: _ClassVar[int]
    after_sequence: int
    follow: bool
    job_id: str
    this_node: bool
    def __init__(self, job_id: _Optional[str] = ..., after_sequence: _Optional[int] = ..., follow: bool = ..., this_node: bool = ...) -> None: ...

class WatchJobResponse(_message.Message):
    __slots__ = ["event", "note", "snapshot"]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    event: Event
    note: str
    snapshot: Job
    def __init__(self, snapshot: _Optional[_Union[Job, _Mapping]] = ..., event: _Optional[_Union[Event, _Mapping]] = ..., note: _Optional[str] = ...) -> None: ...

class JobState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
