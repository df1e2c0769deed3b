from holdfast_wire.v1 import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ActOnHang(_message.Message):
    __slots__ = ["cycle", "verdict"]
    CYCLE_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    cycle: int
    verdict: str
    def __init__(self, cycle: _Optional[int] = ..., verdict: _Optional[str] = ...) -> None: ...

class AgentClosed(_message.Message):
    __slots__ = ["failed", "node", "reason"]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    failed: bool
    node: str
    reason: str
    def __init__(self, node: _Optional[str] = ..., reason: _Optional[str] = ..., failed: bool = ...) -> None: ...

class AgentJoined(_message.Message):
    __slots__ = ["node", "order", "rules"]
    NODE_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    node: str
    order: int
    rules: ElasticRules
    def __init__(self, node: _Optional[str] = ..., rules: _Optional[_Union[ElasticRules, _Mapping]] = ..., order: _Optional[int] = ...) -> None: ...

class AgentLeft(_message.Message):
    __slots__ = ["node", "reason"]
    NODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    node: str
    reason: str
    def __init__(self, node: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Alive(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class Answer(_message.Message):
    __slots__ = ["done", "events", "logs", "part", "refused", "sections_taken", "stacks", "update_taken", "whole"]
    DONE_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    SECTIONS_TAKEN_FIELD_NUMBER: _ClassVar[int]
    STACKS_FIELD_NUMBER: _ClassVar[int]
    UPDATE_TAKEN_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    done: Done
    events: Events
    logs: Logs
    part: Part
    refused: Refused
    sections_taken: SectionsTaken
    stacks: Stacks
    update_taken: UpdateTaken
    whole: Whole
    def __init__(self, part: _Optional[_Union[Part, _Mapping]] = ..., whole: _Optional[_Union[Whole, _Mapping]] = ..., update_taken: _Optional[_Union[UpdateTaken, _Mapping]] = ..., events: _Optional[_Union[Events, _Mapping]] = ..., stacks: _Optional[_Union[Stacks, _Mapping]] = ..., logs: _Optional[_Union[Logs, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., sections_taken: _Optional[_Union[SectionsTaken, _Mapping]] = ...) -> None: ...

class Answered(_message.Message):
    __slots__ = ["answer", "is_last", "job_id", "number", "part", "to"]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    answer: bytes
    is_last: bool
    job_id: str
    number: int
    part: int
    to: str
    def __init__(self, job_id: _Optional[str] = ..., to: _Optional[str] = ..., number: _Optional[int] = ..., part: _Optional[int] = ..., is_last: bool = ..., answer: _Optional[bytes] = ...) -> None: ...

class Asked(_message.Message):
    __slots__ = ["by", "job_id", "number", "question", "to"]
    BY_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    by: str
    job_id: str
    number: int
    question: bytes
    to: str
    def __init__(self, job_id: _Optional[str] = ..., to: _Optional[str] = ..., by: _Optional[str] = ..., number: _Optional[int] = ..., question: _Optional[bytes] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ["cycle", "epoch", "first_rank", "group_rank", "group_world_size", "world_size"]
    CYCLE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_RANK_FIELD_NUMBER: _ClassVar[int]
    GROUP_RANK_FIELD_NUMBER: _ClassVar[int]
    GROUP_WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    cycle: int
    epoch: int
    first_rank: int
    group_rank: int
    group_world_size: int
    world_size: int
    def __init__(self, cycle: _Optional[int] = ..., group_rank: _Optional[int] = ..., group_world_size: _Optional[int] = ..., world_size: _Optional[int] = ..., first_rank: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class BeginRound(_message.Message):
    __slots__ = ["host", "port", "rank", "reason", "round", "world_size"]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    host: str
    port: int
    rank: int
    reason: str
    round: int
    world_size: int
    def __init__(self, round: _Optional[int] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class CallReport(_message.Message):
    __slots__ = ["cycle", "node", "told"]
    CYCLE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    TOLD_FIELD_NUMBER: _ClassVar[int]
    cycle: int
    node: str
    told: _containers.RepeatedCompositeFieldContainer[Told]
    def __init__(self, node: _Optional[str] = ..., cycle: _Optional[int] = ..., told: _Optional[_Iterable[_Union[Told, _Mapping]]] = ...) -> None: ...

class Cause(_message.Message):
    __slots__ = ["age_s", "sentence"]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    age_s: float
    sentence: str
    def __init__(self, sentence: _Optional[str] = ..., age_s: _Optional[float] = ...) -> None: ...

class CheckReport(_message.Message):
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
    def __init__(self, check: _Optional[str] = ..., verdict: _Optional[str] = ..., reason: _Optional[str] = ..., took_s: _Optional[float] = ..., subject: _Optional[str] = ..., found_at_ns: _Optional[int] = ...) -> None: ...

class ChildProcess(_message.Message):
    __slots__ = ["pid", "state"]
    PID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    pid: int
    state: str
    def __init__(self, pid: _Optional[int] = ..., state: _Optional[str] = ...) -> None: ...

class CloseLogs(_message.Message):
    __slots__ = ["reader"]
    READER_FIELD_NUMBER: _ClassVar[int]
    reader: str
    def __init__(self, reader: _Optional[str] = ...) -> None: ...

class ClusterFrame(_message.Message):
    __slots__ = ["alive", "answered", "asked", "elastic_ordered", "elastic_reported", "greeting", "hello", "ordered", "refusal", "reported", "serve_relay", "welcome"]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    ELASTIC_ORDERED_FIELD_NUMBER: _ClassVar[int]
    ELASTIC_REPORTED_FIELD_NUMBER: _ClassVar[int]
    GREETING_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ORDERED_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    REPORTED_FIELD_NUMBER: _ClassVar[int]
    SERVE_RELAY_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    alive: Alive
    answered: Answered
    asked: Asked
    elastic_ordered: ElasticOrdered
    elastic_reported: ElasticReported
    greeting: Greeting
    hello: Hello
    ordered: Ordered
    refusal: Refusal
    reported: Reported
    serve_relay: ServeRelay
    welcome: Welcome
    def __init__(self, greeting: _Optional[_Union[Greeting, _Mapping]] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., alive: _Optional[_Union[Alive, _Mapping]] = ..., ordered: _Optional[_Union[Ordered, _Mapping]] = ..., reported: _Optional[_Union[Reported, _Mapping]] = ..., asked: _Optional[_Union[Asked, _Mapping]] = ..., answered: _Optional[_Union[Answered, _Mapping]] = ..., serve_relay: _Optional[_Union[ServeRelay, _Mapping]] = ..., elastic_ordered: _Optional[_Union[ElasticOrdered, _Mapping]] = ..., elastic_reported: _Optional[_Union[ElasticReported, _Mapping]] = ...) -> None: ...

class Conclude(_message.Message):
    __slots__ = ["verdict"]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    verdict: Verdict
    def __init__(self, verdict: _Optional[_Union[Verdict, _Mapping]] = ...) -> None: ...

class Detail(_message.Message):
    __slots__ = ["detail", "key"]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    detail: str
    key: str
    def __init__(self, key: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ["node"]
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: NodeReport
    def __init__(self, node: _Optional[_Union[NodeReport, _Mapping]] = ...) -> None: ...

class ElasticOrder(_message.Message):
    __slots__ = ["begin_round", "refuse_agent", "serve_round_store", "tell_closed", "tell_spares", "tell_waiting"]
    BEGIN_ROUND_FIELD_NUMBER: _ClassVar[int]
    REFUSE_AGENT_FIELD_NUMBER: _ClassVar[int]
    SERVE_ROUND_STORE_FIELD_NUMBER: _ClassVar[int]
    TELL_CLOSED_FIELD_NUMBER: _ClassVar[int]
    TELL_SPARES_FIELD_NUMBER: _ClassVar[int]
    TELL_WAITING_FIELD_NUMBER: _ClassVar[int]
    begin_round: BeginRound
    refuse_agent: RefuseAgent
    serve_round_store: ServeRoundStore
    tell_closed: TellClosed
    tell_spares: TellSpares
    tell_waiting: TellWaiting
    def __init__(self, serve_round_store: _Optional[_Union[ServeRoundStore, _Mapping]] = ..., begin_round: _Optional[_Union[BeginRound, _Mapping]] = ..., tell_waiting: _Optional[_Union[TellWaiting, _Mapping]] = ..., tell_closed: _Optional[_Union[TellClosed, _Mapping]] = ..., refuse_agent: _Optional[_Union[RefuseAgent, _Mapping]] = ..., tell_spares: _Optional[_Union[TellSpares, _Mapping]] = ...) -> None: ...

class ElasticOrdered(_message.Message):
    __slots__ = ["order"]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    order: ElasticOrder
    def __init__(self, order: _Optional[_Union[ElasticOrder, _Mapping]] = ...) -> None: ...

class ElasticReport(_message.Message):
    __slots__ = ["agent_closed", "agent_joined", "agent_left", "round_store_served"]
    AGENT_CLOSED_FIELD_NUMBER: _ClassVar[int]
    AGENT_JOINED_FIELD_NUMBER: _ClassVar[int]
    AGENT_LEFT_FIELD_NUMBER: _ClassVar[int]
    ROUND_STORE_SERVED_FIELD_NUMBER: _ClassVar[int]
    agent_closed: AgentClosed
    agent_joined: AgentJoined
    agent_left: AgentLeft
    round_store_served: RoundStoreServed
    def __init__(self, agent_joined: _Optional[_Union[AgentJoined, _Mapping]] = ..., agent_left: _Optional[_Union[AgentLeft, _Mapping]] = ..., agent_closed: _Optional[_Union[AgentClosed, _Mapping]] = ..., round_store_served: _Optional[_Union[RoundStoreServed, _Mapping]] = ...) -> None: ...

class ElasticReported(_message.Message):
    __slots__ = ["report"]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    report: ElasticReport
    def __init__(self, report: _Optional[_Union[ElasticReport, _Mapping]] = ...) -> None: ...

class ElasticRules(_message.Message):
    __slots__ = ["join_timeout_s", "last_call_timeout_s", "max_nodes", "min_nodes"]
    JOIN_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    LAST_CALL_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    MAX_NODES_FIELD_NUMBER: _ClassVar[int]
    MIN_NODES_FIELD_NUMBER: _ClassVar[int]
    join_timeout_s: float
    last_call_timeout_s: float
    max_nodes: int
    min_nodes: int
    def __init__(self, min_nodes: _Optional[int] = ..., max_nodes: _Optional[int] = ..., join_timeout_s: _Optional[float] = ..., last_call_timeout_s: _Optional[float] = ...) -> None: ...

class EndDeadlocked(_message.Message):
    __slots__ = ["cycle", "reason"]
    CYCLE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    cycle: int
    reason: str
    def __init__(self, cycle: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Events(_message.Message):
    __slots__ = ["events", "is_last"]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[RecordedEvent]
    is_last: bool
    def __init__(self, events: _Optional[_Iterable[_Union[RecordedEvent, _Mapping]]] = ..., is_last: bool = ...) -> None: ...

class Evidence(_message.Message):
    __slots__ = ["facts", "groups", "notes", "source", "took_s"]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TOOK_S_FIELD_NUMBER: _ClassVar[int]
    facts: _containers.RepeatedCompositeFieldContainer[RankFacts]
    groups: _containers.RepeatedCompositeFieldContainer[StackGroup]
    notes: _containers.RepeatedScalarFieldContainer[str]
    source: str
    took_s: float
    def __init__(self, groups: _Optional[_Iterable[_Union[StackGroup, _Mapping]]] = ..., notes: _Optional[_Iterable[str]] = ..., source: _Optional[str] = ..., took_s: _Optional[float] = ..., facts: _Optional[_Iterable[_Union[RankFacts, _Mapping]]] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ["file", "line", "name"]
    FILE_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    file: str
    line: int
    name: str
    def __init__(self, file: _Optional[str] = ..., name: _Optional[str] = ..., line: _Optional[int] = ...) -> None: ...

class Greeting(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class HangLimits(_message.Message):
    __slots__ = ["heartbeat_s", "initial_heartbeat_s", "out_of_section_s", "sections", "warm_up_steps"]
    HEARTBEAT_S_FIELD_NUMBER: _ClassVar[int]
    INITIAL_HEARTBEAT_S_FIELD_NUMBER: _ClassVar[int]
    OUT_OF_SECTION_S_FIELD_NUMBER: _ClassVar[int]
    SECTIONS_FIELD_NUMBER: _ClassVar[int]
    WARM_UP_STEPS_FIELD_NUMBER: _ClassVar[int]
    heartbeat_s: float
    initial_heartbeat_s: float
    out_of_section_s: float
    sections: _containers.RepeatedCompositeFieldContainer[_worker_pb2.SectionLimit]
    warm_up_steps: int
    def __init__(self, initial_heartbeat_s: _Optional[float] = ..., heartbeat_s: _Optional[float] = ..., sections: _Optional[_Iterable[_Union[_worker_pb2.SectionLimit, _Mapping]]] = ..., out_of_section_s: _Optional[float] = ..., warm_up_steps: _Optional[int] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ["incarnation", "job_id", "node", "oldest_version", "proof", "protocol_version", "relay_port"]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    OLDEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    RELAY_PORT_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    job_id: str
    node: str
    oldest_version: int
    proof: bytes
    protocol_version: int
    relay_port: int
    def __init__(self, protocol_version: _Optional[int] = ..., job_id: _Optional[str] = ..., node: _Optional[str] = ..., incarnation: _Optional[str] = ..., proof: _Optional[bytes] = ..., oldest_version: _Optional[int] = ..., relay_port: _Optional[int] = ...) -> None: ...

class JobNodeReport(_message.Message):
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
    checks: _containers.RepeatedCompositeFieldContainer[CheckReport]
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
    def __init__(self, name: _Optional[str] = ..., state: _Optional[str] = ..., group_rank: _Optional[int] = ..., reason: _Optional[str] = ..., heard_at_ns: _Optional[int] = ..., lost_at_ns: _Optional[int] = ..., ranks: _Optional[_Iterable[int]] = ..., log_dir: _Optional[str] = ..., checks: _Optional[_Iterable[_Union[CheckReport, _Mapping]]] = ..., unreachable_pid: _Optional[int] = ..., unreachable_state: _Optional[str] = ...) -> None: ...

class JobOpened(_message.Message):
    __slots__ = ["node", "rules", "training_iteration"]
    NODE_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    TRAINING_ITERATION_FIELD_NUMBER: _ClassVar[int]
    node: str
    rules: JobRules
    training_iteration: int
    def __init__(self, node: _Optional[str] = ..., rules: _Optional[_Union[JobRules, _Mapping]] = ..., training_iteration: _Optional[int] = ...) -> None: ...

class JobReport(_message.Message):
    __slots__ = ["command", "cycle", "ended_at_ns", "exit_code", "iteration", "job_id", "log_dir", "max_restarts", "nodes", "ranks", "reason", "restarts_used", "script", "state", "stragglers", "submitted_at_ns", "supervisor_pid"]
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
    command: _containers.RepeatedScalarFieldContainer[str]
    cycle: int
    ended_at_ns: int
    exit_code: int
    iteration: int
    job_id: str
    log_dir: str
    max_restarts: int
    nodes: _containers.RepeatedCompositeFieldContainer[JobNodeReport]
    ranks: _containers.RepeatedCompositeFieldContainer[RankReport]
    reason: str
    restarts_used: int
    script: str
    state: str
    stragglers: _containers.RepeatedCompositeFieldContainer[Straggler]
    submitted_at_ns: int
    supervisor_pid: int
    def __init__(self, job_id: _Optional[str] = ..., state: _Optional[str] = ..., submitted_at_ns: _Optional[int] = ..., cycle: _Optional[int] = ..., iteration: _Optional[int] = ..., max_restarts: _Optional[int] = ..., restarts_used: _Optional[int] = ..., reason: _Optional[str] = ..., nodes: _Optional[_Iterable[_Union[JobNodeReport, _Mapping]]] = ..., ranks: _Optional[_Iterable[_Union[RankReport, _Mapping]]] = ..., exit_code: _Optional[int] = ..., ended_at_ns: _Optional[int] = ..., log_dir: _Optional[str] = ..., command: _Optional[_Iterable[str]] = ..., supervisor_pid: _Optional[int] = ..., stragglers: _Optional[_Iterable[_Union[Straggler, _Mapping]]] = ..., script: _Optional[str] = ...) -> None: ...

class JobRules(_message.Message):
    __slots__ = ["auto_heartbeat_s", "completion_grace_s", "evidence_budget_s", "facts", "forks_ahead", "hang_limits", "job_id", "local_world_size", "prepares_ahead", "rank_termination_signal", "rendezvous", "restart", "term_timeout_s", "workers_stop_timeout_s"]
    AUTO_HEARTBEAT_S_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_GRACE_S_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_BUDGET_S_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    FORKS_AHEAD_FIELD_NUMBER: _ClassVar[int]
    HANG_LIMITS_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    LOCAL_WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    PREPARES_AHEAD_FIELD_NUMBER: _ClassVar[int]
    RANK_TERMINATION_SIGNAL_FIELD_NUMBER: _ClassVar[int]
    RENDEZVOUS_FIELD_NUMBER: _ClassVar[int]
    RESTART_FIELD_NUMBER: _ClassVar[int]
    TERM_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    WORKERS_STOP_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    auto_heartbeat_s: float
    completion_grace_s: float
    evidence_budget_s: float
    facts: NodeFacts
    forks_ahead: bool
    hang_limits: HangLimits
    job_id: str
    local_world_size: int
    prepares_ahead: bool
    rank_termination_signal: int
    rendezvous: RendezvousRules
    restart: RestartRules
    term_timeout_s: float
    workers_stop_timeout_s: float
    def __init__(self, job_id: _Optional[str] = ..., local_world_size: _Optional[int] = ..., hang_limits: _Optional[_Union[HangLimits, _Mapping]] = ..., restart: _Optional[_Union[RestartRules, _Mapping]] = ..., workers_stop_timeout_s: _Optional[float] = ..., term_timeout_s: _Optional[float] = ..., rank_termination_signal: _Optional[int] = ..., evidence_budget_s: _Optional[float] = ..., completion_grace_s: _Optional[float] = ..., auto_heartbeat_s: _Optional[float] = ..., prepares_ahead: bool = ..., forks_ahead: bool = ..., rendezvous: _Optional[_Union[RendezvousRules, _Mapping]] = ..., facts: _Optional[_Union[NodeFacts, _Mapping]] = ...) -> None: ...

class JoinAgain(_message.Message):
    __slots__ = ["next_cycle", "reason"]
    NEXT_CYCLE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    next_cycle: int
    reason: str
    def __init__(self, next_cycle: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class LeaveAsked(_message.Message):
    __slots__ = ["grace_s", "node", "or_stop", "reason", "signal", "with_ranks"]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    OR_STOP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    WITH_RANKS_FIELD_NUMBER: _ClassVar[int]
    grace_s: float
    node: str
    or_stop: bool
    reason: str
    signal: int
    with_ranks: bool
    def __init__(self, node: _Optional[str] = ..., reason: _Optional[str] = ..., signal: _Optional[int] = ..., with_ranks: bool = ..., or_stop: bool = ..., grace_s: _Optional[float] = ...) -> None: ...

class LogBytes(_message.Message):
    __slots__ = ["cycle", "file", "is_stderr", "offset", "output", "rank"]
    CYCLE_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    IS_STDERR_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    cycle: int
    file: int
    is_stderr: bool
    offset: int
    output: bytes
    rank: int
    def __init__(self, rank: _Optional[int] = ..., cycle: _Optional[int] = ..., is_stderr: bool = ..., output: _Optional[bytes] = ..., file: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class Logs(_message.Message):
    __slots__ = ["is_last", "pieces"]
    IS_LAST_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    is_last: bool
    pieces: _containers.RepeatedCompositeFieldContainer[LogBytes]
    def __init__(self, pieces: _Optional[_Iterable[_Union[LogBytes, _Mapping]]] = ..., is_last: bool = ...) -> None: ...

class Lost(_message.Message):
    __slots__ = ["failed", "in_call", "interruption", "reason"]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    INTERRUPTION_FIELD_NUMBER: _ClassVar[int]
    IN_CALL_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    failed: bool
    in_call: int
    interruption: _worker_pb2.Interruption
    reason: str
    def __init__(self, interruption: _Optional[_Union[_worker_pb2.Interruption, str]] = ..., reason: _Optional[str] = ..., failed: bool = ..., in_call: _Optional[int] = ...) -> None: ...

class NodeCordoned(_message.Message):
    __slots__ = ["node", "reason"]
    NODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    node: str
    reason: str
    def __init__(self, node: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class NodeDown(_message.Message):
    __slots__ = ["cycle", "node"]
    CYCLE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    cycle: int
    node: str
    def __init__(self, node: _Optional[str] = ..., cycle: _Optional[int] = ...) -> None: ...

class NodeEvents(_message.Message):
    __slots__ = ["after", "events", "gone_through", "node", "submitted_at_ns", "told_at_ns"]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    GONE_THROUGH_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_AT_NS_FIELD_NUMBER: _ClassVar[int]
    TOLD_AT_NS_FIELD_NUMBER: _ClassVar[int]
    after: int
    events: _containers.RepeatedCompositeFieldContainer[RecordedEvent]
    gone_through: int
    node: str
    submitted_at_ns: int
    told_at_ns: int
    def __init__(self, node: _Optional[str] = ..., submitted_at_ns: _Optional[int] = ..., events: _Optional[_Iterable[_Union[RecordedEvent, _Mapping]]] = ..., gone_through: _Optional[int] = ..., after: _Optional[int] = ..., told_at_ns: _Optional[int] = ...) -> None: ...

class NodeExcluded(_message.Message):
    __slots__ = ["node", "reason"]
    NODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    node: str
    reason: str
    def __init__(self, node: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class NodeFacts(_message.Message):
    __slots__ = ["domain", "infrastructure_rank", "process", "program", "rank_source", "replacement_group", "submitted_at_ms"]
    DOMAIN_FIELD_NUMBER: _ClassVar[int]
    INFRASTRUCTURE_RANK_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    RANK_SOURCE_FIELD_NUMBER: _ClassVar[int]
    REPLACEMENT_GROUP_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    domain: str
    infrastructure_rank: int
    process: str
    program: str
    rank_source: str
    replacement_group: str
    submitted_at_ms: int
    def __init__(self, infrastructure_rank: _Optional[int] = ..., rank_source: _Optional[str] = ..., domain: _Optional[str] = ..., replacement_group: _Optional[str] = ..., program: _Optional[str] = ..., process: _Optional[str] = ..., submitted_at_ms: _Optional[int] = ...) -> None: ...

class NodeFailed(_message.Message):
    __slots__ = ["cycle", "exit_code", "first_failure", "may_be_stop", "node", "reason", "restart_allowed", "training_iteration"]
    CYCLE_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    FIRST_FAILURE_FIELD_NUMBER: _ClassVar[int]
    MAY_BE_STOP_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RESTART_ALLOWED_FIELD_NUMBER: _ClassVar[int]
    TRAINING_ITERATION_FIELD_NUMBER: _ClassVar[int]
    cycle: int
    exit_code: int
    first_failure: str
    may_be_stop: bool
    node: str
    reason: str
    restart_allowed: bool
    training_iteration: int
    def __init__(self, node: _Optional[str] = ..., cycle: _Optional[int] = ..., reason: _Optional[str] = ..., training_iteration: _Optional[int] = ..., restart_allowed: bool = ..., exit_code: _Optional[int] = ..., first_failure: _Optional[str] = ..., may_be_stop: bool = ...) -> None: ...

class NodeJoined(_message.Message):
    __slots__ = ["cause", "cycle", "node"]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    CYCLE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    cause: Cause
    cycle: int
    node: str
    def __init__(self, node: _Optional[str] = ..., cycle: _Optional[int] = ..., cause: _Optional[_Union[Cause, _Mapping]] = ...) -> None: ...

class NodeReport(_message.Message):
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
    checks: _containers.RepeatedCompositeFieldContainer[CheckReport]
    cordon_ends: bool
    job_ids: _containers.RepeatedScalarFieldContainer[str]
    leaves: _containers.RepeatedScalarFieldContainer[str]
    name: str
    reason: str
    started_at_ns: int
    state: str
    supervisor_pid: int
    version: str
    def __init__(self, name: _Optional[str] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., job_ids: _Optional[_Iterable[str]] = ..., supervisor_pid: _Optional[int] = ..., version: _Optional[str] = ..., started_at_ns: _Optional[int] = ..., checks: _Optional[_Iterable[_Union[CheckReport, _Mapping]]] = ..., leaves: _Optional[_Iterable[str]] = ..., cordon_ends: bool = ...) -> None: ...

class NodeStands(_message.Message):
    __slots__ = ["all_succeeded", "assignment", "cordoned", "cycle", "excluded", "first_failure", "heard_ago_s", "heard_cycle", "leave", "left", "left_ago_s", "left_term", "lost", "met_term", "newest_term", "node", "reason", "restart_allowed", "restarts_used", "rules", "state", "stop_at_once", "stop_grace_s", "stop_is_final", "stop_reason", "stop_signal", "store_host", "store_port", "verdict"]
    ALL_SUCCEEDED_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    CORDONED_FIELD_NUMBER: _ClassVar[int]
    CYCLE_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_FIELD_NUMBER: _ClassVar[int]
    FIRST_FAILURE_FIELD_NUMBER: _ClassVar[int]
    HEARD_AGO_S_FIELD_NUMBER: _ClassVar[int]
    HEARD_CYCLE_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    LEFT_AGO_S_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    LEFT_TERM_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    MET_TERM_FIELD_NUMBER: _ClassVar[int]
    NEWEST_TERM_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_USED_FIELD_NUMBER: _ClassVar[int]
    RESTART_ALLOWED_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STOP_AT_ONCE_FIELD_NUMBER: _ClassVar[int]
    STOP_GRACE_S_FIELD_NUMBER: _ClassVar[int]
    STOP_IS_FINAL_FIELD_NUMBER: _ClassVar[int]
    STOP_REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_SIGNAL_FIELD_NUMBER: _ClassVar[int]
    STORE_HOST_FIELD_NUMBER: _ClassVar[int]
    STORE_PORT_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    all_succeeded: bool
    assignment: Assignment
    cordoned: str
    cycle: int
    excluded: str
    first_failure: str
    heard_ago_s: float
    heard_cycle: int
    leave: LeaveAsked
    left: str
    left_ago_s: float
    left_term: int
    lost: _containers.RepeatedScalarFieldContainer[int]
    met_term: int
    newest_term: int
    node: str
    reason: str
    restart_allowed: bool
    restarts_used: int
    rules: JobRules
    state: str
    stop_at_once: bool
    stop_grace_s: float
    stop_is_final: bool
    stop_reason: str
    stop_signal: int
    store_host: str
    store_port: int
    verdict: Verdict
    def __init__(self, node: _Optional[str] = ..., rules: _Optional[_Union[JobRules, _Mapping]] = ..., state: _Optional[str] = ..., cycle: _Optional[int] = ..., assignment: _Optional[_Union[Assignment, _Mapping]] = ..., restarts_used: _Optional[int] = ..., reason: _Optional[str] = ..., first_failure: _Optional[str] = ..., restart_allowed: bool = ..., lost: _Optional[_Iterable[int]] = ..., all_succeeded: bool = ..., store_host: _Optional[str] = ..., store_port: _Optional[int] = ..., left_ago_s: _Optional[float] = ..., met_term: _Optional[int] = ..., newest_term: _Optional[int] = ..., stop_reason: _Optional[str] = ..., stop_signal: _Optional[int] = ..., left: _Optional[str] = ..., stop_is_final: bool = ..., leave: _Optional[_Union[LeaveAsked, _Mapping]] = ..., cordoned: _Optional[str] = ..., excluded: _Optional[str] = ..., left_term: _Optional[int] = ..., heard_cycle: _Optional[int] = ..., heard_ago_s: _Optional[float] = ..., verdict: _Optional[_Union[Verdict, _Mapping]] = ..., stop_grace_s: _Optional[float] = ..., stop_at_once: bool = ...) -> None: ...

class NodeStopped(_message.Message):
    __slots__ = ["all_succeeded", "cause", "node"]
    ALL_SUCCEEDED_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    all_succeeded: bool
    cause: Cause
    node: str
    def __init__(self, node: _Optional[str] = ..., all_succeeded: bool = ..., cause: _Optional[_Union[Cause, _Mapping]] = ...) -> None: ...

class NodeSucceeded(_message.Message):
    __slots__ = ["cycle", "lost", "node"]
    CYCLE_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    cycle: int
    lost: _containers.RepeatedScalarFieldContainer[int]
    node: str
    def __init__(self, node: _Optional[str] = ..., cycle: _Optional[int] = ..., lost: _Optional[_Iterable[int]] = ...) -> None: ...

class Order(_message.Message):
    __slots__ = ["act_on_hang", "conclude", "end_deadlocked", "join_again", "replace_ranks", "settle_call", "start_cycle", "stay", "take_stacks", "tell_members", "use_store", "wind_down"]
    ACT_ON_HANG_FIELD_NUMBER: _ClassVar[int]
    CONCLUDE_FIELD_NUMBER: _ClassVar[int]
    END_DEADLOCKED_FIELD_NUMBER: _ClassVar[int]
    JOIN_AGAIN_FIELD_NUMBER: _ClassVar[int]
    REPLACE_RANKS_FIELD_NUMBER: _ClassVar[int]
    SETTLE_CALL_FIELD_NUMBER: _ClassVar[int]
    START_CYCLE_FIELD_NUMBER: _ClassVar[int]
    STAY_FIELD_NUMBER: _ClassVar[int]
    TAKE_STACKS_FIELD_NUMBER: _ClassVar[int]
    TELL_MEMBERS_FIELD_NUMBER: _ClassVar[int]
    USE_STORE_FIELD_NUMBER: _ClassVar[int]
    WIND_DOWN_FIELD_NUMBER: _ClassVar[int]
    act_on_hang: ActOnHang
    conclude: Conclude
    end_deadlocked: EndDeadlocked
    join_again: JoinAgain
    replace_ranks: ReplaceRanks
    settle_call: SettleCall
    start_cycle: StartCycle
    stay: Stay
    take_stacks: TakeStacks
    tell_members: TellMembers
    use_store: UseStore
    wind_down: WindDown
    def __init__(self, start_cycle: _Optional[_Union[StartCycle, _Mapping]] = ..., join_again: _Optional[_Union[JoinAgain, _Mapping]] = ..., use_store: _Optional[_Union[UseStore, _Mapping]] = ..., take_stacks: _Optional[_Union[TakeStacks, _Mapping]] = ..., act_on_hang: _Optional[_Union[ActOnHang, _Mapping]] = ..., tell_members: _Optional[_Union[TellMembers, _Mapping]] = ..., replace_ranks: _Optional[_Union[ReplaceRanks, _Mapping]] = ..., settle_call: _Optional[_Union[SettleCall, _Mapping]] = ..., wind_down: _Optional[_Union[WindDown, _Mapping]] = ..., conclude: _Optional[_Union[Conclude, _Mapping]] = ..., stay: _Optional[_Union[Stay, _Mapping]] = ..., end_deadlocked: _Optional[_Union[EndDeadlocked, _Mapping]] = ...) -> None: ...

class Ordered(_message.Message):
    __slots__ = ["job_id", "order"]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    order: Order
    def __init__(self, job_id: _Optional[str] = ..., order: _Optional[_Union[Order, _Mapping]] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ["node", "part"]
    NODE_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    node: NodeReport
    part: JobReport
    def __init__(self, part: _Optional[_Union[JobReport, _Mapping]] = ..., node: _Optional[_Union[NodeReport, _Mapping]] = ...) -> None: ...

class ProcessFacts(_message.Message):
    __slots__ = ["children", "cpu_share", "is_idle", "is_still", "kernel_place", "state", "stop_signal", "tracer", "waits_on_futex"]
    CHILDREN_FIELD_NUMBER: _ClassVar[int]
    CPU_SHARE_FIELD_NUMBER: _ClassVar[int]
    IS_IDLE_FIELD_NUMBER: _ClassVar[int]
    IS_STILL_FIELD_NUMBER: _ClassVar[int]
    KERNEL_PLACE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STOP_SIGNAL_FIELD_NUMBER: _ClassVar[int]
    TRACER_FIELD_NUMBER: _ClassVar[int]
    WAITS_ON_FUTEX_FIELD_NUMBER: _ClassVar[int]
    children: _containers.RepeatedCompositeFieldContainer[ChildProcess]
    cpu_share: float
    is_idle: bool
    is_still: bool
    kernel_place: str
    state: str
    stop_signal: str
    tracer: str
    waits_on_futex: bool
    def __init__(self, state: _Optional[str] = ..., is_still: bool = ..., cpu_share: _Optional[float] = ..., stop_signal: _Optional[str] = ..., tracer: _Optional[str] = ..., kernel_place: _Optional[str] = ..., waits_on_futex: bool = ..., children: _Optional[_Iterable[_Union[ChildProcess, _Mapping]]] = ..., is_idle: bool = ...) -> None: ...

class Question(_message.Message):
    __slots__ = ["close_logs", "read_events", "read_logs", "set_cordon", "show_part", "show_stacks", "show_whole", "tell_sections", "tell_update"]
    CLOSE_LOGS_FIELD_NUMBER: _ClassVar[int]
    READ_EVENTS_FIELD_NUMBER: _ClassVar[int]
    READ_LOGS_FIELD_NUMBER: _ClassVar[int]
    SET_CORDON_FIELD_NUMBER: _ClassVar[int]
    SHOW_PART_FIELD_NUMBER: _ClassVar[int]
    SHOW_STACKS_FIELD_NUMBER: _ClassVar[int]
    SHOW_WHOLE_FIELD_NUMBER: _ClassVar[int]
    TELL_SECTIONS_FIELD_NUMBER: _ClassVar[int]
    TELL_UPDATE_FIELD_NUMBER: _ClassVar[int]
    close_logs: CloseLogs
    read_events: ReadEvents
    read_logs: ReadLogs
    set_cordon: SetCordon
    show_part: ShowPart
    show_stacks: ShowStacks
    show_whole: ShowWhole
    tell_sections: TellSections
    tell_update: TellUpdate
    def __init__(self, show_part: _Optional[_Union[ShowPart, _Mapping]] = ..., show_whole: _Optional[_Union[ShowWhole, _Mapping]] = ..., tell_update: _Optional[_Union[TellUpdate, _Mapping]] = ..., read_events: _Optional[_Union[ReadEvents, _Mapping]] = ..., show_stacks: _Optional[_Union[ShowStacks, _Mapping]] = ..., read_logs: _Optional[_Union[ReadLogs, _Mapping]] = ..., close_logs: _Optional[_Union[CloseLogs, _Mapping]] = ..., set_cordon: _Optional[_Union[SetCordon, _Mapping]] = ..., tell_sections: _Optional[_Union[TellSections, _Mapping]] = ...) -> None: ...

class RankFacts(_message.Message):
    __slots__ = ["answers", "gil_frames", "gil_is_main", "has_exited", "is_silent", "process", "rank", "sections", "source_line"]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    GIL_FRAMES_FIELD_NUMBER: _ClassVar[int]
    GIL_IS_MAIN_FIELD_NUMBER: _ClassVar[int]
    HAS_EXITED_FIELD_NUMBER: _ClassVar[int]
    IS_SILENT_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    SECTIONS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_LINE_FIELD_NUMBER: _ClassVar[int]
    answers: bool
    gil_frames: _containers.RepeatedCompositeFieldContainer[Frame]
    gil_is_main: bool
    has_exited: bool
    is_silent: bool
    process: ProcessFacts
    rank: int
    sections: _containers.RepeatedScalarFieldContainer[str]
    source_line: str
    def __init__(self, rank: _Optional[int] = ..., process: _Optional[_Union[ProcessFacts, _Mapping]] = ..., has_exited: bool = ..., is_silent: bool = ..., sections: _Optional[_Iterable[str]] = ..., gil_frames: _Optional[_Iterable[_Union[Frame, _Mapping]]] = ..., gil_is_main: bool = ..., answers: bool = ..., source_line: _Optional[str] = ...) -> None: ...

class RankReport(_message.Message):
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
    sections: _containers.RepeatedCompositeFieldContainer[SectionReport]
    state: str
    def __init__(self, rank: _Optional[int] = ..., local_rank: _Optional[int] = ..., node: _Optional[str] = ..., state: _Optional[str] = ..., pid: _Optional[int] = ..., heartbeat_age_s: _Optional[float] = ..., heartbeat_limit_s: _Optional[float] = ..., sections: _Optional[_Iterable[_Union[SectionReport, _Mapping]]] = ..., cycle_started_at_ns: _Optional[int] = ..., exit_code: _Optional[int] = ..., exit_signal: _Optional[int] = ..., main_thread_age_s: _Optional[float] = ..., main_thread_limit_s: _Optional[float] = ...) -> None: ...

class RankSections(_message.Message):
    __slots__ = ["rank", "times", "total_s"]
    RANK_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_S_FIELD_NUMBER: _ClassVar[int]
    rank: int
    times: _containers.RepeatedScalarFieldContainer[int]
    total_s: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, rank: _Optional[int] = ..., times: _Optional[_Iterable[int]] = ..., total_s: _Optional[_Iterable[float]] = ...) -> None: ...

class ReadEvents(_message.Message):
    __slots__ = ["after_sequence", "wait_s"]
    AFTER_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    after_sequence: int
    wait_s: float
    def __init__(self, after_sequence: _Optional[int] = ..., wait_s: _Optional[float] = ...) -> None: ...

class ReadLogs(_message.Message):
    __slots__ = ["cycle", "first_cycle", "follow", "rank", "reader", "step", "tail_lines", "wait_s"]
    CYCLE_FIELD_NUMBER: _ClassVar[int]
    FIRST_CYCLE_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    READER_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TAIL_LINES_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    cycle: int
    first_cycle: int
    follow: bool
    rank: int
    reader: str
    step: int
    tail_lines: int
    wait_s: float
    def __init__(self, reader: _Optional[str] = ..., step: _Optional[int] = ..., rank: _Optional[int] = ..., cycle: _Optional[int] = ..., tail_lines: _Optional[int] = ..., follow: bool = ..., wait_s: _Optional[float] = ..., first_cycle: _Optional[int] = ...) -> None: ...

class RecordedEvent(_message.Message):
    __slots__ = ["at_ns", "cycle", "details", "iteration", "job_id", "kind", "node", "rank", "reason", "sequence"]
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
    details: _containers.RepeatedCompositeFieldContainer[Detail]
    iteration: int
    job_id: str
    kind: str
    node: str
    rank: int
    reason: str
    sequence: int
    def __init__(self, job_id: _Optional[str] = ..., sequence: _Optional[int] = ..., at_ns: _Optional[int] = ..., kind: _Optional[str] = ..., reason: _Optional[str] = ..., cycle: _Optional[int] = ..., iteration: _Optional[int] = ..., node: _Optional[str] = ..., rank: _Optional[int] = ..., details: _Optional[_Iterable[_Union[Detail, _Mapping]]] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ["reason"]
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class RefuseAgent(_message.Message):
    __slots__ = ["reason", "refusal"]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    reason: str
    refusal: str
    def __init__(self, refusal: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ["code", "message"]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class RendezvousRules(_message.Message):
    __slots__ = ["elastic", "join_timeout_s", "keep_ranks", "last_call_s", "max_nodes", "replacement_group_size", "segment"]
    ELASTIC_FIELD_NUMBER: _ClassVar[int]
    JOIN_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    KEEP_RANKS_FIELD_NUMBER: _ClassVar[int]
    LAST_CALL_S_FIELD_NUMBER: _ClassVar[int]
    MAX_NODES_FIELD_NUMBER: _ClassVar[int]
    REPLACEMENT_GROUP_SIZE_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    elastic: bool
    join_timeout_s: float
    keep_ranks: bool
    last_call_s: float
    max_nodes: int
    replacement_group_size: int
    segment: int
    def __init__(self, max_nodes: _Optional[int] = ..., join_timeout_s: _Optional[float] = ..., last_call_s: _Optional[float] = ..., segment: _Optional[int] = ..., replacement_group_size: _Optional[int] = ..., keep_ranks: bool = ..., elastic: bool = ...) -> None: ...

class ReplaceRanks(_message.Message):
    __slots__ = ["cycle", "members", "reason"]
    CYCLE_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    cycle: int
    members: _containers.RepeatedScalarFieldContainer[int]
    reason: str
    def __init__(self, cycle: _Optional[int] = ..., members: _Optional[_Iterable[int]] = ..., reason: _Optional[str] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ["call_report", "job_opened", "leave_asked", "node_cordoned", "node_down", "node_excluded", "node_failed", "node_joined", "node_stands", "node_stopped", "node_succeeded", "restart_asked", "stacks_taken", "stacks_wanted", "stop_asked", "store_served", "verdict_taken", "workers_linger"]
    CALL_REPORT_FIELD_NUMBER: _ClassVar[int]
    JOB_OPENED_FIELD_NUMBER: _ClassVar[int]
    LEAVE_ASKED_FIELD_NUMBER: _ClassVar[int]
    NODE_CORDONED_FIELD_NUMBER: _ClassVar[int]
    NODE_DOWN_FIELD_NUMBER: _ClassVar[int]
    NODE_EXCLUDED_FIELD_NUMBER: _ClassVar[int]
    NODE_FAILED_FIELD_NUMBER: _ClassVar[int]
    NODE_JOINED_FIELD_NUMBER: _ClassVar[int]
    NODE_STANDS_FIELD_NUMBER: _ClassVar[int]
    NODE_STOPPED_FIELD_NUMBER: _ClassVar[int]
    NODE_SUCCEEDED_FIELD_NUMBER: _ClassVar[int]
    RESTART_ASKED_FIELD_NUMBER: _ClassVar[int]
    STACKS_TAKEN_FIELD_NUMBER: _ClassVar[int]
    STACKS_WANTED_FIELD_NUMBER: _ClassVar[int]
    STOP_ASKED_FIELD_NUMBER: _ClassVar[int]
    STORE_SERVED_FIELD_NUMBER: _ClassVar[int]
    VERDICT_TAKEN_FIELD_NUMBER: _ClassVar[int]
    WORKERS_LINGER_FIELD_NUMBER: _ClassVar[int]
    call_report: CallReport
    job_opened: JobOpened
    leave_asked: LeaveAsked
    node_cordoned: NodeCordoned
    node_down: NodeDown
    node_excluded: NodeExcluded
    node_failed: NodeFailed
    node_joined: NodeJoined
    node_stands: NodeStands
    node_stopped: NodeStopped
    node_succeeded: NodeSucceeded
    restart_asked: RestartAsked
    stacks_taken: StacksTaken
    stacks_wanted: StacksWanted
    stop_asked: StopAsked
    store_served: StoreServed
    verdict_taken: VerdictTaken
    workers_linger: WorkersLinger
    def __init__(self, job_opened: _Optional[_Union[JobOpened, _Mapping]] = ..., node_joined: _Optional[_Union[NodeJoined, _Mapping]] = ..., node_failed: _Optional[_Union[NodeFailed, _Mapping]] = ..., node_down: _Optional[_Union[NodeDown, _Mapping]] = ..., node_succeeded: _Optional[_Union[NodeSucceeded, _Mapping]] = ..., node_stopped: _Optional[_Union[NodeStopped, _Mapping]] = ..., verdict_taken: _Optional[_Union[VerdictTaken, _Mapping]] = ..., store_served: _Optional[_Union[StoreServed, _Mapping]] = ..., call_report: _Optional[_Union[CallReport, _Mapping]] = ..., stacks_wanted: _Optional[_Union[StacksWanted, _Mapping]] = ..., stacks_taken: _Optional[_Union[StacksTaken, _Mapping]] = ..., node_excluded: _Optional[_Union[NodeExcluded, _Mapping]] = ..., stop_asked: _Optional[_Union[StopAsked, _Mapping]] = ..., restart_asked: _Optional[_Union[RestartAsked, _Mapping]] = ..., node_cordoned: _Optional[_Union[NodeCordoned, _Mapping]] = ..., leave_asked: _Optional[_Union[LeaveAsked, _Mapping]] = ..., workers_linger: _Optional[_Union[WorkersLinger, _Mapping]] = ..., node_stands: _Optional[_Union[NodeStands, _Mapping]] = ...) -> None: ...

class Reported(_message.Message):
    __slots__ = ["job_id", "report"]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    report: Report
    def __init__(self, job_id: _Optional[str] = ..., report: _Optional[_Union[Report, _Mapping]] = ...) -> None: ...

class RestartAsked(_message.Message):
    __slots__ = ["reason"]
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class RestartRules(_message.Message):
    __slots__ = ["backoff_base_s", "backoff_max_s", "max_no_progress_cycles", "max_restarts", "min_nodes", "min_progress_iterations", "no_restart_exit_code", "policy"]
    BACKOFF_BASE_S_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_MAX_S_FIELD_NUMBER: _ClassVar[int]
    MAX_NO_PROGRESS_CYCLES_FIELD_NUMBER: _ClassVar[int]
    MAX_RESTARTS_FIELD_NUMBER: _ClassVar[int]
    MIN_NODES_FIELD_NUMBER: _ClassVar[int]
    MIN_PROGRESS_ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    NO_RESTART_EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    backoff_base_s: float
    backoff_max_s: float
    max_no_progress_cycles: int
    max_restarts: int
    min_nodes: int
    min_progress_iterations: int
    no_restart_exit_code: int
    policy: str
    def __init__(self, policy: _Optional[str] = ..., max_restarts: _Optional[int] = ..., min_nodes: _Optional[int] = ..., no_restart_exit_code: _Optional[int] = ..., max_no_progress_cycles: _Optional[int] = ..., min_progress_iterations: _Optional[int] = ..., backoff_base_s: _Optional[float] = ..., backoff_max_s: _Optional[float] = ...) -> None: ...

class RoundStoreServed(_message.Message):
    __slots__ = ["host", "node", "port", "round"]
    HOST_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    host: str
    node: str
    port: int
    round: int
    def __init__(self, node: _Optional[str] = ..., round: _Optional[int] = ..., host: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...

class SectionReport(_message.Message):
    __slots__ = ["age_s", "limit_s", "name"]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    age_s: float
    limit_s: float
    name: str
    def __init__(self, name: _Optional[str] = ..., age_s: _Optional[float] = ..., limit_s: _Optional[float] = ...) -> None: ...

class SectionsTaken(_message.Message):
    __slots__ = ["pace_s"]
    PACE_S_FIELD_NUMBER: _ClassVar[int]
    pace_s: float
    def __init__(self, pace_s: _Optional[float] = ...) -> None: ...

class ServeRelay(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class ServeRoundStore(_message.Message):
    __slots__ = ["round"]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    round: int
    def __init__(self, round: _Optional[int] = ...) -> None: ...

class SetCordon(_message.Message):
    __slots__ = ["cordoned", "leaves", "reason"]
    CORDONED_FIELD_NUMBER: _ClassVar[int]
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    cordoned: bool
    leaves: bool
    reason: str
    def __init__(self, cordoned: bool = ..., reason: _Optional[str] = ..., leaves: bool = ...) -> None: ...

class SettleCall(_message.Message):
    __slots__ = ["call", "cycle", "reason", "stands"]
    CALL_FIELD_NUMBER: _ClassVar[int]
    CYCLE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STANDS_FIELD_NUMBER: _ClassVar[int]
    call: int
    cycle: int
    reason: str
    stands: bool
    def __init__(self, cycle: _Optional[int] = ..., call: _Optional[int] = ..., stands: bool = ..., reason: _Optional[str] = ...) -> None: ...

class ShowPart(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class ShowStacks(_message.Message):
    __slots__ = ["budget_s", "rank"]
    BUDGET_S_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    budget_s: float
    rank: int
    def __init__(self, budget_s: _Optional[float] = ..., rank: _Optional[int] = ...) -> None: ...

class ShowWhole(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class StackGroup(_message.Message):
    __slots__ = ["frames", "ranks", "stack"]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    STACK_FIELD_NUMBER: _ClassVar[int]
    frames: _containers.RepeatedCompositeFieldContainer[Frame]
    ranks: _containers.RepeatedScalarFieldContainer[int]
    stack: str
    def __init__(self, ranks: _Optional[_Iterable[int]] = ..., stack: _Optional[str] = ..., frames: _Optional[_Iterable[_Union[Frame, _Mapping]]] = ...) -> None: ...

class Stacks(_message.Message):
    __slots__ = ["evidence"]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    evidence: Evidence
    def __init__(self, evidence: _Optional[_Union[Evidence, _Mapping]] = ...) -> None: ...

class StacksTaken(_message.Message):
    __slots__ = ["cycle", "evidence", "node"]
    CYCLE_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    cycle: int
    evidence: Evidence
    node: str
    def __init__(self, node: _Optional[str] = ..., cycle: _Optional[int] = ..., evidence: _Optional[_Union[Evidence, _Mapping]] = ...) -> None: ...

class StacksWanted(_message.Message):
    __slots__ = ["accused", "budget_s", "cycle", "node", "noticed"]
    ACCUSED_FIELD_NUMBER: _ClassVar[int]
    BUDGET_S_FIELD_NUMBER: _ClassVar[int]
    CYCLE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    NOTICED_FIELD_NUMBER: _ClassVar[int]
    accused: _containers.RepeatedScalarFieldContainer[int]
    budget_s: float
    cycle: int
    node: str
    noticed: str
    def __init__(self, node: _Optional[str] = ..., cycle: _Optional[int] = ..., accused: _Optional[_Iterable[int]] = ..., budget_s: _Optional[float] = ..., noticed: _Optional[str] = ...) -> None: ...

class StartCycle(_message.Message):
    __slots__ = ["assignment", "is_running", "reason", "restarts_used"]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    IS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_USED_FIELD_NUMBER: _ClassVar[int]
    assignment: Assignment
    is_running: bool
    reason: str
    restarts_used: int
    def __init__(self, assignment: _Optional[_Union[Assignment, _Mapping]] = ..., reason: _Optional[str] = ..., restarts_used: _Optional[int] = ..., is_running: bool = ...) -> None: ...

class Started(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class Stay(_message.Message):
    __slots__ = ["reason"]
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class StopAsked(_message.Message):
    __slots__ = ["at_once", "grace_s", "is_final", "reason", "signal"]
    AT_ONCE_FIELD_NUMBER: _ClassVar[int]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    IS_FINAL_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    at_once: bool
    grace_s: float
    is_final: bool
    reason: str
    signal: int
    def __init__(self, reason: _Optional[str] = ..., signal: _Optional[int] = ..., grace_s: _Optional[float] = ..., is_final: bool = ..., at_once: bool = ...) -> None: ...

class StoreServed(_message.Message):
    __slots__ = ["cycle", "host", "node", "port"]
    CYCLE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    cycle: int
    host: str
    node: str
    port: int
    def __init__(self, node: _Optional[str] = ..., cycle: _Optional[int] = ..., host: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...

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

class TakeStacks(_message.Message):
    __slots__ = ["accused", "apart_s", "budget_s", "cycle"]
    ACCUSED_FIELD_NUMBER: _ClassVar[int]
    APART_S_FIELD_NUMBER: _ClassVar[int]
    BUDGET_S_FIELD_NUMBER: _ClassVar[int]
    CYCLE_FIELD_NUMBER: _ClassVar[int]
    accused: _containers.RepeatedScalarFieldContainer[int]
    apart_s: float
    budget_s: float
    cycle: int
    def __init__(self, cycle: _Optional[int] = ..., accused: _Optional[_Iterable[int]] = ..., budget_s: _Optional[float] = ..., apart_s: _Optional[float] = ...) -> None: ...

class TellClosed(_message.Message):
    __slots__ = ["failed", "reason"]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    failed: bool
    reason: str
    def __init__(self, reason: _Optional[str] = ..., failed: bool = ...) -> None: ...

class TellMembers(_message.Message):
    __slots__ = ["cycle", "members", "order"]
    CYCLE_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    cycle: int
    members: _containers.RepeatedScalarFieldContainer[int]
    order: ToRank
    def __init__(self, cycle: _Optional[int] = ..., members: _Optional[_Iterable[int]] = ..., order: _Optional[_Union[ToRank, _Mapping]] = ...) -> None: ...

class TellSections(_message.Message):
    __slots__ = ["cycle", "names", "ranks"]
    CYCLE_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    cycle: int
    names: _containers.RepeatedScalarFieldContainer[str]
    ranks: _containers.RepeatedCompositeFieldContainer[RankSections]
    def __init__(self, cycle: _Optional[int] = ..., names: _Optional[_Iterable[str]] = ..., ranks: _Optional[_Iterable[_Union[RankSections, _Mapping]]] = ...) -> None: ...

class TellSpares(_message.Message):
    __slots__ = ["exist"]
    EXIST_FIELD_NUMBER: _ClassVar[int]
    exist: bool
    def __init__(self, exist: bool = ...) -> None: ...

class TellUpdate(_message.Message):
    __slots__ = ["after", "events", "gone_through", "leader_submitted_at_ns", "leader_through", "node", "others", "part", "sent_at_ns"]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    GONE_THROUGH_FIELD_NUMBER: _ClassVar[int]
    LEADER_SUBMITTED_AT_NS_FIELD_NUMBER: _ClassVar[int]
    LEADER_THROUGH_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    SENT_AT_NS_FIELD_NUMBER: _ClassVar[int]
    after: int
    events: _containers.RepeatedCompositeFieldContainer[RecordedEvent]
    gone_through: int
    leader_submitted_at_ns: int
    leader_through: int
    node: NodeReport
    others: _containers.RepeatedCompositeFieldContainer[NodeEvents]
    part: JobReport
    sent_at_ns: int
    def __init__(self, part: _Optional[_Union[JobReport, _Mapping]] = ..., node: _Optional[_Union[NodeReport, _Mapping]] = ..., events: _Optional[_Iterable[_Union[RecordedEvent, _Mapping]]] = ..., gone_through: _Optional[int] = ..., sent_at_ns: _Optional[int] = ..., after: _Optional[int] = ..., leader_submitted_at_ns: _Optional[int] = ..., leader_through: _Optional[int] = ..., others: _Optional[_Iterable[_Union[NodeEvents, _Mapping]]] = ...) -> None: ...

class TellWaiting(_message.Message):
    __slots__ = ["reason", "waiting"]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    reason: str
    waiting: int
    def __init__(self, waiting: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class ToRank(_message.Message):
    __slots__ = ["begin_iteration", "call_completed", "call_refused", "call_underway", "committed", "entered", "exchanged", "interrupt", "ranks_missing", "restart"]
    BEGIN_ITERATION_FIELD_NUMBER: _ClassVar[int]
    CALL_COMPLETED_FIELD_NUMBER: _ClassVar[int]
    CALL_REFUSED_FIELD_NUMBER: _ClassVar[int]
    CALL_UNDERWAY_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    ENTERED_FIELD_NUMBER: _ClassVar[int]
    EXCHANGED_FIELD_NUMBER: _ClassVar[int]
    INTERRUPT_FIELD_NUMBER: _ClassVar[int]
    RANKS_MISSING_FIELD_NUMBER: _ClassVar[int]
    RESTART_FIELD_NUMBER: _ClassVar[int]
    begin_iteration: _worker_pb2.BeginIteration
    call_completed: _worker_pb2.CallCompleted
    call_refused: _worker_pb2.CallRefused
    call_underway: _worker_pb2.CallUnderway
    committed: _worker_pb2.Committed
    entered: _worker_pb2.Entered
    exchanged: _worker_pb2.Exchanged
    interrupt: _worker_pb2.Interrupt
    ranks_missing: _worker_pb2.RanksMissing
    restart: _worker_pb2.Restart
    def __init__(self, entered: _Optional[_Union[_worker_pb2.Entered, _Mapping]] = ..., interrupt: _Optional[_Union[_worker_pb2.Interrupt, _Mapping]] = ..., restart: _Optional[_Union[_worker_pb2.Restart, _Mapping]] = ..., begin_iteration: _Optional[_Union[_worker_pb2.BeginIteration, _Mapping]] = ..., call_completed: _Optional[_Union[_worker_pb2.CallCompleted, _Mapping]] = ..., committed: _Optional[_Union[_worker_pb2.Committed, _Mapping]] = ..., exchanged: _Optional[_Union[_worker_pb2.Exchanged, _Mapping]] = ..., call_refused: _Optional[_Union[_worker_pb2.CallRefused, _Mapping]] = ..., call_underway: _Optional[_Union[_worker_pb2.CallUnderway, _Mapping]] = ..., ranks_missing: _Optional[_Union[_worker_pb2.RanksMissing, _Mapping]] = ...) -> None: ...

class Told(_message.Message):
    __slots__ = ["member", "word"]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    WORD_FIELD_NUMBER: _ClassVar[int]
    member: int
    word: Word
    def __init__(self, member: _Optional[int] = ..., word: _Optional[_Union[Word, _Mapping]] = ...) -> None: ...

class UpdateTaken(_message.Message):
    __slots__ = ["own", "pace_s", "through"]
    OWN_FIELD_NUMBER: _ClassVar[int]
    PACE_S_FIELD_NUMBER: _ClassVar[int]
    THROUGH_FIELD_NUMBER: _ClassVar[int]
    own: NodeEvents
    pace_s: float
    through: int
    def __init__(self, through: _Optional[int] = ..., pace_s: _Optional[float] = ..., own: _Optional[_Union[NodeEvents, _Mapping]] = ...) -> None: ...

class UseStore(_message.Message):
    __slots__ = ["cycle", "host", "port"]
    CYCLE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    cycle: int
    host: str
    port: int
    def __init__(self, cycle: _Optional[int] = ..., host: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ["exit_code", "reason", "state"]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    exit_code: int
    reason: str
    state: str
    def __init__(self, state: _Optional[str] = ..., exit_code: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class VerdictTaken(_message.Message):
    __slots__ = ["node"]
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: str
    def __init__(self, node: _Optional[str] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ["door_key", "proof", "protocol_version", "term"]
    DOOR_KEY_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    door_key: bytes
    proof: bytes
    protocol_version: int
    term: int
    def __init__(self, proof: _Optional[bytes] = ..., term: _Optional[int] = ..., protocol_version: _Optional[int] = ..., door_key: _Optional[bytes] = ...) -> None: ...

class Whole(_message.Message):
    __slots__ = ["job", "nodes"]
    JOB_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    job: JobReport
    nodes: _containers.RepeatedCompositeFieldContainer[NodeReport]
    def __init__(self, job: _Optional[_Union[JobReport, _Mapping]] = ..., nodes: _Optional[_Iterable[_Union[NodeReport, _Mapping]]] = ...) -> None: ...

class WindDown(_message.Message):
    __slots__ = ["at_once", "grace_s", "reason", "signal", "verdict"]
    AT_ONCE_FIELD_NUMBER: _ClassVar[int]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    at_once: bool
    grace_s: float
    reason: str
    signal: int
    verdict: Verdict
    def __init__(self, reason: _Optional[str] = ..., signal: _Optional[int] = ..., at_once: bool = ..., grace_s: _Optional[float] = ..., verdict: _Optional[_Union[Verdict, _Mapping]] = ...) -> None: ...

class Word(_message.Message):
    __slots__ = ["barrier_arrive", "call_enter", "call_leave", "exchange_value", "faults_reported", "iteration_began", "lost", "rank_fault", "started"]
    BARRIER_ARRIVE_FIELD_NUMBER: _ClassVar[int]
    CALL_ENTER_FIELD_NUMBER: _ClassVar[int]
    CALL_LEAVE_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_VALUE_FIELD_NUMBER: _ClassVar[int]
    FAULTS_REPORTED_FIELD_NUMBER: _ClassVar[int]
    ITERATION_BEGAN_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    RANK_FAULT_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    barrier_arrive: _worker_pb2.BarrierArrive
    call_enter: _worker_pb2.CallEnter
    call_leave: _worker_pb2.CallLeave
    exchange_value: _worker_pb2.ExchangeValue
    faults_reported: _worker_pb2.FaultsReported
    iteration_began: _worker_pb2.IterationBegan
    lost: Lost
    rank_fault: _worker_pb2.RankFault
    started: Started
    def __init__(self, started: _Optional[_Union[Started, _Mapping]] = ..., lost: _Optional[_Union[Lost, _Mapping]] = ..., call_enter: _Optional[_Union[_worker_pb2.CallEnter, _Mapping]] = ..., iteration_began: _Optional[_Union[_worker_pb2.IterationBegan, _Mapping]] = ..., rank_fault: _Optional[_Union[_worker_pb2.RankFault, _Mapping]] = ..., faults_reported: _Optional[_Union[_worker_pb2.FaultsReported, _Mapping]] = ..., barrier_arrive: _Optional[_Union[_worker_pb2.BarrierArrive, _Mapping]] = ..., call_leave: _Optional[_Union[_worker_pb2.CallLeave, _Mapping]] = ..., exchange_value: _Optional[_Union[_worker_pb2.ExchangeValue, _Mapping]] = ...) -> None: ...

class WorkersLinger(_message.Message):
    __slots__ = ["cycle", "node"]
    CYCLE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    cycle: int
    node: str
    def __init__(self, node: _Optional[str] = ..., cycle: _Optional[int] = ...) -> None: ...
