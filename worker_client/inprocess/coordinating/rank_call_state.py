"""Which phase of a wrapped call has this rank reached, and what must it therefore report, and repeat?

A machine without locks, clocks or connections: only `step()` changes it. It decides nothing for the job. A new
connection may lead to a supervisor that knows nothing, so each connection repeats everything that still applies.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, assert_never

from worker_client.call_protocol import (
    Barrier,
    BarrierArrive,
    BeginIteration,
    CallCompleted,
    CallEnter,
    CallEvent,
    CallLeave,
    CallRefused,
    CallUnderway,
    Committed,
    Entered,
    Exchanged,
    ExchangeValue,
    FaultRecord,
    FaultsReported,
    Interrupt,
    IterationBegan,
    RankFault,
    RanksMissing,
    Restart,
    Stage,
    Word,
)

# --- what the main thread does --------------------------------------------------------------------------------------


class CallPhase(enum.Enum):
    """Where the main thread is. After RESTARTING comes RUNNING of the next iteration."""

    OUTSIDE = enum.auto()  # not at the entry yet: reports nothing
    ENTERING = enum.auto()  # at the entry, or in the first rank assignment
    RUNNING = enum.auto()
    COMPLETING = enum.auto()  # waits for the commit
    UNWINDING = enum.auto()  # out of the function, not yet at the end of the iteration
    RESTARTING = enum.auto()  # waits for the next iteration, or assigns its ranks
    LEFT = enum.auto()  # takes no further part


class Move(enum.Enum):
    """A step of the main thread."""

    ENTRY_ASKED = enum.auto()
    FUNCTION_LEFT = enum.auto()
    COMPLETION_REACHED = enum.auto()
    RESTART_REACHED = enum.auto()


class AssignmentBegun(NamedTuple):
    iteration: int


class WaitOverdue(NamedTuple):
    """The wait of this phase, or for the values under `name`, takes too long: which ranks are missing?"""

    name: str = ""


# Its words are what is sent: they name the iteration that is being assigned, a fault the current one.
MainThreadWord = ExchangeValue | IterationBegan | RankFault | CallLeave
MainThreadEvent = Move | AssignmentBegun | WaitOverdue | MainThreadWord


class Link(enum.Enum):
    CONNECTED = enum.auto()  # to a supervisor that may know nothing
    DISCONNECTED = enum.auto()


Event = MainThreadEvent | Link | CallEvent

# --- what the supervisor has decided --------------------------------------------------------------------------------


class Answer(enum.Enum):
    """The supervisor's answer to a rank that is not admitted."""

    NONE = enum.auto()  # not yet, on this connection
    LATE = enum.auto()  # the others began without this rank, which waits for the next iteration
    OVER = enum.auto()  # the call has succeeded without this rank


Admission = Answer | Entered | CallRefused


class Outcome(enum.IntEnum):
    """What is known about the end of an iteration. It only advances, and the last two values are final."""

    OPEN = 0
    COMPLETED = 1  # an active rank has returned from the function
    RESTART = 2
    COMMITTED = 3

    @property
    def is_final(self) -> bool:
        return self >= Outcome.RESTART


class Iteration(NamedTuple):
    """Everything known about one iteration."""

    outcome: Outcome = Outcome.OPEN
    ordered: tuple[FaultRecord, ...] = ()  # the faults that led to the restart order
    fault: RankFault | None = None  # this rank's own
    is_announced: bool = False  # a restart will be ordered; this rank has reported all its faults


# --- the machine ----------------------------------------------------------------------------------------------------

_NOTHING = Iteration()

# The last value given, and the one before: a rank can be one value behind the others, and a new coordinator knows none.
GIVEN_KEPT = 2


class State(NamedTuple):
    """The state of one rank in one call. Numbers are those of its current iteration."""

    entry: CallEnter  # as the rank enters
    rank: int
    world_size: int
    is_active: bool = False
    is_connected: bool = False
    phase: CallPhase = CallPhase.OUTSIDE
    admission: Admission = Answer.NONE
    iteration: int = 0
    assigning: int = 0  # the iteration for which ranks are being assigned, or were last
    begun: IterationBegan | None = None
    decided: BeginIteration | None = None  # the next iteration, as decided last
    iterations: Mapping[int, Iteration] = MappingProxyType({})
    given: Mapping[tuple[int, str], ExchangeValue] = MappingProxyType({})
    exchanged: Mapping[tuple[int, str], Mapping[int, str]] = MappingProxyType({})
    left: CallLeave | None = None
    missing: RanksMissing | None = None  # the answer to the last WaitOverdue

    @property
    def now(self) -> Iteration:
        return self.iterations.get(self.iteration, _NOTHING)

    @property
    def plan(self) -> Entered | BeginIteration | None:
        """Returns what was decided last about the iteration that this rank has yet to begin."""
        if self.decided is None and isinstance(self.admission, Entered) and self.begun is None:
            return self.admission._replace(exchanges=())  # That it has heard more values changes no plan.
        return self.decided

    @property
    def is_interrupted(self) -> bool:
        """Returns whether a restart is ordered, or will be without any report from this rank, or the call refused."""
        return self.now.is_announced or self.is_restart_ordered or isinstance(self.admission, CallRefused)

    @property
    def is_restart_ordered(self) -> bool:
        return self.now.outcome is Outcome.RESTART

    @property
    def needs_supervisor(self) -> bool:
        """Returns whether this rank still needs a decision to finish."""
        is_through = (
            self.phase is CallPhase.LEFT or self.admission is Answer.OVER or isinstance(self.admission, CallRefused)
        )
        return not is_through and self.now.outcome is not Outcome.COMMITTED

    def restart_after(self, last: int) -> Restart | None:
        """Returns the order for the current iteration if there is one and the iteration is later than `last`.

        A rank in the function hears of a refusal by an order without faults; elsewhere, its waits end.
        """
        if self.begun is None or self.iteration <= last:
            return None
        is_refused = self.phase is CallPhase.RUNNING and isinstance(self.admission, CallRefused)
        if not self.is_restart_ordered and not is_refused:
            return None
        return Restart(self.entry.call, self.iteration, self.now.ordered)


def step(state: State, event: Event) -> tuple[State, tuple[Word, ...]]:
    """Returns what follows from `event`, and what to send now; nothing without a connection."""
    match event:
        case Link.CONNECTED:
            # The supervisor that called the rank late may be gone; a new one repeats it.
            admission = Answer.NONE if state.admission is Answer.LATE else state.admission
            state = state._replace(is_connected=True, admission=admission)
            return state, what_applies(state)
        case Link.DISCONNECTED:
            return state._replace(is_connected=False), ()
        case (
            Move() | AssignmentBegun() | WaitOverdue() | ExchangeValue() | IterationBegan() | RankFault() | CallLeave()
        ):  # fmt: skip
            after, words = (state, ()) if state.phase is CallPhase.LEFT else _do(state, event)
        case _:
            after, words = _hear(state, event)
            words = () if after.phase is CallPhase.LEFT else words
    return after, words if after.is_connected else ()


def what_applies(state: State) -> tuple[Word, ...]:
    """Returns everything that a new supervisor must know. For one that already knows it, nothing changes."""
    if state.left is not None:
        return (state.left,)
    if state.phase is CallPhase.OUTSIDE:
        return ()
    words: list[Word] = [_enter(state), *state.given.values()]
    now = state.now
    if state.begun is None:
        return tuple(words)
    if state.phase is not CallPhase.RESTARTING:
        words.append(state.begun)
        if now.fault is not None:
            words.append(now.fault)
        if now.is_announced:
            words.append(FaultsReported(state.entry.call, state.iteration))
    if state.phase in (CallPhase.COMPLETING, CallPhase.RESTARTING):
        words.append(_arrived(state))
    return tuple(words)


def _do(state: State, event: MainThreadEvent) -> tuple[State, tuple[Word, ...]]:
    match event:
        case Move.ENTRY_ASKED:
            state = state._replace(phase=CallPhase.ENTERING)
            return state, (_enter(state),)
        case AssignmentBegun(iteration):
            return state._replace(assigning=iteration, given={}), ()
        case ExchangeValue(_, iteration, name):
            earlier = [(key, each) for key, each in state.given.items() if key != (iteration, name)]
            given = dict([*earlier, ((iteration, name), event)][-GIVEN_KEPT:])
            return state._replace(given=given), (event,)
        case WaitOverdue(name):
            return state._replace(missing=None), (_overdue(state, name),)
        case IterationBegan():
            return _begin(state, event)
        case RankFault():
            now = state.now
            if now.outcome.is_final or now.fault is not None:
                return state, ()
            return _with(state, now._replace(fault=event)), (event,)
        case Move.FUNCTION_LEFT:
            return state._replace(phase=CallPhase.UNWINDING), ()
        case Move.COMPLETION_REACHED:
            state = state._replace(phase=CallPhase.COMPLETING)
            return state, (_arrived(state),)
        case Move.RESTART_REACHED:
            state = state._replace(phase=CallPhase.RESTARTING)
            return state, (_arrived(state),)
        case CallLeave():
            return state._replace(phase=CallPhase.LEFT, left=event), (event,)
        case _:
            assert_never(event)


def _begin(state: State, begun: IterationBegan) -> tuple[State, tuple[Word, ...]]:
    iteration = begun.iteration
    state = state._replace(
        phase=CallPhase.RUNNING, iteration=iteration, begun=begun,
        rank=begun.rank, world_size=begun.world_size, is_active=begun.active_rank is not None,
        decided=None, exchanged={},
        iterations={number: each for number, each in state.iterations.items() if number >= iteration},
    )  # fmt: skip
    return state, (begun,)


def _hear(state: State, event: CallEvent) -> tuple[State, tuple[Word, ...]]:
    match event:
        case CallRefused():
            return state._replace(admission=_admission(state.admission, event)), ()
        case CallUnderway():
            return state._replace(admission=_admission(state.admission, Answer.LATE)), ()
        case RanksMissing():
            return state._replace(missing=event), ()
        case Entered():
            return _hear_entered(state, event)
        case BeginIteration(_, iteration):
            if iteration <= state.iteration:
                return state, ()
            if event == state.decided:
                return state, tuple(state.given.values())  # by a coordinator that may know no values
            return state._replace(decided=event, given={}, exchanged={}), ()
        case Exchanged(_, iteration, name, values):
            if iteration < state.iteration:
                return state, ()
            return state._replace(exchanged={**state.exchanged, (iteration, name): values}), ()
        case Interrupt(_, iteration):
            if iteration < state.iteration or state.phase is CallPhase.LEFT:
                return state, ()
            known = state.iterations.get(iteration, _NOTHING)
            # The thread that receives it answers, whatever the main thread does.
            reported = FaultsReported(state.entry.call, iteration)
            return _with(state, known._replace(is_announced=True), iteration), (reported,)
        case Restart(_, iteration, faults):
            return _advance(state, iteration, Outcome.RESTART, faults), ()
        case CallCompleted(_, iteration):
            return _advance(state, iteration, Outcome.COMPLETED), ()
        case Committed(_, iteration):
            state = state._replace(admission=_admission(state.admission, Answer.OVER))
            return _advance(state, iteration, Outcome.COMMITTED), ()
        case _:
            assert_never(event)


def _hear_entered(state: State, entered: Entered) -> tuple[State, tuple[Word, ...]]:
    before, state = state.plan, state._replace(admission=_admission(state.admission, entered))
    if state.begun is not None:
        return state, ()
    if state.plan != before:
        state = state._replace(given={}, exchanged={})
    told = {(each.iteration, each.name): each.values for each in entered.exchanges}
    # To a coordinator that may know no values.
    return state._replace(exchanged={**state.exchanged, **told}), tuple(state.given.values())


def _admission(present: Admission, told: Admission) -> Admission:
    """Returns the answer that counts. A final one stays; an admitted rank is neither late nor left behind."""
    match present, told:
        case ((Answer.OVER | CallRefused()), _):
            return present
        case Entered(), (Answer.LATE | Answer.OVER):
            return present
        case _:
            return told


def _advance(state: State, iteration: int, outcome: Outcome, ordered: tuple[FaultRecord, ...] = ()) -> State:
    """Notes the outcome of the current iteration, or of one that the main thread has not begun yet."""
    known = state.iterations.get(iteration, _NOTHING)
    if iteration < state.iteration or known.outcome.is_final or outcome <= known.outcome:
        return state
    return _with(state, known._replace(outcome=outcome, ordered=ordered), iteration)


def _with(state: State, changed: Iteration, iteration: int | None = None) -> State:
    number = state.iteration if iteration is None else iteration
    return state._replace(iterations={**state.iterations, number: changed})


def _enter(state: State) -> CallEnter:
    return state.entry._replace(
        stage=_stage(state), iteration=state.iteration, rank=state.rank, world_size=state.world_size,
        active=state.is_active,
    )  # fmt: skip


def _stage(state: State) -> Stage:
    """Returns the rank's stage for a new supervisor, which infers a fault without a reason from UNWINDING."""
    if state.phase is CallPhase.UNWINDING and state.now.fault is not None:
        return Stage.RUNNING  # The fault itself follows, and says why.
    return Stage[state.phase.name]


def _overdue(state: State, name: str) -> Word:
    """Repeats what the others have to send, too, as a question: an older supervisor takes it as a repetition."""
    if name:
        return state.given[state.assigning, name]._replace(overdue=True)
    if state.phase is CallPhase.ENTERING:
        return _enter(state)._replace(overdue=True)
    return _arrived(state)._replace(overdue=True)


def _arrived(state: State) -> BarrierArrive:
    barrier = Barrier.COMPLETION if state.phase is CallPhase.COMPLETING else Barrier.ITERATION
    return BarrierArrive(state.entry.call, state.iteration, barrier, state.rank, state.is_active)
