"""What does the coordinator know of the wrapped calls of one cycle?

The machine is cluster/wrapped_call.py; this is what it remembers. It changes in place: with thousands of members, a
copy for each word would cost more than the word.
"""

from __future__ import annotations

import msgspec

from supervisor.core.calls.fruitless import Fruitless
from supervisor.core.calls.words import (
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

REPLAY_CHARS_MAX = 512 * 1024  # of what a rank that joins late is given; beyond it nobody can join late
REASON_CHARS_MAX = 512
RECORDS_WITH_REASON_MAX = 32
HELD_WORDS_MAX = 256  # different ones of one member, said while a call is rebuilt


# --- phases --------------------------------------------------------------------------------------------------------


class Idle(msgspec.Struct, frozen=True):
    """There is no call yet, or the last one was committed."""


class Entering(msgspec.Struct, frozen=True):
    """Ranks come to the initial barrier."""


class Rebuilding(msgspec.Struct, frozen=True):
    """Ranks come back to a coordinator that does not know their call."""

    until_s: float


class Running(msgspec.Struct, frozen=True):
    pass


class LastCall(msgspec.Struct, frozen=True):
    """A fault is known; until then the other ranks report theirs."""

    until_s: float


class Restarting(msgspec.Struct, frozen=True):
    """Ranks unwind to the iteration barrier. `hold_until_s`: only new processes are waited for, until then."""

    hold_until_s: float | None = None


class Over(msgspec.Struct, frozen=True):
    """Nobody is left in the call, or it could not go on."""

    reason: str


class Resting(msgspec.Struct, frozen=True):
    """All are at the iteration barrier; the next iteration begins then, since those before have come to nothing."""

    until_s: float


Open = Running | LastCall | Restarting | Resting
Phase = Idle | Entering | Rebuilding | Open | Over


# --- the book ------------------------------------------------------------------------------------------------------


class Member(msgspec.Struct):
    node: str
    rank: int | None = None  # None: it has not begun this iteration
    is_active: bool = True  # or has not said yet that it is a reserve


class Replacement(msgspec.Struct):
    """A process started for a rank that was lost in this iteration; `rank` is what that one was, None: unknown."""

    node: str
    rank: int | None
    entered: bool = False


class Newcomer(msgspec.Struct):
    """A process started for a rank that was lost, without which the others have gone on."""

    node: str
    entered: bool = False  # waits for the next iteration
    stayed: bool = False  # the same process all the time, which only missed a decision: at the barrier still


class Exchange(msgspec.Struct):
    """The values of one name by member, and the members that have not given one yet."""

    waiting: set[int]
    values: dict[int, tuple[int, str]] = msgspec.field(default_factory=dict[int, tuple[int, str]])


Faults = dict[int, dict[Interruption, FaultRecord]]  # by member, in the order of their coming


class Iteration(msgspec.Struct):
    """What is known of the iteration that runs. A new one takes its place with each decision: nothing is left over."""

    assigned_world_size: int | None = None  # as rank assignment came out; None: no rank has said it
    active_world_size: int | None = None
    numbers: dict[int, int] = msgspec.field(default_factory=dict[int, int])  # current rank → member
    is_completed: bool = False  # an active rank has returned
    faults: Faults = msgspec.field(default_factory=dict[int, dict[Interruption, FaultRecord]])
    uncompleted: set[int] = msgspec.field(default_factory=set[int])
    unreported: set[int] = msgspec.field(default_factory=set[int])
    unarrived: set[int] = msgspec.field(default_factory=set[int])
    gone: dict[int, int | None] = msgspec.field(default_factory=dict[int, "int | None"])  # and what number it had
    lost_active: set[int] = msgspec.field(default_factory=set[int])  # of those gone, who was or may have been active
    left: dict[int, str] = msgspec.field(default_factory=dict[int, str])  # went by itself; waits for the decision
    replaceable: list[tuple[str, int]] = msgspec.field(default_factory=list[tuple[str, int]])  # lost: node, member
    replacing: dict[int, Replacement] = msgspec.field(default_factory=dict[int, Replacement])
    unfit: list[tuple[str, int]] = msgspec.field(default_factory=list[tuple[str, int]])  # left so: node, member
    unit_taken: bool = False  # of the restart budget, for this iteration's fault
    exchanges: dict[str, Exchange] = msgspec.field(default_factory=dict[str, Exchange])
    exchanged: dict[str, Exchanged] = msgspec.field(default_factory=dict[str, Exchanged])


class Unfit(msgspec.Struct):
    """A rank that a health check has refused. A new process takes its place once its own has ended with an error."""

    node: str
    fault: Iteration  # in which it left


class Past(msgspec.Struct):
    """What was decided so far, for ranks that join late."""

    history: list[BeginIteration] = msgspec.field(default_factory=list[BeginIteration])
    replay: list[Exchanged] = msgspec.field(default_factory=list[Exchanged])
    replay_chars: int = 0
    begun_at: int = 0  # the iteration before which nothing has to be known: what is kept for late ones begins there
    is_rebuilt: bool = False  # what was decided before is not known

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
    held: dict[Told, str] = msgspec.field(default_factory=dict[Told, str])  # said while rebuilding, and on which node
    held_of: dict[int, int] = msgspec.field(default_factory=dict[int, int])  # how many words of each member those are
    absent: dict[int, str] = msgspec.field(default_factory=dict[int, str])  # take part in no call any more, and why
    ended: dict[int, str] = msgspec.field(default_factory=dict[int, str])  # whose process has ended, and how
    decision: BeginIteration | None = None  # the last one
    previous: int = -1  # the iteration that the last decision has ended
    skips_number: bool = False  # who is missing, and may live, may have been told to begin the next iteration
    newcomers: dict[int, Newcomer] = msgspec.field(default_factory=dict[int, Newcomer])  # absent, but may join
    lost_newcomers: list[tuple[str, int]] = msgspec.field(default_factory=list[tuple[str, int]])  # node, member
    unfit: dict[int, Unfit] = msgspec.field(default_factory=dict[int, Unfit])  # whose process still lives
    unfit_ended: dict[int, Unfit] = msgspec.field(default_factory=dict[int, Unfit])  # to be replaced now
    began_at_s: float = 0.0  # this iteration
    interrupted_at_s: float = 0.0  # the last time
    fruitless: Fruitless = msgspec.field(default_factory=Fruitless)
    now: Iteration = msgspec.field(default_factory=Iteration)
    past: Past = msgspec.field(default_factory=Past)

    @property
    def next_iteration(self) -> int:
        """A number is given once: what was decided before may have reached somebody who does not answer any more."""
        return self.iteration + (2 if self.skips_number else 1)

    @property
    def is_open(self) -> bool:
        """Whether an iteration is under way."""
        return isinstance(self.phase, Open)

    @property
    def position(self) -> tuple[int, int]:
        return self.call, self.iteration


def open_call(state: State, call: int, settings: CallSettings) -> None:
    state.call, state.iteration, state.settings = call, 0, settings
    state.members, state.entries = {}, {}
    release_held(state)
    state.past, state.decision, state.lost_newcomers = Past(), None, []
    state.unfit, state.unfit_ended = {}, {}
    state.previous, state.skips_number, state.fruitless = -1, False, Fruitless()
    begin_iteration(state)


def begin_iteration(state: State) -> None:
    """Begins an iteration: all members are before their rank assignment."""
    for member in state.members.values():
        member.rank, member.is_active = None, True
    everybody = state.members
    state.now = Iteration(uncompleted=set(everybody), unreported=set(everybody), unarrived=set(everybody))


def merge_settings(first: CallSettings, other: CallSettings) -> CallSettings:
    """Merges the ranks' settings. If they differ, nobody is given up earlier than any of them says."""
    if first == other:
        return first
    return msgspec.structs.replace(
        first,
        last_call_wait_s=max(first.last_call_wait_s, other.last_call_wait_s),
        barrier_timeout_s=max(first.barrier_timeout_s, other.barrier_timeout_s),
        heartbeat_timeout_s=max(first.heartbeat_timeout_s, other.heartbeat_timeout_s),
    )


def add_fault(state: State, member: int, interruption: Interruption, reason: str, *, rank: int = -1) -> None:
    """`rank` as the rank itself told it; what the iteration says of the member stands over it."""
    known = state.members.get(member)
    number = known.rank if known is not None and known.rank is not None else rank
    record = FaultRecord(number if number >= 0 else member, interruption, reason[:REASON_CHARS_MAX])
    state.now.faults.setdefault(member, {}).setdefault(interruption, record)


def records(state: State) -> tuple[FaultRecord, ...]:
    """The first of each rank, in the order of their coming; not all with a reason, since a frame is bounded."""
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


def close(state: State, phase: Idle | Over) -> None:
    """Ends the call. After one that failed, all living ranks may enter the next."""
    state.phase = phase
    if isinstance(phase, Over):
        state.members, state.entries, state.now.replacing, state.newcomers = {}, {}, {}, {}
        state.absent = {member: why for member, why in state.absent.items() if member in state.ended}


def remember(state: State, decided: BeginIteration | Exchanged) -> None:
    """Keeps what ranks that join late have to know."""
    if isinstance(decided, BeginIteration):
        state.past.history.append(decided)
        state.past.replay_chars += 12 + 5 * len(decided.terminated_ranks)
    else:
        state.past.replay.append(decided)
        state.past.replay_chars += 16 + len(decided.name) + sum(12 + 4 * len(value) for _, value in decided.values)
    if not state.past.can_replay:
        state.past.history, state.past.replay = [], []


def hold(state: State, node: str, told: Told) -> bool:
    """Keeps a word until the call is rebuilt; said again, it is the same word. False: its member has said too many."""
    if told in state.held:
        return True
    count = state.held_of.get(told.member, 0) + 1
    if count > HELD_WORDS_MAX:
        return False
    state.held[told], state.held_of[told.member] = node, count
    return True


def release_held(state: State) -> list[tuple[str, Told]]:
    """Returns what was kept, in the order in which it came."""
    held, state.held, state.held_of = state.held, {}, {}
    return [(node, told) for told, node in held.items()]


def entered(state: State) -> Entered:
    return Entered(state.call, state.iteration, tuple(state.past.history), tuple(state.past.replay))


def begin_again(state: State) -> None:
    """Nobody needs to know what was before the next iteration: what is kept for late ranks starts there."""
    state.past = Past(begun_at=state.next_iteration)
