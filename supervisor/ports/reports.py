"""How does a job look at one moment, as API, journal, command line and report share it?

Times for people are Unix nanoseconds (`…_at_ns`); ages and limits are seconds, read at the time of the request.
"""

from __future__ import annotations

from array import array

import msgspec

from supervisor.core.facts import JobState
from supervisor.core.stragglers.straggler_messages import Straggler


class SectionReport(msgspec.Struct, frozen=True):
    """An open section of a rank. `limit_s` None: no limit."""

    name: str
    age_s: float
    limit_s: float | None = None


class RankReport(msgspec.Struct, frozen=True):
    """One worker as people see it. `state`: starting, running, hung, exited, failed or stopped."""

    rank: int
    local_rank: int
    node: str
    state: str  # "stopped": we have ended it, or a signal has stopped the live process
    pid: int | None = None
    heartbeat_age_s: float | None = None  # None: no heartbeat yet
    heartbeat_limit_s: float | None = None  # for the current silence; None: no limit
    sections: tuple[SectionReport, ...] = ()
    cycle_started_at_ns: int | None = None
    exit_code: int | None = None
    exit_signal: int | None = None
    main_thread_age_s: float | None = None  # since it executed Python code; None: it is not watched
    main_thread_limit_s: float | None = None  # None: the Wrapper's timeouts decide instead

    def without_ages(self) -> RankReport:
        """Returns the rank without what was true only at the moment of the report."""
        return msgspec.structs.replace(
            self, heartbeat_age_s=None, heartbeat_limit_s=None, main_thread_age_s=None, main_thread_limit_s=None,
            sections=(),
        )  # fmt: skip


class CheckReport(msgspec.Struct, frozen=True):
    """The newest result of a node's check. `verdict`: healthy, suspect, unhealthy, unanswered or skipped."""

    check: str
    verdict: str
    reason: str = ""
    took_s: float = 0.0
    subject: str = ""  # what was checked, if the check covers several things
    found_at_ns: int = 0


class JobNodeReport(msgspec.Struct, frozen=True):
    """A node's part in a job. `state`: ready or cordoned; in a job on several nodes see core/cluster/status_view.py."""

    name: str
    state: str
    group_rank: int | None = 0  # None: it is not part of a cycle now
    reason: str = ""  # of the state
    heard_at_ns: int | None = None  # when the node was last heard, if its data is not current
    lost_at_ns: int | None = None
    ranks: tuple[int, ...] = ()  # ranks that it runs, or ran when last heard
    log_dir: str = ""  # on that node
    checks: tuple[CheckReport, ...] = ()
    unreachable_pid: int | None = None  # of its spawner, if that does not answer
    unreachable_state: str = ""  # of that process, its letter in /proc/PID/stat


class JobReport(msgspec.Struct, frozen=True):
    """One run of a job at one moment. Never contains an environment value or a token."""

    job_id: str
    state: JobState
    submitted_at_ns: int  # tells runs of one id apart
    cycle: int = 0
    iteration: int = 0
    max_restarts: int = 0
    restarts_used: int = 0
    reason: str = ""  # the reason of the state, as a sentence
    nodes: tuple[JobNodeReport, ...] = ()
    ranks: tuple[RankReport, ...] = ()
    exit_code: int | None = None  # once it has ended
    ended_at_ns: int | None = None
    log_dir: str = ""  # of this run only
    command: tuple[str, ...] = ()  # as the user typed it, without its secrets
    supervisor_pid: int = 0
    stragglers: tuple[Straggler, ...] = ()  # the slowest first
    script: str = ""  # when it was seen again after a restart

    @property
    def list_key(self) -> tuple[int, str]:
        """Returns the run's key in lists, which begin with the greatest: the newest run has it."""
        return self.submitted_at_ns, self.job_id


class NodeReport(msgspec.Struct, frozen=True):
    """A node with its supervisor. `state`: ready or cordoned; of another node also left, lost or unknown."""

    name: str
    state: str
    reason: str = ""
    job_ids: tuple[str, ...] = ()
    supervisor_pid: int = 0
    version: str = ""
    started_at_ns: int = 0
    checks: tuple[CheckReport, ...] = ()  # those that its jobs have requested
    leaves: tuple[str, ...] = ()  # jobs that it was asked to leave, in the answer to that
    cordon_ends: bool = False  # in the answer to a cordon: it ends with the node's job, since no daemon keeps it


class CycleInfo(msgspec.Struct, frozen=True):
    """A cycle as other programs read it in a file."""

    job_id: str  # the scheduler's id of the job
    attempt: int
    cycle: int
    started_at_ns: int
    ended_at_ns: int | None  # None: it is running
    log_path: str
    active_nodes: str
    standby_nodes: str
    active_ranks: str
    generation: int  # counts the writes of this record from 0
    stem: str  # how the names of the job's records begin


class RecordedEvent(msgspec.Struct, frozen=True):
    """One event of a job. `sequence` counts the job's events from 1 without gaps."""

    job_id: str
    sequence: int
    at_ns: int
    kind: str  # constant name in snake_case
    reason: str
    cycle: int = 0
    iteration: int = 0
    node: str = ""
    rank: int | None = None
    details: tuple[tuple[str, str], ...] = ()

    @property
    def identity(self) -> tuple[str, int, str, int | None]:
        """Returns a key that is the same on all nodes of the job, which number its events differently."""
        return self.node, self.at_ns, self.kind, self.rank


class SeenEvents:
    """Decides which events of one job are new, whichever sources tell them, one source after another.

    A source numbers the events itself and tells each once. What another source told is known by its identity, of which
    a hash is kept: 8 bytes an event as long as there is one source, because a job may have 200,000 events.
    """

    def __init__(self) -> None:
        self._told = array("q")  # by the present source
        self._earlier: set[int] = set()

    def next_source(self) -> None:
        """Notes that the next events come from another source, or from the same one with other numbers."""
        self._earlier.update(self._told)
        self._told = array("q")

    def is_new(self, event: RecordedEvent) -> bool:
        """Returns whether no earlier source told the event, which counts as told from now on."""
        key = hash(event.identity)
        if key in self._earlier:
            return False
        self._told.append(key)
        return True


class LogBytes(msgspec.Struct, frozen=True):
    """Some bytes of one rank's output; they may begin or end within a line."""

    rank: int
    cycle: int
    is_stderr: bool
    output: bytes
    file: int = 0  # where they are; see LogPiece
    offset: int = 0
