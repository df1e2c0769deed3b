"""What can happen to the jobs of a node, and what can the node request?

This is the vocabulary of `node.py`, shared with the engine and its edges. Events are past tense, actions imperative. An
event that names an older cycle than the job's own is fenced: it changes nothing.
"""

from __future__ import annotations

import msgspec

from supervisor.core.cluster import cluster_messages
from supervisor.core.facts import Assignment, Evidence, HangLimits, JobEvent, JobRules, Progress, Verdict, WorkerExit
from supervisor.core.gpu_memory import MemoryReport, MemoryRules
from supervisor.core.node_check_facts import CheckPlan, HealthFinding
from supervisor.core.orders import Order
from supervisor.core.process_facts import RankLook
from supervisor.core.wrapped_calls.call_messages import FromRank, ToRank

# --- events: from people, the spawner, clients, the clock ----------------------------------------------------------


class JobSubmitted(msgspec.Struct, frozen=True):
    rules: JobRules
    checks: tuple[CheckPlan, ...] = ()  # that this node must pass before it joins
    memory: MemoryRules | None = None  # how to wait for GPU memory at a restart; None: don't
    node: str = ""  # this node's name in the job; "": its own
    settings: tuple[tuple[str, str], ...] = ()  # explicitly given settings, for the record


class SpawnerReady(msgspec.Struct, frozen=True):
    job_id: str
    number: int  # as StartSpawner gave it
    starts_workers: bool = True  # False: others start the ranks
    refusal: str = ""  # why the job's command can't be run at all
    refusal_code: int = 1  # the job's exit code then


class SpawnerLost(msgspec.Struct, frozen=True):
    """The spawner has ended, as ordered or not, or could not be started; nothing of its workers is left."""

    job_id: str
    number: int
    reason: str


class SpawnerBroken(msgspec.Struct, frozen=True):
    """An order could not be sent to the spawner."""

    job_id: str
    reason: str


class StoreReady(msgspec.Struct, frozen=True):
    job_id: str
    cycle: int
    host: str
    port: int


class StoreFailed(msgspec.Struct, frozen=True):
    """No store could be served, or the store host died under a running cycle."""

    job_id: str
    cycle: int
    reason: str


class WorkerSpawned(msgspec.Struct, frozen=True):
    job_id: str
    cycle: int
    local_rank: int
    pid: int


class SpawnFailed(msgspec.Struct, frozen=True):
    job_id: str
    cycle: int
    local_rank: int
    reason: str
    exit_code: int


class WorkerExited(msgspec.Struct, frozen=True):
    job_id: str
    cycle: int
    exit: WorkerExit


class WorkerEndSeen(msgspec.Struct, frozen=True):
    """The worker's process has ended; the spawner's report on how should follow at once."""

    job_id: str
    cycle: int
    local_rank: int


class RankStopped(msgspec.Struct, frozen=True):
    """A signal has stopped the worker's process, says the kernel to its parent."""

    job_id: str
    cycle: int
    local_rank: int
    pid: int
    signal: int
    at_s: float


class RankContinued(msgspec.Struct, frozen=True):
    job_id: str
    cycle: int
    local_rank: int
    at_s: float


class RankPrinted(msgspec.Struct, frozen=True):
    """The first output of a worker, as far as it passes through the spawner; not in the first cycle."""

    job_id: str
    cycle: int
    local_rank: int
    at_s: float


class RanksLookedAt(msgspec.Struct, frozen=True):
    """What the ranks still do, as far as it can be seen (answer to LookAtRanks)."""

    job_id: str
    cycle: int
    looks: tuple[RankLook, ...] = ()


class WorkersEmptied(msgspec.Struct, frozen=True):
    """Nothing of the cycle is left on this node (answer to KillTree)."""

    job_id: str
    cycle: int
    stuck_pids: tuple[int, ...] = ()


class ClientJoined(msgspec.Struct, frozen=True):
    """A worker's client said hello; its monitoring starts over."""

    job_id: str
    cycle: int
    local_rank: int
    limits: HangLimits
    progress: Progress


class ClientLeft(msgspec.Struct, frozen=True):
    """The client said goodbye or its connection ended: no limits apply until the next hello."""

    job_id: str
    cycle: int
    local_rank: int


class ProgressRead(msgspec.Struct, frozen=True):
    """The page was read, as an answer to ReadProgress, or because a section opened or an older silence was found."""

    job_id: str
    cycle: int
    local_rank: int
    progress: Progress


class LimitsCalculated(msgspec.Struct, frozen=True):
    """The ranks have calculated new limits together, which apply to this rank, and to all in later cycles."""

    job_id: str
    cycle: int
    local_rank: int
    limits: HangLimits


class ControlRequested(msgspec.Struct, frozen=True):
    """A rank called send_workload_control_request(): "continue", "exclude_this_node" or "shutdown_workload".

    Its client sends it again on each connection until Accepted answers.
    """

    job_id: str
    cycle: int
    local_rank: int
    action: str
    description: str
    request_id: int = 0  # of the answer; 0: nobody waits for one


class RankSaid(msgspec.Struct, frozen=True):
    """The rank's Wrapper has sent a message."""

    job_id: str
    cycle: int
    local_rank: int
    word: FromRank


class EvidenceCollected(msgspec.Struct, frozen=True):
    job_id: str
    cycle: int
    evidence: Evidence


class StopRequested(msgspec.Struct, frozen=True):
    """An operator, or a signal to the launcher, stops the job. `signal` 0: a `stop` command (SIGTERM to the ranks)."""

    job_id: str
    reason: str
    signal: int = 0
    grace_s: float | None = None  # how long the ranks may take; None: as configured
    running: tuple[int, ...] = ()  # ranks that still run; the node adds them to what it was told
    of_node: bool = False  # only this node's part is to end: its launcher, or its supervisor, was told to end
    leaves: bool = False  # if so, other nodes take over its ranks where they can (--on-sigterm leave)


class LeaveRequested(msgspec.Struct, frozen=True):
    """An operator wants this node out of the job, which goes on."""

    job_id: str
    reason: str


class CordonRequested(msgspec.Struct, frozen=True):
    """An operator keeps this node out of later cycles; `reason` "": it may take part again."""

    job_id: str
    reason: str


class RestartRequested(msgspec.Struct, frozen=True):
    """An operator asks for a new cycle, which uses no restart of the budget."""

    job_id: str
    reason: str


class Ordered(msgspec.Struct, frozen=True):
    """The job's coordinator, here or on another node, has given this node an order."""

    job_id: str
    order: Order


class NodeChecked(msgspec.Struct, frozen=True):
    """A check of this node has findings (answer to CheckNode)."""

    job_id: str
    check: str
    number: int
    findings: tuple[HealthFinding, ...]
    is_last: bool = True  # False: findings so far, which end the patience of a waiting join


class GpuMemorySeen(msgspec.Struct, frozen=True):
    """The memory of the job's GPUs is free, or the wait has timed out (answer to AwaitGpuMemory)."""

    job_id: str
    cycle: int
    report: MemoryReport


class FenceMoved(msgspec.Struct, frozen=True):
    """The leader of the job has heard this node and will not replace it before `until_s`."""

    job_id: str
    until_s: float


class SupervisorReturned(msgspec.Struct, frozen=True):
    """This supervisor takes over the job of a lost one: no client is connected yet, and no page can be read."""

    job_id: str


class JobAbandoned(msgspec.Struct, frozen=True):
    """A bug in Holdfast occurred in a decision on this job, which therefore ends; no other job is affected."""

    job_id: str
    reason: str


class ProcessPaused(msgspec.Struct, frozen=True):
    """This process did not run for some time since `since_s`, and its ranks may not have run either.

    So it is when a whole job or machine is suspended, which stops no clock.
    """

    since_s: float


class DeadlineReached(msgspec.Struct, frozen=True):
    """The engine's one timer fired; a stale or early one has no effect."""


SpawnerReport = SpawnerReady | SpawnerLost | StoreReady | StoreFailed
WorkerReport = WorkerSpawned | SpawnFailed | WorkerExited | WorkersEmptied
ClientReport = ClientJoined | ClientLeft | ProgressRead | RankSaid
PlainReport = RankStopped | RankContinued | RankPrinted | RanksLookedAt  # what is seen of a rank that says nothing
UnsentOfJob = (
    SpawnerBroken | WorkerEndSeen | LimitsCalculated | ControlRequested | EvidenceCollected | StopRequested
    | LeaveRequested | CordonRequested | RestartRequested | Ordered | FenceMoved | SupervisorReturned
)  # fmt: skip
ReportOfJob = SpawnerReport | WorkerReport | PlainReport | ClientReport | UnsentOfJob
EventOfNode = JobSubmitted | JobAbandoned | ProcessPaused | DeadlineReached
Event = EventOfNode | ReportOfJob | NodeChecked | GpuMemorySeen

# --- actions -------------------------------------------------------------------------------------------------------


class StartSpawner(msgspec.Struct, frozen=True):
    """Start a spawner. `number` counts the job's spawners from 1; the spawner's reports carry it."""

    job_id: str
    number: int


class PrepareStore(msgspec.Struct, frozen=True):
    """Serve the store of the cycle, which may be the next one; answered by StoreReady or StoreFailed."""

    job_id: str
    cycle: int


class ForkAhead(msgspec.Struct, frozen=True):
    """Fork processes ahead, which will become the workers of the next cycle. Not answered."""

    job_id: str
    cycle: int
    workers: int


class SpawnWorkers(msgspec.Struct, frozen=True):
    """Start all local ranks of the assignment, with the store of this cycle."""

    job_id: str
    assignment: Assignment
    store_host: str
    store_port: int


class RespawnWorkers(msgspec.Struct, frozen=True):
    """Start new processes for these local ranks of the running cycle; nothing of the old ones is left."""

    job_id: str
    cycle: int
    local_ranks: tuple[int, ...]


class Accepted(msgspec.Struct, frozen=True):
    """Answers ControlRequested, whatever follows from it. Leaves once the request is kept for the next supervisor."""

    request_id: int


class TellRanks(msgspec.Struct, frozen=True):
    """Send a message to these ranks. One that is not connected gets an order to its Wrapper when it comes back."""

    job_id: str
    cycle: int
    local_ranks: tuple[int, ...]
    order: ToRank | Accepted


class ReconnectRanks(msgspec.Struct, frozen=True):
    """Have the ranks' clients reconnect, so that each reports its stage in its wrapped call."""

    job_id: str
    cycle: int


class SignalWorkers(msgspec.Struct, frozen=True):
    """Send a signal to workers; no local ranks: to all. `tree`: to their whole sessions. `resume`: SIGCONT first, but
    not before SIGKILL.

    `sessions`: pids of ended workers; the processes that they left behind get the signal. `grace_s`: how long the
    workers have until they are killed; 0: not said.
    """

    job_id: str
    cycle: int
    signal: int
    local_ranks: tuple[int, ...] = ()
    tree: bool = True
    resume: bool = False
    sessions: tuple[int, ...] = ()
    grace_s: float = 0.0


class KillTree(msgspec.Struct, frozen=True):
    """Kill everything of the cycle, including escaped processes; answered by WorkersEmptied."""

    job_id: str
    cycle: int


class MoveFence(msgspec.Struct, frozen=True):
    """Have the spawner kill everything it has started at `until_s`, unless it gets a later fence first.

    So the workers end in time even if this process stalls. The ranks' lease holds as long.
    """

    job_id: str
    until_s: float


class EndSpawner(msgspec.Struct, frozen=True):
    """End the spawner; answered by SpawnerLost once its process is gone."""

    job_id: str


class KillSpawner(msgspec.Struct, frozen=True):
    """Kill the spawner and everything it has started; answered by SpawnerLost."""

    job_id: str
    reason: str


class ReadProgress(msgspec.Struct, frozen=True):
    """Read the rank's page now; answered at once by ProgressRead (or nothing if there is no client)."""

    job_id: str
    cycle: int
    local_rank: int


class CollectEvidence(msgspec.Struct, frozen=True):
    """Take the stacks of all ranks, the `accused` (global ranks) first; EvidenceCollected answers within the budget."""

    job_id: str
    cycle: int
    budget_s: float
    accused: tuple[int, ...] = ()
    apart_s: float = 0.0  # at least this long between the two looks at each process


class LookAtRanks(msgspec.Struct, frozen=True):
    """See what the ranks still do that are to end; answered by RanksLookedAt."""

    job_id: str
    cycle: int
    budget_s: float


class CheckNode(msgspec.Struct, frozen=True):
    """Run one check of this node; answered by NodeChecked with the same number, which counts its looks."""

    job_id: str
    check: str
    number: int


class AwaitGpuMemory(msgspec.Struct, frozen=True):
    """Wait until the memory of the job's GPUs is free, for `rules.timeout_s`; answered by GpuMemorySeen."""

    job_id: str
    cycle: int  # the cycle that has ended
    rules: MemoryRules


class Publish(msgspec.Struct, frozen=True):
    job_id: str
    event: JobEvent


class TellCoordinator(msgspec.Struct, frozen=True):
    """Send a report to the job's coordinator, here or on another node."""

    job_id: str
    report: cluster_messages.Event


class FinishJob(msgspec.Struct, frozen=True):
    """Nothing of the job is left; its verdict is final."""

    job_id: str
    verdict: Verdict


Action = (
    StartSpawner | PrepareStore | ForkAhead | SpawnWorkers | RespawnWorkers | TellRanks | ReconnectRanks | SignalWorkers
    | KillTree | MoveFence | EndSpawner | KillSpawner | ReadProgress | CollectEvidence | LookAtRanks | CheckNode
    | AwaitGpuMemory | Publish | TellCoordinator | FinishJob
)  # fmt: skip
