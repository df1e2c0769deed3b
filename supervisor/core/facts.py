"""Which plain data do all share: rules and states of a job, how a worker ended, what a rank has stamped?

Times (`…_at_s`) are seconds on this node's monotonic clock and durations (`…_s`) are seconds, unless a name says else.
"""

from __future__ import annotations

import enum
import signal as signals

import msgspec

from supervisor.core.node_check_facts import CheckView
from supervisor.core.process_facts import Frame, RankFacts


class JobState(enum.StrEnum):
    """The state of a job as users see it."""

    PENDING = "pending"
    RENDEZVOUS = "rendezvous"
    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def has_ended(self) -> bool:
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED)


class RestartPolicyName(enum.StrEnum):
    ANY_FAILED = "any-failed"
    MIN_HEALTHY = "min-healthy"


class HangLimits(msgspec.Struct, frozen=True):
    """The longest silences allowed to a rank; None: no limit. Sections not named here are not watched."""

    initial_heartbeat_s: float | None = None  # from the client's start to its first heartbeat
    heartbeat_s: float | None = 2700.0  # between heartbeats, armed by the first
    sections: tuple[tuple[str, float | None], ...] = ()
    out_of_section_s: float | None = None
    warm_up_steps: int = 5  # until this cycle has made so many steps, an open "step" has the limit of "warmup"


class RestartRules(msgspec.Struct, frozen=True):
    """What the restart policy needs to know about a job."""

    policy: RestartPolicyName = RestartPolicyName.ANY_FAILED
    max_restarts: int = 0
    min_nodes: int = 1
    no_restart_exit_code: int = 93
    max_no_progress_cycles: int = 3  # 0 or less: progress is not judged
    min_progress_iterations: int = 1
    backoff_base_s: float = 0.5  # delay before a restart without progress: 0, base, 2·base, … up to the maximum
    backoff_max_s: float = 30.0


class RendezvousRules(msgspec.Struct, frozen=True):
    """Says how many nodes meet, which of them take part in a cycle, and how long a round waits for more."""

    max_nodes: int = 1  # nodes beyond RestartRules.min_nodes are spares, or take part if `elastic`
    join_timeout_s: float = 900.0  # for all nodes, from the end of the back-off and of the workers' grace period
    last_call_s: float = 1.0  # once enough nodes have joined, the wait for nodes that rank before them
    segment: int | None = None  # number of adjacent nodes in one NVLink domain; None: domains don't matter
    replacement_group_size: int | None = None  # only complete groups take part; None: no groups
    keep_ranks: bool = False  # nodes that stay keep their group ranks; else the scheduler's order always applies
    elastic: bool = False  # run with all nodes present; else always with RestartRules.min_nodes


class NodeFacts(msgspec.Struct, frozen=True):
    """What a node says about itself that decides its place in a job, or whether it runs the same job at all."""

    infrastructure_rank: int | None = None  # its place in the scheduler's order; None: the scheduler assigns none
    rank_source: str = ""  # SLURM_PROCID, GROUP_RANK, --node-rank
    domain: str = ""  # its NVLink domain (ClusterUUID of its GPUs); "": unknown, or it is in none
    replacement_group: str = ""  # nodes that come and go together; "": none
    program: str = ""  # what its workers run, without folder and arguments; "": unknown
    process: str = ""  # identifies one of this node's successive processes; "": unknown
    submitted_at_ms: int = 0  # when it was given the job, in Unix time, which may be wrong; 0: unknown


class JobRules(msgspec.Struct, frozen=True):
    """What the node's machines need to know about a job; the rest of its specification concerns only the edges."""

    job_id: str
    local_world_size: int
    hang_limits: HangLimits = msgspec.field(default_factory=HangLimits)
    restart: RestartRules = msgspec.field(default_factory=RestartRules)
    workers_stop_timeout_s: float = 15.0  # SIGTERM to SIGKILL at a restart
    term_timeout_s: float = 1800.0  # the same, if the launcher itself was signalled
    rank_termination_signal: int = int(signals.SIGKILL)
    evidence_budget_s: float = 0.25
    completion_grace_s: float | None = None  # None: a rank that exits 0 while others run is not a fault
    auto_heartbeat_s: float | None = None  # longest time in which a main thread executes no bytecode; None: any
    prepares_ahead: bool = False  # serve the next store while the old workers end; not with a fixed port
    forks_ahead: bool = False  # fork the next workers meanwhile; not if they are started by exec
    rendezvous: RendezvousRules = msgspec.field(default_factory=RendezvousRules)
    facts: NodeFacts = msgspec.field(default_factory=NodeFacts)  # about this node; all else is the same on every node


STOP_SIGNALS = frozenset({signals.SIGTERM, signals.SIGINT, signals.SIGHUP})


class WorkerExit(msgspec.Struct, frozen=True):
    """How a worker process ended. Exactly one of `code` and `signal` is not None."""

    local_rank: int
    rank: int
    pid: int
    code: int | None
    signal: int | None
    at_s: float
    core_dumped: bool = False
    out_of_memory: bool = False
    error: str = ""  # last line of the message in TORCHELASTIC_ERROR_FILE; "": none
    error_at_unix_s: float | None = None  # when that error was written; decides which of a node's ranks failed first
    error_at_s: float | None = None  # the same moment on the clock that nobody sets, converted at the exit; for Cause
    unattended: bool = False  # its spawner had told it to end, for want of a supervisor: code 0 says that it has saved

    @property
    def succeeded(self) -> bool:
        return self.code == 0 and not self.unattended

    @property
    def may_be_stop(self) -> bool:
        """Whether the process was ended as schedulers and terminals end all processes of a job."""
        return self.signal in STOP_SIGNALS or (self.code is not None and self.code - 128 in STOP_SIGNALS)

    def describe(self) -> str:
        """Returns "rank 1 (pid 812) was killed by SIGKILL": subject, verb, cause; no full stop."""
        return f"rank {self.rank} (pid {self.pid}) {self.predicate}"

    @property
    def predicate(self) -> str:
        """Returns the same without its subject."""
        if self.signal is not None:
            try:
                name = signals.Signals(self.signal).name
            except ValueError:
                name = f"signal {self.signal}"
            text = f"was killed by {name}"
            if self.out_of_memory:
                text += " because memory ran out"
            if self.core_dumped:
                text += " (core dumped)"
        elif self.code == 0:
            text = "exited with code 0"
        else:
            text = f"failed with exit code {self.code}"
        return f"{text}: {self.error}" if self.error else text


class WatchMode(enum.IntEnum):
    """Says what a rank in a wrapped call is watched for (holdfast_wire.page_layout)."""

    OFF = 0
    ON = 1
    UNWINDING = 2


class CallWatch(msgspec.Struct, frozen=True):
    """The stamps of the in-process Wrapper. Silence before `since_s` does not count."""

    mode: WatchMode
    since_s: float
    progressed_at_s: float  # last time at which the main thread may have executed bytecode
    ping_at_s: float | None = None


class Progress(msgspec.Struct, frozen=True):
    """What a rank has stamped so far; times are on the supervisor's clock."""

    initialised_at_s: float
    out_of_section_since_s: float
    heartbeat_at_s: float | None = None
    heartbeats: int = 0
    open_sections: tuple[tuple[str, float], ...] = ()  # (name, opened_at_s), monitored ones only
    first_step_seen: bool = False
    steps_since_first: int = 0
    read_at_s: float | None = None  # time just before the page was read; None: when the event is handled
    call_watch: CallWatch | None = None  # None: the rank has no Wrapper
    executed_at_s: float | None = None  # when its main thread may have executed bytecode last; None: not watched


class StackGroup(msgspec.Struct, frozen=True):
    """Ranks whose main threads are at the same place; `stack` has the innermost frame last."""

    ranks: tuple[int, ...]
    stack: str
    frames: tuple[Frame, ...] = ()  # the innermost frames of `stack`; empty if only people read it


class Evidence(msgspec.Struct, frozen=True):
    """The stacks of a job's ranks, the unusual ones first, what else is known about the ranks, and what is missing."""

    groups: tuple[StackGroup, ...] = ()
    notes: tuple[str, ...] = ()
    source: str = ""  # py-spy, faulthandler
    took_s: float = 0.0
    facts: tuple[RankFacts, ...] = ()

    def summary(self) -> str:
        """Returns a sentence: "rank 2 stands in load (data.py:88); ranks 0, 1, 3 stand in all_reduce (c10d.py:12)"."""
        parts: list[str] = []
        for group in self.groups:
            plural = len(group.ranks) != 1
            names = ", ".join(map(str, group.ranks))
            lines = [line.strip() for line in group.stack.strip().splitlines()]
            where = lines[-1] if lines else "an unknown place"
            parts.append(f"rank{'s' if plural else ''} {names} {'stand' if plural else 'stands'} in {where}")
        return "; ".join(parts)


class Assignment(msgspec.Struct, frozen=True):
    """One node's part in a cycle: the outcome of a rendezvous."""

    cycle: int
    group_rank: int = 0
    group_world_size: int = 1
    world_size: int = 1
    first_rank: int = 0  # global rank of local rank 0
    epoch: int = 0  # of the leader that has ordered the cycle (fencing_epochs.py); 0: unknown


class Cause(msgspec.Struct, frozen=True):
    """The first failure among the workers of a node."""

    sentence: str
    age_s: float | None = None  # how long before the report its error file was written, on the clock of its node

    def later(self, by_s: float) -> Cause:
        """Returns the same for a report that is sent so much later."""
        return self if self.age_s is None else msgspec.structs.replace(self, age_s=self.age_s + by_s)


class Verdict(msgspec.Struct, frozen=True):
    """How a job ended, the same on every node."""

    state: JobState  # succeeded, failed or stopped
    exit_code: int
    reason: str


class JobEvent(msgspec.Struct, frozen=True):
    """Something that happened to a job, for the journal, the log and watchers. `kind` is a snake_case constant."""

    kind: str
    reason: str
    cycle: int = 0
    rank: int | None = None
    details: tuple[tuple[str, str], ...] = ()
    iteration: int = 0  # of the wrapped call


class RankView(msgspec.Struct, frozen=True):
    """One rank as status shows it. `state`: starting, running, hung, exited, failed or stopped."""

    local_rank: int
    rank: int
    state: str
    pid: int | None = None
    exit: WorkerExit | None = None
    limits: HangLimits | None = None  # None: no client has connected to be watched
    progress: Progress | None = None  # as last read; the page is newer
    in_call: bool = False  # the Wrapper's timeouts decide, not the limit of its main thread


class JobView(msgspec.Struct, frozen=True):
    """One job as status shows it; `cycle` is -1 before the first."""

    job_id: str
    state: JobState
    cycle: int
    reason: str
    assignment: Assignment | None = None
    cycle_started_at_s: float | None = None
    ranks: tuple[RankView, ...] = ()
    limits: HangLimits = msgspec.field(
        default_factory=HangLimits
    )  # for the next client: calculated limits override configured ones
    verdict: Verdict | None = None  # once it has ended
    checks: tuple[CheckView, ...] = ()  # this node's
    script: str = ""  # when it was seen again after a restart; only on the node of rank 0
