"""What can a job be at on one node, and how do people call that?"""

from __future__ import annotations

from typing import assert_never

import msgspec

from supervisor.core.facts import Assignment, HangLimits, JobRules, JobState, Verdict


class Pending(msgspec.Struct, frozen=True):
    """The spawner is being started."""


class Rendezvous(msgspec.Struct, frozen=True):
    """Ready for the next cycle; the coordinator orders it."""


class AwaitingStore(msgspec.Struct, frozen=True):
    assignment: Assignment


class Starting(msgspec.Struct, frozen=True):
    """Workers are being started."""


class Running(msgspec.Struct, frozen=True):
    pass


class Finished(msgspec.Struct, frozen=True):
    """All ranks of this node have exited 0; the coordinator knows whether the others have."""


class Rejoin(msgspec.Struct, frozen=True):
    """`announced`: the coordinator has opened the next cycle, so a lost spawner is worth a new one."""

    announced: bool


class StartNext(msgspec.Struct, frozen=True):
    assignment: Assignment
    reason: str


class Finish(msgspec.Struct, frozen=True):
    verdict: Verdict


class FinishStopped(msgspec.Struct, frozen=True):
    """A person or a signal (0: a command) wants the end."""

    signal: int
    reason: str


Then = Rejoin | StartNext | Finish | FinishStopped


class Stopping(msgspec.Struct, frozen=True):
    """The workers are being ended; `then` is what follows."""

    then: Then


class Down(msgspec.Struct, frozen=True):
    """No spawner and no workers after a fault; the coordinator decides whether there will be new ones."""


class AwaitingVerdict(msgspec.Struct, frozen=True):
    """Stopped; the coordinator was told and makes the verdict known everywhere."""

    verdict: Verdict


class Ended(msgspec.Struct, frozen=True):
    verdict: Verdict


InCycle = AwaitingStore | Starting | Running | Finished
Phase = Pending | Rendezvous | InCycle | Stopping | Down | AwaitingVerdict | Ended


class State(msgspec.Struct, frozen=True):
    """Of the machine job.py. `cycle` is the last one ordered, -1 before the first."""

    node: str
    rules: JobRules
    phase: Phase
    cycle: int = -1
    reason: str = ""  # the sentence behind the phase
    limits: HangLimits | None = None  # calculated by the ranks; they outlive cycles
    has_spawner: bool = False  # or one is being started
    hang: str = ""  # found in this cycle, its fault follows
    first_failure: str = ""  # the worker's, as reported in this cycle
    shutdown: str = ""  # a rank asked for the end at the next fault
    stop_asked_at_s: float | None = None
    assignment: Assignment | None = None
    cycle_started_at_s: float | None = None


def shown_state(state: State) -> JobState:
    """The state as people see it."""
    is_first = state.cycle < 0
    match state.phase:
        case Pending():
            return JobState.PENDING if is_first else JobState.RESTARTING
        case Rendezvous():
            return JobState.RENDEZVOUS if is_first else JobState.RESTARTING
        case AwaitingStore() | Starting():
            return JobState.STARTING
        case Running() | Finished():
            return JobState.RUNNING
        case Stopping(then):
            return JobState.RESTARTING if isinstance(then, Rejoin | StartNext) else JobState.STOPPING
        case Down():
            return JobState.RESTARTING
        case AwaitingVerdict():
            return JobState.STOPPING
        case Ended(verdict):
            return verdict.state
        case _:
            assert_never(state.phase)
