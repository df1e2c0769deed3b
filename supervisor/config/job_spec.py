"""What makes up one job, once flags, file and environment have been resolved?"""

from __future__ import annotations

import enum

import msgspec

from supervisor.config.attribution_settings import Attribution
from supervisor.config.job_logs import JobLogs, LogServer
from supervisor.config.node_check_plans import HealthChecks
from supervisor.core.facts import HangLimits, JobRules, NodeFacts, RendezvousRules, RestartRules
from supervisor.core.gpu_memory import MIB, MemoryRules

EMBEDDED = "embedded"  # the first node that listens at the endpoint leads
SAFETY_FACTOR = 5.0  # a limit that is so many times what was observed leaves room
KEPT_NODES_MAX = 4096  # of a job that a supervisor which comes back leads again: up to here, that costs a fault nothing


class Entry(enum.StrEnum):
    """What the first word of `command` is."""

    SCRIPT = "script"  # a Python file
    MODULE = "module"  # -m
    COMMAND = "command"  # --no-python


class OnSigterm(enum.StrEnum):
    STOP = "stop"
    LEAVE = "leave"  # other nodes take over this one's ranks where they can


class SpawnMethod(enum.StrEnum):
    AUTO = "auto"  # fork where it can't be noticed, else exec
    FORK = "fork"  # an error where it can't be done
    EXEC = "exec"


class Redirect(enum.IntFlag):
    """The streams to redirect or tee, by torchrun's numbers."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = 3


class Nodes(msgspec.Struct, frozen=True):
    """The other nodes of a job, and the name under which this node joins them."""

    min_nodes: int
    max_nodes: int
    host: str  # where they meet
    port: int
    name: str  # of this node, unlike any other's
    token_file: str = ""  # the secret that all nodes of the job share; "": none, for addresses of this machine alone
    join_timeout_s: float = 600.0
    tls_cert: str = ""  # PEM files; "": without TLS
    tls_key: str = ""
    tls_ca: str = ""
    backend: str = EMBEDDED  # else a leader is elected
    backend_options: tuple[tuple[str, str], ...] = ()
    fan_out: int = 1024  # so many nodes connect to the leader itself; where more may come, others go by relays
    leader_ttl_s: float = 2.0  # an elected leader that is not heard for so long leads no more
    leads: bool = False  # this node listens at the endpoint, as it has found when it joined

    @property
    def has_election(self) -> bool:
        return self.backend != EMBEDDED

    @property
    def brings_etcd(self) -> bool:
        """Whether some nodes of the job are members of an etcd of its own."""
        return "members" in dict(self.backend_options)

    @property
    def meets_at(self) -> str:
        return f"{self.host}:{self.port}"


class JobSpec(msgspec.Struct, frozen=True):
    """One job on this node. Holds no environment values: those travel beside it and are never stored."""

    job_id: str
    command: tuple[str, ...]  # script, module or command, then its arguments
    entry: Entry = Entry.SCRIPT
    python: str = ""  # the job's interpreter; "": the supervisor's own
    cwd: str = ""
    local_world_size: int = 1
    role: str = "default"
    nodes: Nodes | None = None  # None: this node alone
    rendezvous: RendezvousRules = msgspec.field(default_factory=RendezvousRules)
    facts: NodeFacts = msgspec.field(default_factory=NodeFacts)  # of the node whose scheduler has started this one
    run_id: str = ""  # --rdzv-id, exported as TORCHELASTIC_RUN_ID; "": the job id

    spawn_method: SpawnMethod = SpawnMethod.AUTO
    preload: str = "auto"  # auto, torch, none, or modules with commas between them
    visible_gpus: tuple[str, ...] | None = None  # CUDA_VISIBLE_DEVICES; None: not set
    gpus_by_bus: bool = False  # CUDA counts them as the driver does, also if they differ
    gpus_per_numa: int | None = None  # NVRX_GPUS_PER_NUMA: bind with numactl
    numa_binding: str = "none"  # a NumaBinding: how each worker is bound near its GPU, without numactl
    numa_bind_strict: bool = True

    agent_store: bool = True  # False: rank 0 hosts the TCPStore
    master_addr: str = "127.0.0.1"
    master_port: int = 0  # 0: a fresh one for each cycle
    store_ports: tuple[int, ...] = ()  # first and last of those for fresh stores; (): outside ip_local_port_range

    log_dir: str = ""  # "": the default place
    log_line_prefix_template: str = ""  # TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE; "": torchrun's own, [role0]:
    redirects: tuple[tuple[int | None, Redirect], ...] = ()  # (local rank or None for all, what)
    tee: tuple[tuple[int | None, Redirect], ...] = ()
    local_ranks_filter: tuple[int, ...] = ()  # ranks whose output reaches the console; empty: all

    logs: JobLogs = msgspec.field(default_factory=JobLogs)
    log_server: LogServer = msgspec.field(default_factory=LogServer)
    attribution: Attribution = msgspec.field(default_factory=Attribution)

    hang_limits: HangLimits = msgspec.field(default_factory=HangLimits)
    restart: RestartRules = msgspec.field(default_factory=RestartRules)
    workers_stop_timeout_s: float = 15.0
    term_timeout_s: float = 1800.0
    rank_termination_signal: int = 9
    evidence_budget_s: float = 0.25
    completion_grace_s: float | None = None
    auto_heartbeat_s: float | None = None
    on_sigterm: OnSigterm = OnSigterm.STOP
    signals_to_handle: tuple[str, ...] = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")

    health: HealthChecks = msgspec.field(default_factory=HealthChecks)
    gpu_memory_timeout_s: float = 50.0  # 0: a restart does not wait for GPU memory
    gpu_memory_tolerance_mib: float = 512.0
    gpu_memory_look_s: float = 2.0

    safety_factor: float = SAFETY_FACTOR
    learned_limit_floor_s: float = 5.0  # calculated limits are not below it
    install_exception_hook: bool = False
    checkpoint_iteration_file: str = ""
    sources: tuple[tuple[str, str], ...] = ()  # setting's name, and where it was written; absent: a default
    # Of a job of one of several users: name, soft and hard limit of the process that submits it. (): the supervisor's.
    resource_limits: tuple[tuple[str, int, int], ...] = ()
    umask: int | None = None  # of the process that submits it; None: the supervisor's

    @property
    def may_come_back(self) -> bool:
        """Whether a returning supervisor may take over the job. The state of a very large job's leader is not kept."""
        nodes = self.nodes
        return nodes is None or not nodes.leads or nodes.max_nodes <= KEPT_NODES_MAX

    @property
    def has_log_server(self) -> bool:
        """Whether the job has a log server. On one node, its log process is already the only writer."""
        is_wanted = bool(self.logs.cycle_prefix or self.logs.supervisor_log)
        return self.nodes is not None and self.log_server.enabled and is_wanted

    def memory_rules(self) -> MemoryRules | None:
        """Returns how a restart waits for GPU memory; None if it does not wait."""
        if not self.gpu_memory_timeout_s:
            return None
        return MemoryRules(self.gpu_memory_timeout_s, int(self.gpu_memory_tolerance_mib * MIB), self.gpu_memory_look_s)

    def rules(self) -> JobRules:
        """Returns the part by which the core's machines decide."""
        return JobRules(
            job_id=self.job_id,
            local_world_size=self.local_world_size,
            hang_limits=self.hang_limits,
            restart=self.restart,
            workers_stop_timeout_s=self.workers_stop_timeout_s,
            term_timeout_s=self.term_timeout_s,
            rank_termination_signal=self.rank_termination_signal,
            evidence_budget_s=self.evidence_budget_s,
            completion_grace_s=self.completion_grace_s,
            auto_heartbeat_s=self.auto_heartbeat_s,
            prepares_ahead=not self.master_port,  # A fixed port is the old store's until that has ended.
            forks_ahead=not self.master_port and self.gpus_per_numa is None,  # Bound workers are executed, not forked.
            rendezvous=self.rendezvous if self.nodes is not None else RendezvousRules(),
            facts=self.facts,
        )
