"""What makes up a job's life: cycles, runs of ranks, incidents with their phases, and how its time was spent?

Times are Unix nanoseconds. `until_ns` and `ended_ns` None: not over yet.
"""

from __future__ import annotations

import enum

import msgspec

from supervisor.core.facts import JobState
from supervisor.ports.reports import JobNodeReport, RecordedEvent


class Phase(enum.StrEnum):
    """What the job as a whole is doing; its whole time is divided among these phases."""

    WAITING = "waiting"  # before the first cycle: the spawner loads, nodes meet
    STARTING = "starting"  # from the beginning of a cycle until all its ranks have started
    RUNNING = "running"
    UNNOTICED = "unnoticed"  # a rank is silent, but its limit has not run out yet
    DECIDING = "deciding"  # from the first sign of a fault until workers are stopped
    STOPPING = "stopping"
    MEETING = "meeting"  # nothing runs: nodes meet, GPU memory is not free yet, or the policy delays
    INTERRUPTED = "interrupted"  # a restart inside the processes
    ENDING = "ending"  # after the last work, until nothing is left


class Span(msgspec.Struct, frozen=True):
    phase: Phase
    from_ns: int
    to_ns: int
    cycle: int = 0

    @property
    def took_s(self) -> float:
        return (self.to_ns - self.from_ns) / 1e9


class RunEnd(enum.StrEnum):
    """How one run of a rank's process ended."""

    RUNS = "runs"
    EXITED = "exited"  # with code 0
    FAILED = "failed"
    STOPPED = "stopped"  # by us, because another one failed or the job was stopped
    LOST = "lost"  # with its node, or never heard of again


class Run(msgspec.Struct, frozen=True):
    """One process of one rank."""

    rank: int
    node: str
    cycle: int
    started_ns: int
    ended_ns: int | None = None
    end: RunEnd = RunEnd.RUNS
    reason: str = ""


class Cycle(msgspec.Struct, frozen=True):
    number: int
    began_ns: int
    started_ns: int | None = None  # all its ranks have started
    stopping_ns: int | None = None
    stopped_ns: int | None = None
    nodes: tuple[str, ...] = ()
    ranks: int = 0
    reason: str = ""  # the sentence with which it began


class Trouble(enum.StrEnum):
    """What kind of incident it was."""

    HANG = "hang"
    FAILURE = "failure"  # a process has failed or was killed
    EXCEPTION = "exception"  # in a wrapped call; the process survives
    NODE_LOST = "node lost"
    REQUESTED = "requested"  # by a person or a program
    OTHER = "other"


class Outcome(enum.StrEnum):
    RESTARTED = "restarted"  # all workers, in a new cycle
    INSIDE = "restarted inside the processes"
    TOLERATED = "tolerated"
    ENDED_JOB = "ended the job"
    OPEN = "open"


class StackGroup(msgspec.Struct, frozen=True):
    """Ranks that were at the same place. The innermost frame is the last line."""

    ranks: str  # "0, 1, 3"
    stack: str


class LastWords(msgspec.Struct, frozen=True):
    """The last lines that a rank printed, or why there are none."""

    rank: int
    lines: tuple[str, ...] = ()
    note: str = ""


class Incident(msgspec.Struct, frozen=True):
    """A fault, or a request, and everything that was done about it until the ranks ran again."""

    number: int
    trouble: Trouble
    outcome: Outcome
    began_ns: int  # of a hang: when the silence began
    noticed_ns: int
    until_ns: int | None
    cycle: int
    iteration: int
    cause: str
    culprits: tuple[int, ...] = ()
    node: str = ""  # of the culprit
    nodes: tuple[str, ...] = ()  # of all culprits, if they ran on several
    decision: str = ""
    script: str = ""  # when it was first seen after the restart
    followers: tuple[int, ...] = ()  # ranks that failed after it
    units_used: int | None = None  # of the restart budget, up to and with this one
    phases: tuple[Span, ...] = ()
    stacks: tuple[StackGroup, ...] = ()  # the unusual ones first
    stacks_note: str = ""
    last_words: tuple[LastWords, ...] = ()
    events: tuple[RecordedEvent, ...] = ()

    def cost_s(self, now_ns: int) -> float:
        """Returns the time from its beginning until the ranks ran again."""
        if self.outcome is Outcome.TOLERATED:
            return 0.0
        return max(0, (self.until_ns if self.until_ns is not None else now_ns) - self.began_ns) / 1e9


class Setting(msgspec.Struct, frozen=True):
    """A setting that was given explicitly; all others had their defaults."""

    name: str
    value: str
    source: str


class LongestSilence(msgspec.Struct, frozen=True):
    """The longest time in which a main thread executed no Python code, and then went on."""

    longest_s: float
    limit_s: float
    rank: int | None
    cycle: int


class Checkpoints(msgspec.Struct, frozen=True):
    """Figures about the checkpoints of one section. None: no fault has struck the job yet."""

    section: str
    times: int  # at least; the last few of a cycle may not be counted
    pause_s: float  # how long one takes, on the slowest rank
    interval_s: float  # of training between two
    faults: int  # that lost steps
    between_faults_s: float | None = None  # of running time
    cost_share: float | None = None  # of running time: checkpoints, and steps that are repeated
    best_interval_s: float | None = None
    best_cost_share: float | None = None

    @property
    def pause_share(self) -> float:
        """Returns the share of the running time in which checkpoints are written."""
        return self.pause_s / (self.interval_s + self.pause_s) if self.pause_s else 0.0


class Life(msgspec.Struct, frozen=True):
    """The life of one job, as far as its events show it."""

    job_id: str
    state: JobState
    reason: str
    command: tuple[str, ...]
    began_ns: int
    until_ns: int  # its end, or the time of the query
    has_ended: bool
    exit_code: int | None
    max_restarts: int
    restarts_used: int
    log_dir: str
    nodes: tuple[JobNodeReport, ...]
    ranks: int  # of the largest cycle
    course: tuple[Span, ...] = ()  # the whole time, without gaps
    cycles: tuple[Cycle, ...] = ()
    runs: tuple[Run, ...] = ()  # by node, rank and time
    incidents: tuple[Incident, ...] = ()
    marks: tuple[RecordedEvent, ...] = ()  # other events that people should read
    stragglers: tuple[RecordedEvent, ...] = ()
    silence: LongestSilence | None = None  # the longest of all that were measured
    checkpoints: tuple[Checkpoints, ...] = ()  # one for each section, those that took longest in total first
    settings: tuple[Setting, ...] = ()
    gaps: tuple[str, ...] = ()  # what is not known, and why

    @property
    def whole_s(self) -> float:
        return (self.until_ns - self.began_ns) / 1e9

    def spent_s(self, *phases: Phase) -> float:
        return sum(span.took_s for span in self.course if span.phase in phases)

    @property
    def running_share(self) -> float | None:
        """The share of the job's time in which it ran; None before there was any."""
        return self.spent_s(Phase.RUNNING) / self.whole_s if self.until_ns > self.began_ns else None
