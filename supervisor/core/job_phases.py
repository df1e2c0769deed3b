"""Which phases can a job have on one node, and what are their public names?"""

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


class Leave(msgspec.Struct, frozen=True):
    """The job ends; the coordinator has the verdict."""


Then = Rejoin | StartNext | Leave


class Stopping(msgspec.Struct, frozen=True):
    """The workers are being ended; `then` is what follows."""

    then: Then


class Down(msgspec.Struct, frozen=True):
    """No spawner and no workers after a fault; the coordinator decides whether there will be new ones."""


class Stopped(msgspec.Struct, frozen=True):
    """Nothing runs, and the coordinator knows; it makes the verdict known everywhere."""

    all_succeeded: bool = False


class Closing(msgspec.Struct, frozen=True):
    """The verdict is known; the spawner writes the last output and ends."""

    verdict: Verdict


class Ended(msgspec.Struct, frozen=True):
    verdict: Verdict


InCycle = AwaitingStore | Starting | Running | Finished
Phase = Pending | Rendezvous | InCycle | Stopping | Down | Stopped | Closing | Ended


class Store(msgspec.Struct, frozen=True):
    """A store that the spawner was asked for. `port` 0: it has not answered yet."""

    cycle: int
    host: str = ""
    port: int = 0


class State(msgspec.Struct, frozen=True):
    """Of the machine job.py. `cycle` is the last one ordered, -1 before the first."""

    node: str
    rules: JobRules
    phase: Phase
    cycle: int = -1
    reason: str = ""  # the sentence behind the phase
    limits: HangLimits | None = None  # calculated by the ranks; they outlive cycles
    spawners: int = 0  # so many were started, the last one has this number
    has_spawner: bool = False  # the last one lives, or is being started
    store: Store | None = None  # the newest that the living spawner was asked for; it dies with it
    hang: str = ""  # found in this cycle, its fault follows
    echo: str = ""  # a failure during that hang: the fault after all, if the hang turns out to be none
    first_failure: str = ""  # the worker's, as reported in this cycle
    shutdown: str = ""  # a rank asked for the end at the next fault
    assignment: Assignment | None = None
    cycle_started_at_s: float | None = None
    restarts_used: int = 0  # as the newest order to start a cycle says
    lost_at_s: float | None = None  # since when the job does not run; None: it does, or never did


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
        case Stopped():
            return JobState.STOPPING
        case Closing(verdict) | Ended(verdict):
            return verdict.state
        case _:
            assert_never(state.phase)


def is_to_go_on(state: State) -> bool:
    """Whether another cycle is to follow the one whose workers are being ended."""
    return isinstance(state.phase, Stopping) and isinstance(state.phase.then, Rejoin | StartNext)


def verdict_of(state: State) -> Verdict | None:
    return state.phase.verdict if isinstance(state.phase, Closing | Ended) else None
