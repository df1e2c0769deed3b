"""Which phases can a job have on one node, and what are their public names?"""

from __future__ import annotations

from typing import assert_never

import msgspec

from supervisor.core.cluster.cluster_messages import LeaveAsked
from supervisor.core.facts import Assignment, HangLimits, JobRules, JobState, Verdict


class Pending(msgspec.Struct, frozen=True):
    """The spawner is being started. `refusal`: it has said why the command can't be run, which ends the job here."""

    refusal: str = ""
    refusal_code: int = 1


class Rendezvous(msgspec.Struct, frozen=True):
    """The node is ready for the next cycle, which the coordinator orders."""


class AwaitingStore(msgspec.Struct, frozen=True):
    assignment: Assignment


class Starting(msgspec.Struct, frozen=True):
    """Workers are being started."""


class Running(msgspec.Struct, frozen=True):
    pass


class Finished(msgspec.Struct, frozen=True):
    """All ranks of this node have exited 0; the coordinator knows about the other nodes."""

    lost: tuple[int, ...] = ()  # ranks that wrapped calls have gone on without


class Rejoin(msgspec.Struct, frozen=True):
    """The node joins again. `announced`: the coordinator has opened a round, so a lost spawner is replaced."""

    announced: bool


class StartNext(msgspec.Struct, frozen=True):
    assignment: Assignment
    reason: str


class Leave(msgspec.Struct, frozen=True):
    """The job is ending; the coordinator has the verdict, unless it has ended without this node, and how is known."""

    verdict: Verdict | None = None


Then = Rejoin | StartNext | Leave


class Stopping(msgspec.Struct, frozen=True):
    """The workers are being stopped; `then` follows."""

    then: Then


class Down(msgspec.Struct, frozen=True):
    """After a fault, neither spawner nor workers exist; the coordinator decides whether to start new ones."""


class Stopped(msgspec.Struct, frozen=True):
    """Nothing runs, and the coordinator knows; it sends the verdict to all nodes."""

    all_succeeded: bool = False


class Closing(msgspec.Struct, frozen=True):
    """The verdict is known; the spawner writes the last output and exits."""

    verdict: Verdict
    is_alone: bool = False  # only this node ends, since it can't run the command


class Ended(msgspec.Struct, frozen=True):
    verdict: Verdict


InCycle = AwaitingStore | Starting | Running | Finished
Phase = Pending | Rendezvous | InCycle | Stopping | Down | Stopped | Closing | Ended


class Store(msgspec.Struct, frozen=True):
    """A store requested from the spawner. `port` 0: it has not answered yet."""

    cycle: int
    host: str = ""
    port: int = 0


class Leaving(msgspec.Struct, frozen=True):
    """The node was asked to leave the job. `alone_at_s`: then it leaves without an answer; None: never."""

    asked: LeaveAsked
    asked_at_s: float
    alone_at_s: float | None
    is_alone: bool = False
    is_granted: bool = False  # the leader has answered: the job restarts without this node


class State(msgspec.Struct, frozen=True):
    """The state of the machine job.py. `cycle` is the last one ordered, -1 before the first."""

    node: str
    rules: JobRules
    phase: Phase
    cycle: int = -1
    reason: str = ""  # a sentence that explains the phase
    limits: HangLimits | None = None  # calculated by the ranks; kept across cycles
    spawners: int = 0  # how many were started; also the number of the last
    has_spawner: bool = False  # the last one is alive or being started
    store: Store | None = None  # the newest one requested from the current spawner; dies with it
    hang: str = ""  # a hang found in this cycle; its fault follows
    echo: str = ""  # a failure during that hang; it is the fault if the hang proves false
    first_failure: str = ""  # the first worker failure reported in this cycle
    shutdown: str = ""  # a rank has asked to end the job at the next fault
    limit_told: bool = False  # that a limit interrupts wrapped calls, because it is shorter than their timeouts
    assignment: Assignment | None = None
    cycle_started_at_s: float | None = None
    restarts_used: int = 0  # according to the newest StartCycle
    decided: Verdict | None = None  # how the job ends, as its leader has said; None: it goes on, or is stopped
    stop_reason: str = ""  # of the first stop asked for here, which ends the workers at once; "": none
    stop_signal: int = 0  # 0: a command
    stop_is_final: bool = False  # an operator's, after which no scheduler may start the job again
    stop_grace_s: float | None = None  # how long the ranks may take; None: as configured
    stop_at_once: bool = False  # the ranks of all nodes are to be killed, as was asked with it or since
    stop_at_s: float | None = None  # when it was asked for
    last_signal: int = 0  # to this node's launcher, or by a command typed here; one request counts once; 0: none
    last_signal_at_s: float = 0.0
    leaving: Leaving | None = None
    cordoned: str = ""  # why an operator keeps this node out of later cycles for now
    excluded: str = ""  # why this node takes part in no later cycle
    # A leader has answered this node, or the backend that elects one: another may take this one's place since then.
    has_met_leader: bool = False
    lost_at_s: float | None = None  # since when the job is not running; None: it runs, or never ran


def shown_state(state: State) -> JobState:
    """Returns the state as people see it."""
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
    """Returns whether another cycle follows the one whose workers are being stopped."""
    return isinstance(state.phase, Stopping) and isinstance(state.phase.then, Rejoin | StartNext)


def verdict_of(state: State) -> Verdict | None:
    return state.phase.verdict if isinstance(state.phase, Closing | Ended) else None
