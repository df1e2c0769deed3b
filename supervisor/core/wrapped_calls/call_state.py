"""What does the coordinator know about the wrapped calls of one cycle?

The machine is cluster/wrapped_call.py; this is its memory. It changes in place: with thousands of members, copying it
for each message would cost more than the message.
"""

from __future__ import annotations

import msgspec

from supervisor.core.rank_silence import moved_s
from supervisor.core.wrapped_calls.call_messages import (
    BeginIteration,
    CallEnter,
    CallSettings,
    Committed,
    Entered,
    Exchanged,
    FaultRecord,
    Interruption,
    Told,
)
from supervisor.core.wrapped_calls.retry_backoff import FailedInARow

REPLAY_CHARS_MAX = 512 * 1024  # sent to a rank that joins late; beyond it, no rank can join late
REASON_CHARS_MAX = 512
RECORDS_WITH_REASON_MAX = 32
HELD_WORDS_MAX = 256  # different messages of one member while a call is rebuilt


# --- phases --------------------------------------------------------------------------------------------------------


class Idle(msgspec.Struct, frozen=True):
    """There is no call yet, or the last one was committed."""


class Entering(msgspec.Struct, frozen=True):
    """Ranks arrive at the initial barrier."""


class Rebuilding(msgspec.Struct, frozen=True):
    """Ranks come back to a coordinator that does not know their call."""

    until_s: float


class Running(msgspec.Struct, frozen=True):
    pass


class LastCall(msgspec.Struct, frozen=True):
    """A fault is known; the other ranks report theirs within the window."""

    until_s: float


class Restarting(msgspec.Struct, frozen=True):
    """Ranks unwind to the iteration barrier. `hold_until_s`: until then, only new processes are awaited."""

    hold_until_s: float | None = None


class Over(msgspec.Struct, frozen=True):
    """No rank is left in the call, or it could not continue."""

    reason: str


class Resting(msgspec.Struct, frozen=True):
    """All are at the iteration barrier; the next iteration is delayed because earlier ones made no progress."""

    until_s: float


Open = Running | LastCall | Restarting | Resting
Phase = Idle | Entering | Rebuilding | Open | Over


# --- the call ------------------------------------------------------------------------------------------------------


class Member(msgspec.Struct):
    node: str
    rank: int | None = None  # None: it has not begun this iteration
    is_active: bool = True  # or has not reported yet that it is a reserve


class Replacement(msgspec.Struct):
    """A process started for a rank lost in this iteration; `rank`: the lost rank's number, None: unknown."""

    node: str
    rank: int | None
    entered: bool = False


class Newcomer(msgspec.Struct):
    """A process started for a lost rank; the others have continued without it."""

    node: str
    entered: bool = False  # waits for the next iteration
    stayed: bool = False  # not a new process, but one that missed a decision and is still at the barrier


class Exchange(msgspec.Struct):
    """The values under one name by member, and the members that have not given one yet."""

    waiting: set[int]
    values: dict[int, tuple[int, str]] = msgspec.field(default_factory=dict[int, tuple[int, str]])


Faults = dict[int, dict[Interruption, FaultRecord]]  # by member, in order of arrival


class Iteration(msgspec.Struct):
    """What is known about the current iteration. Each decision replaces it with a new one: nothing is left over."""

    assigned_world_size: int | None = None  # the result of rank assignment; None: not reported yet
    active_world_size: int | None = None
    numbers: dict[int, int] = msgspec.field(default_factory=dict[int, int])  # current rank → member
    is_completed: bool = False  # an active rank has returned
    faults: Faults = msgspec.field(default_factory=dict[int, dict[Interruption, FaultRecord]])
    uncompleted: set[int] = msgspec.field(default_factory=set[int])
    unreported: set[int] = msgspec.field(default_factory=set[int])
    unarrived: set[int] = msgspec.field(default_factory=set[int])
    gone: dict[int, int | None] = msgspec.field(default_factory=dict[int, "int | None"])  # by member, with its number
    lost_active: set[int] = msgspec.field(default_factory=set[int])  # those gone that were or may have been active
    left: dict[int, str] = msgspec.field(default_factory=dict[int, str])  # left by themselves; wait for the decision
    replaceable: list[tuple[str, int]] = msgspec.field(default_factory=list[tuple[str, int]])  # lost: node, member
    replacing: dict[int, Replacement] = msgspec.field(default_factory=dict[int, Replacement])
    unfit: list[tuple[str, int]] = msgspec.field(default_factory=list[tuple[str, int]])  # left so: node, member
    exchanges: dict[str, Exchange] = msgspec.field(default_factory=dict[str, Exchange])
    exchanged: dict[str, Exchanged] = msgspec.field(default_factory=dict[str, Exchanged])


class Unfit(msgspec.Struct):
    """A rank that a health check rejected. A new process replaces it once its own has ended with an error."""

    node: str
    iteration: int = -1  # in which it left


class Past(msgspec.Struct):
    """What was decided so far, for ranks that join late."""

    history: list[BeginIteration] = msgspec.field(default_factory=list[BeginIteration])
    replay: list[Exchanged] = msgspec.field(default_factory=list[Exchanged])
    replay_chars: int = 0
    begun_at: int = 0  # what is kept for late ranks begins with this iteration
    is_rebuilt: bool = False  # earlier decisions are not known

    @property
    def can_replay(self) -> bool:
        """Whether a rank that joins late can receive everything that was decided."""
        return not self.is_rebuilt and self.replay_chars <= REPLAY_CHARS_MAX


class State(msgspec.Struct):
    world_size: int  # of the cycle
    phase: Phase = msgspec.field(default_factory=Idle)
    call: int = 0  # the last one opened
    committed: Committed | None = None  # the last one that succeeded
    committed_on: frozenset[int] = frozenset()
    iteration: int = 0
    settings: CallSettings = msgspec.field(default_factory=CallSettings)
    members: dict[int, Member] = msgspec.field(default_factory=dict[int, Member])
    entries: dict[int, tuple[str, CallEnter]] = msgspec.field(default_factory=dict[int, tuple[str, CallEnter]])
    held: dict[Told, str] = msgspec.field(default_factory=dict[Told, str])  # during the rebuild, with the node
    held_of: dict[int, int] = msgspec.field(default_factory=dict[int, int])  # how many of those each member has sent
    absent: dict[int, str] = msgspec.field(default_factory=dict[int, str])  # take no further part in any call, and why
    ended: dict[int, str] = msgspec.field(default_factory=dict[int, str])  # members whose process has ended, and how
    begun_before: int = 0  # a call in which ranks were lost before this coordinator knew of it; 0: none
    decision: BeginIteration | None = None  # the last one
    previous: int = -1  # the iteration that the last decision has ended
    skips_number: bool = False  # a missing rank may be alive and have begun the next iteration
    newcomers: dict[int, Newcomer] = msgspec.field(default_factory=dict[int, Newcomer])  # absent, but may join
    lost_newcomers: list[tuple[str, int]] = msgspec.field(default_factory=list[tuple[str, int]])  # node, member
    unfit: dict[int, Unfit] = msgspec.field(default_factory=dict[int, Unfit])  # members whose process is still alive
    unfit_ended: dict[int, Unfit] = msgspec.field(default_factory=dict[int, Unfit])  # to be replaced now
    units_taken: set[int] = msgspec.field(default_factory=set[int])  # iterations whose fault has used restart budget
    began_at_s: float = 0.0  # this iteration
    interrupted_at_s: float = 0.0  # the last time
    fruitless: FailedInARow = msgspec.field(default_factory=FailedInARow)
    now: Iteration = msgspec.field(default_factory=Iteration)
    past: Past = msgspec.field(default_factory=Past)

    @property
    def next_iteration(self) -> int:
        """Returns a number not used before: an earlier decision may have reached a rank that no longer answers."""
        return self.iteration + (2 if self.skips_number else 1)

    @property
    def is_open(self) -> bool:
        """Whether an iteration is under way."""
        return isinstance(self.phase, Open)

    @property
    def is_paid(self) -> bool:
        """Whether this iteration's fault has already used restart budget."""
        return self.iteration in self.units_taken

    @property
    def position(self) -> tuple[int, int]:
        return self.call, self.iteration


def open_call(state: State, call: int, settings: CallSettings) -> None:
    state.call, state.iteration, state.settings = call, 0, settings
    state.members, state.entries = {}, {}
    release_held(state)
    state.past, state.decision, state.lost_newcomers = Past(), None, []
    state.unfit, state.unfit_ended, state.units_taken = {}, {}, set()
    state.previous, state.skips_number, state.fruitless = -1, False, FailedInARow()
    begin_iteration(state)


def begin_iteration(state: State) -> None:
    """Begins an iteration, with all members before their rank assignment."""
    for member in state.members.values():
        member.rank, member.is_active = None, True
    everybody = state.members
    state.now = Iteration(uncompleted=set(everybody), unreported=set(everybody), unarrived=set(everybody))


def merge_settings(first: CallSettings, other: CallSettings) -> CallSettings:
    """Merges the ranks' settings. If they differ, no rank is given up earlier than any of them says."""
    if first == other:
        return first
    return msgspec.structs.replace(
        first,
        last_call_wait_s=max(first.last_call_wait_s, other.last_call_wait_s),
        barrier_timeout_s=max(first.barrier_timeout_s, other.barrier_timeout_s),
        heartbeat_timeout_s=max(first.heartbeat_timeout_s, other.heartbeat_timeout_s),
    )


def add_fault(state: State, member: int, interruption: Interruption, reason: str, *, rank: int = -1) -> None:
    """Notes a fault. `rank`: as reported by the rank itself; the iteration's own number for the member wins."""
    known = state.members.get(member)
    number = known.rank if known is not None and known.rank is not None else rank
    record = FaultRecord(number if number >= 0 else member, interruption, reason[:REASON_CHARS_MAX])
    state.now.faults.setdefault(member, {}).setdefault(interruption, record)


def records(state: State) -> tuple[FaultRecord, ...]:
    """Returns each rank's first fault in order of arrival; some without a reason, because a frame is limited."""
    first = [next(iter(told.values())) for told in state.now.faults.values()]
    bare = (msgspec.structs.replace(record, reason="") for record in first[RECORDS_WITH_REASON_MAX:])
    return (*first[:RECORDS_WITH_REASON_MAX], *bare)


def remove(state: State, member: int, why: str) -> None:
    """Removes the member from this call and from those that follow."""
    gone = state.members.pop(member)
    state.absent[member] = why
    state.now.gone[member] = gone.rank
    if gone.is_active:
        state.now.lost_active.add(member)
    for waiting in (state.now.uncompleted, state.now.unreported, state.now.unarrived):
        waiting.discard(member)
    for exchange in state.now.exchanges.values():
        exchange.waiting.discard(member)
        exchange.values.pop(member, None)


def after_pause(state: State, since_s: float, now_s: float) -> None:
    """Moves the ends of waits for ranks that may have been suspended together with this process; a delay stays.

    The pause does not count in the running time of an iteration that is under way.
    """
    by_s = now_s - since_s
    match state.phase:
        case Running():
            state.began_at_s = moved_s(state.began_at_s, [(since_s, now_s)])
        case Rebuilding(until_s) | LastCall(until_s):
            state.phase = msgspec.structs.replace(state.phase, until_s=until_s + by_s)
        case Restarting(float(until_s)):
            state.phase = Restarting(until_s + by_s)
        case _:
            pass


def close(state: State, phase: Idle | Over) -> None:
    """Ends the call. After one that failed, all living ranks may enter the next."""
    state.phase, state.begun_before = phase, 0
    if isinstance(phase, Over):
        state.members, state.entries, state.now.replacing, state.newcomers = {}, {}, {}, {}
        state.absent = {member: why for member, why in state.absent.items() if member in state.ended}


def remember(state: State, decided: BeginIteration | Exchanged) -> None:
    """Keeps what ranks that join late must know."""
    if isinstance(decided, BeginIteration):
        state.past.history.append(decided)
        state.past.replay_chars += 12 + 5 * len(decided.terminated_ranks)
    else:
        state.past.replay.append(decided)
        state.past.replay_chars += 16 + len(decided.name) + sum(12 + 4 * len(value) for _, value in decided.values)
    if not state.past.can_replay:
        state.past.history, state.past.replay = [], []


def hold(state: State, node: str, told: Told) -> bool:
    """Keeps a message until the call is rebuilt; a repeated one counts once. False: its member has sent too many."""
    if told in state.held:
        return True
    count = state.held_of.get(told.member, 0) + 1
    if count > HELD_WORDS_MAX:
        return False
    state.held[told], state.held_of[told.member] = node, count
    return True


def release_held(state: State) -> list[tuple[str, Told]]:
    """Returns the kept messages in order of arrival."""
    held, state.held, state.held_of = state.held, {}, {}
    return [(node, told) for told, node in held.items()]


def entered(state: State) -> Entered:
    return Entered(state.call, state.iteration, tuple(state.past.history), tuple(state.past.replay))


def begin_again(state: State) -> None:
    """Drops what is kept for late ranks: no rank needs to know anything from before the next iteration."""
    state.past = Past(begun_at=state.next_iteration)
