"""What do this node's ranks report about their wrapped call, and when does the coordinator need it?

Messages that all local ranks send (entered, reported, arrived, a value to exchange) leave as one report after the last
of them. They leave without it after HOLD_S, or when a local rank's wait is overdue: the coordinator must know which
ranks are missing. Messages that concern all ranks (a fault, a loss, the first return of an active rank) leave at once.
The coordinator's orders go to the ranks. A message about another call or iteration than the rank's own changes nothing.
"""

from __future__ import annotations

from typing import assert_never, cast, get_args

import msgspec

from supervisor.core.cluster.cluster_messages import CallReport
from supervisor.core.node.local_call_messages import (
    Action,
    ClientJoined,
    ClientLeft,
    CondemnRank,
    CycleBegun,
    DeadlineReached,
    Event,
    Key,
    LeaderChanged,
    Place,
    Rank,
    RankEnded,
    RankFaulted,
    RankStarted,
    SettleExcuses,
    State,
    UnwatchRank,
    WatchRank,
    WorkersEnding,
)
from supervisor.core.node.node_messages import RankSaid, TellCoordinator, TellRanks
from supervisor.core.orders import SettleCall, TellMembers
from supervisor.core.worker_messages import Excuse
from supervisor.core.wrapped_calls.call_messages import (
    EXCHANGE_NAMES_OPEN_MAX,
    Barrier,
    BarrierArrive,
    BeginIteration,
    CallEnter,
    CallLeave,
    CallRefused,
    Committed,
    Entered,
    ExchangeValue,
    FaultsReported,
    FromRank,
    Interruption,
    IterationBegan,
    Leaving,
    Lost,
    RankFault,
    Stage,
    Started,
    Told,
    ToRank,
    Word,
)

# Messages that a returning rank's stage implies.
_SAID_BY_STAGE: dict[Stage, tuple[str, ...]] = {
    Stage.ENTERING: (),
    Stage.RUNNING: ("began",),
    Stage.COMPLETING: ("began", "completed"),
    Stage.UNWINDING: ("began",),
    Stage.RESTARTING: ("began", "reported", "arrived"),
}

# The stage that a rank's last message shows, the latest stage first.
_LAST_SAID = (("arrived", Stage.RESTARTING), ("reported", Stage.UNWINDING), ("completed", Stage.COMPLETING))

HOLD_S = 3.0  # how long messages are held back for the other local ranks'

_OfProcess = RankStarted | RankEnded | ClientJoined | ClientLeft
_OF_PROCESS = frozenset(get_args(_OfProcess))
_IN_NO_CALL = Rank()
Outcome = tuple[State, tuple[Action, ...]]

# --- decisions -----------------------------------------------------------------------------------------------------


def initial_state() -> State:
    return State()


def excuse(state: State, local_rank: int) -> Excuse:
    """Returns whether the call handles the end of this rank's process: the others may continue, or have continued."""
    return state.ranks[local_rank].excuse if local_rank < len(state.ranks) else Excuse.NONE


def stage(state: State, local_rank: int) -> Stage | None:
    """Returns where the rank is in its call's iteration; None: it is in no call."""
    if local_rank >= len(state.ranks) or state.ranks[local_rank].place is not Place.IN:
        return None
    said = {key for key, each in state.sent if each == local_rank}
    said |= {key for key, words in state.waiting.items() if local_rank in words}
    for key, at in _LAST_SAID:
        if key in said:
            return at
    return Stage.RUNNING


def step(state: State, event: Event, *, now_s: float, job_id: str, cycle: int, node: str) -> Outcome:
    """Takes one event of the job's cycle. `node`: this node's name in the job."""
    if isinstance(event, CycleBegun):
        ranks = (Rank(),) * event.local_world_size
        is_used = event.world_size > event.local_world_size
        return State(event.first_rank, event.world_size, ranks, is_used), ()
    if type(event) in _OF_PROCESS:
        kind, local_rank = type(event), cast("_OfProcess", event).local_rank
        if local_rank >= len(state.ranks) or (kind is not RankEnded and state.ranks[local_rank] == _IN_NO_CALL):
            return state, ()  # the usual case
    if type(event) is DeadlineReached and next_deadline_s(state) is None:
        return state, ()
    step_taken = _Step(state, now_s, job_id, cycle)
    match event:
        case RankSaid(local_rank=local_rank, word=word):
            step_taken.release_before(word)
            step_taken.hear(local_rank, word)
        case RankFaulted(local_rank, interruption, reason):
            step_taken.hear_fault(local_rank, interruption, reason)
        case RankStarted() | RankEnded() | ClientJoined() | ClientLeft():
            step_taken.note(event)
        case LeaderChanged(starting):
            step_taken.tell_losses_again(starting)
        case TellMembers(members=members, order=order):
            step_taken.obey(members, order)
        case SettleCall(call=call, stands=stands, reason=reason):
            step_taken.end_call(call, stands=stands, reason=reason)
        case WorkersEnding():
            return State(state.first_rank, state.world_size), ()
        case DeadlineReached():
            step_taken.pass_deadlines()
        case _:
            assert_never(event)
    return step_taken.outcome(node)


def next_deadline_s(state: State) -> float | None:
    deadlines_s = (state.release_at_s, *(rank.away_until_s for rank in state.ranks))
    return min([each for each in deadlines_s if each is not None], default=None)


def _is_overdue(word: Word) -> bool:
    return isinstance(word, CallEnter | BarrierArrive | ExchangeValue) and word.overdue


class _Step:
    """The state while one event is handled."""

    def __init__(self, state: State, now_s: float, job_id: str, cycle: int) -> None:
        self._state = state
        self._now_s = now_s
        self._job_id, self._cycle = job_id, cycle
        self._ranks = list(state.ranks)
        self._waiting = {key: dict(words) for key, words in state.waiting.items()}
        self._sent = state.sent
        self._is_used = state.is_used
        self._over = state.over
        self._told: list[Told] = []
        self._actions: list[Action] = []

    def outcome(self, node: str) -> Outcome:
        self._flush_complete()
        release_at_s = self._state.release_at_s if self._state.release_at_s is not None else self._now_s + HOLD_S
        state = msgspec.structs.replace(
            self._state, ranks=tuple(self._ranks), is_used=self._is_used, over=self._over, waiting=self._waiting,
            sent=self._sent, release_at_s=release_at_s if self._waiting else None,
        )  # fmt: skip
        if not self._told or not self._is_used:
            return state, tuple(self._actions)
        report = CallReport(node, self._cycle, tuple(self._told))
        return state, (TellCoordinator(self._job_id, report), *self._actions)

    def change(self, local_rank: int, **changes: object) -> None:
        if local_rank < len(self._ranks):
            self._ranks[local_rank] = msgspec.structs.replace(self._ranks[local_rank], **changes)

    # --- what ranks say --------------------------------------------------------------------------------------------

    def release_before(self, word: Word) -> None:
        """Releases everything before an overdue message, which asks which ranks are missing."""
        if _is_overdue(word):
            self._flush_all()

    def hear(self, local_rank: int, word: FromRank) -> None:
        if local_rank >= len(self._ranks):
            return
        rank = self._ranks[local_rank]
        if isinstance(word, CallEnter):
            self._hear_enter(local_rank, rank, word)
            return
        if isinstance(word, CallLeave):
            self._hear_leave(local_rank, rank, word)
            return
        if rank.place is not Place.IN or word.call != rank.call:
            return
        if isinstance(word, ExchangeValue) and word.iteration > rank.iteration:
            self._tell(local_rank, word)  # It came back in the middle of the assignment, ahead of us.
        if word.iteration != rank.iteration:
            return
        match word:
            case IterationBegan():
                self._hold("began", local_rank, word)
            case FaultsReported():
                self._hold("reported", local_rank, word)
            case BarrierArrive(barrier=Barrier.COMPLETION, active=True):
                is_first = all(key != "returned" for key, _ in self._sent)
                self._sent |= {("returned", local_rank)}
                self._hold("completed", local_rank, word)
                if is_first:
                    self._flush("completed")
            case BarrierArrive(barrier=Barrier.COMPLETION):
                self._hold("completed", local_rank, word)
            case BarrierArrive():
                self._hold("arrived", local_rank, word)
            case ExchangeValue(name=name):
                self._hold_value(f"value {name}", local_rank, word)
            case RankFault():
                self._sent |= {("reported", local_rank)}
                self._tell(local_rank, word)
            case _:
                assert_never(word)

    def _hear_enter(self, local_rank: int, rank: Rank, word: CallEnter) -> None:
        member = self._member(local_rank)
        told_by_env = (word.initial_rank, word.initial_world_size)
        if told_by_env != (member, self._state.world_size):
            reason = (
                f"cannot enter call {word.call}: RANK is {told_by_env[0]} of {told_by_env[1]} in the environment and "
                f"was {member} of {self._state.world_size} at the start; leave RANK and WORLD_SIZE as they were"
            )
            self._actions.append(self._tell_ranks((local_rank,), CallRefused(word.call, reason)))
            return
        if self._over is not None and word.call <= self._over.call:
            self._actions.append(self._tell_ranks((local_rank,), CallRefused(word.call, self._over.reason)))
            return
        if not self._is_used:
            self._is_used = True
            for each, known in enumerate(self._ranks):
                if known.place is Place.ENDED:
                    self._tell(each, Lost(Interruption.TERMINATED, "ended", failed=False))
        if word.stage is Stage.ENTERING:
            place = rank.place if rank.place is Place.IN and rank.call == word.call else Place.ENTERING
            is_again = place is Place.IN or ("entered", local_rank) in self._sent
            self.change(local_rank, place=place, call=word.call, settings=word.settings, away_until_s=None)
            if is_again or rank.stands_in:
                self._tell(local_rank, word)
            else:
                self._hold("entered", local_rank, word)
            return
        for key in list(self._waiting):
            self._waiting[key].pop(local_rank, None)
        self._sent = frozenset((key, each) for key, each in self._sent if each != local_rank)
        self.change(
            local_rank,
            place=Place.IN,
            call=word.call,
            iteration=word.iteration,
            settings=word.settings,
            excuse=Excuse.OPEN,
            away_until_s=None,
        )
        self._tell(local_rank, word)
        self._sent |= {(key, local_rank) for key in _SAID_BY_STAGE[word.stage]}
        self._actions.append(WatchRank(local_rank, word.settings))

    def _hear_leave(self, local_rank: int, rank: Rank, word: CallLeave) -> None:
        if rank.call != word.call:
            return
        if rank.place in (Place.LEFT, Place.OUT):  # Refused while it was in the function, and watched since.
            self._actions.append(UnwatchRank(local_rank))
        if rank.place not in (Place.IN, Place.ENTERING):
            return
        # A rank that leaves before the call begins was never in it, unless it replaces a lost rank.
        was_part = word.why is not Leaving.DONE and (rank.place is Place.IN or rank.excuse is not Excuse.NONE)
        self._tell(local_rank, word)
        self._forget(local_rank)
        if was_part:
            self.change(local_rank, place=Place.LEFT, away_until_s=None)
        else:
            self.change(local_rank, place=Place.OUT, excuse=Excuse.NONE, away_until_s=None)
        self._actions.append(UnwatchRank(local_rank))

    def hear_fault(self, local_rank: int, interruption: Interruption, reason: str) -> None:
        """Handles a fault. A rank that is stalled can't report any more, so its fault is its report."""
        rank = self._ranks[local_rank] if local_rank < len(self._ranks) else Rank()
        if rank.place is Place.IN:
            self._sent |= {("reported", local_rank)}
            self._tell(local_rank, RankFault(rank.call, rank.iteration, -1, interruption, reason))

    # --- what becomes of their processes ---------------------------------------------------------------------------

    def note(self, event: _OfProcess) -> None:
        match event:
            case RankStarted(local_rank):
                self.start(local_rank)
            case RankEnded(local_rank, reason, failed):
                self.lose(local_rank, Lost(Interruption.TERMINATED, reason, failed))
            case ClientJoined(local_rank):
                self.change(local_rank, away_until_s=None)
            case ClientLeft(local_rank):
                self.disconnect(local_rank)
            case _:
                assert_never(event)

    def start(self, local_rank: int) -> None:
        if local_rank < len(self._ranks) and self._ranks[local_rank].place is Place.ENDED:
            was = self._ranks[local_rank]
            self._ranks[local_rank] = Rank(excuse=was.excuse, stands_in=was.excuse is not Excuse.NONE)
            self._over = None
            self._tell(local_rank, Started())

    def lose(self, local_rank: int, lost: Lost) -> None:
        if local_rank >= len(self._ranks) or (rank := self._ranks[local_rank]).place is Place.ENDED:
            return
        lost = msgspec.structs.replace(lost, in_call=rank.call if rank.excuse is Excuse.OPEN else 0)
        self._tell(local_rank, lost)
        self._forget(local_rank)
        self.change(local_rank, place=Place.ENDED, stands_in=False, away_until_s=None, lost=lost)
        self._actions.append(UnwatchRank(local_rank))

    def tell_losses_again(self, starting: tuple[int, ...]) -> None:
        """Reports the ranks that were lost in a call which has not ended: if all were, nobody else would end it."""
        for local_rank, rank in enumerate(self._ranks):
            if rank.excuse is Excuse.OPEN and rank.lost is not None and local_rank not in starting:
                self._tell(local_rank, rank.lost)

    def disconnect(self, local_rank: int) -> None:
        rank = self._ranks[local_rank] if local_rank < len(self._ranks) else Rank()
        if rank.place in (Place.IN, Place.ENTERING):
            self.change(local_rank, away_until_s=self._now_s + rank.settings.heartbeat_timeout_s)

    def pass_deadlines(self) -> None:
        if self._state.release_at_s is not None and self._now_s >= self._state.release_at_s:
            self._flush_all()
        for local_rank, rank in enumerate(self._ranks):
            if rank.away_until_s is not None and self._now_s >= rank.away_until_s:
                timeout_s = rank.settings.heartbeat_timeout_s
                reason = f"lost its connection and did not come back within {timeout_s:.0f} s"
                # Not failed: a process that still runs is not replaced.
                self.lose(local_rank, Lost(Interruption.UNRESPONSIVE, reason, failed=False))
                self._actions.append(CondemnRank(local_rank))

    # --- what the coordinator orders -------------------------------------------------------------------------------

    def obey(self, members: tuple[int, ...], order: ToRank) -> None:
        first_rank = self._state.first_rank
        here = [each - first_rank for each in members if 0 <= each - first_rank < len(self._ranks)]
        for local_rank in here:
            self._obey(local_rank, self._ranks[local_rank], order)
        if here:
            self._is_used = True
            self._actions.insert(0, self._tell_ranks(tuple(here), order))

    def _obey(self, local_rank: int, rank: Rank, order: ToRank) -> None:
        match order:
            case Entered(call, iteration):
                if rank.place is Place.ENTERING:
                    self._forget(local_rank)
                    self.change(
                        local_rank, place=Place.IN, call=call, iteration=iteration, excuse=Excuse.OPEN, stands_in=False
                    )
                    self._actions.append(WatchRank(local_rank, rank.settings))
            case BeginIteration(call, iteration):
                if rank.place is Place.IN and rank.call == call:
                    self._forget(local_rank)
                    self.change(local_rank, iteration=iteration)
                    self._actions.append(WatchRank(local_rank, rank.settings))
            case Committed():
                if rank.place is Place.IN:
                    self._forget(local_rank)
                    self.change(local_rank, place=Place.OUT, excuse=Excuse.NONE)
                    self._actions.append(UnwatchRank(local_rank))
                elif rank.place is Place.ENTERING:  # A new process that has not taken part: no rank waits for it.
                    self._forget(local_rank)
                    self.change(local_rank, place=Place.OUT)
            case CallRefused():
                if rank.place in (Place.IN, Place.ENTERING):
                    # The others may continue without a refused member; a rank that never was one fails by itself.
                    # One in the function has to come back from it: it is watched until it leaves.
                    is_out = rank.place is Place.IN or rank.excuse is not Excuse.NONE
                    self._forget(local_rank)
                    self.change(local_rank, place=Place.LEFT if is_out else Place.OUT)
            case _:
                return

    def end_call(self, call: int, *, stands: bool, reason: str) -> None:
        if not stands:
            self._over = CallRefused(call, reason)
            # The coordinator does not know ranks at the initial barrier whose neighbours have not arrived.
            waiting = [
                each for each, rank in enumerate(self._ranks) if rank.place is Place.ENTERING and rank.call <= call
            ]
            if waiting:
                self._actions.append(self._tell_ranks(tuple(waiting), CallRefused(call, reason)))
            for local_rank, rank in enumerate(self._ranks):
                if rank.call > call:
                    continue  # It came back from a later call than a supervisor without memory had heard of.
                self._forget(local_rank)
                place = Place.ENDED if rank.place is Place.ENDED else Place.OUT
                kept = Excuse.STANDS if rank.excuse is Excuse.STANDS else Excuse.NONE
                self.change(local_rank, place=place, excuse=kept, stands_in=False, away_until_s=None)
        for local_rank, rank in enumerate(self._ranks):
            if stands and rank.excuse is Excuse.OPEN:
                self.change(local_rank, excuse=Excuse.STANDS)
        self._actions.append(SettleExcuses(stands, reason))

    # --- what goes out ---------------------------------------------------------------------------------------------

    def _tell_ranks(self, local_ranks: tuple[int, ...], order: ToRank) -> TellRanks:
        return TellRanks(self._job_id, self._cycle, local_ranks, order)

    def _hold(self, key: Key, local_rank: int, word: Word) -> None:
        if _is_overdue(word):
            self._sent |= {(key, local_rank)}
            self._tell(local_rank, word)
        elif (key, local_rank) not in self._sent:
            self._waiting.setdefault(key, {})[local_rank] = word

    def _hold_value(self, key: Key, local_rank: int, word: ExchangeValue) -> None:
        """Holds a value, for as many names as may be open; the coordinator decides about more."""
        if key in self._waiting or len(self._waiting) < EXCHANGE_NAMES_OPEN_MAX:
            self._hold(key, local_rank, word)
        else:
            self._tell(local_rank, word)

    def _tell(self, local_rank: int, word: Word) -> None:
        """Reports at once, after IterationBegan of these ranks, which has their numbers."""
        self._flush("began")
        self._told.append(Told(self._member(local_rank), word))

    def _flush(self, key: Key) -> None:
        if key != "began":
            self._flush("began")
        words = self._waiting.pop(key, {})
        self._told += [Told(self._member(local_rank), word) for local_rank, word in words.items()]
        self._sent |= {(key, local_rank) for local_rank in words}

    def _flush_all(self) -> None:
        for key in list(self._waiting):
            self._flush(key)

    def _flush_complete(self) -> None:
        for key in list(self._waiting):
            words = self._waiting.get(key)
            if words is None:
                continue
            places = (Place.OUT, Place.ENTERING) if key == "entered" else (Place.IN,)
            expected = {
                local_rank for local_rank, rank in enumerate(self._ranks) if rank.place in places and not rank.stands_in
            }
            if all(local_rank in words or (key, local_rank) in self._sent for local_rank in expected):
                self._flush(key)

    def _forget(self, local_rank: int) -> None:
        for words in self._waiting.values():
            words.pop(local_rank, None)
        self._waiting = {key: words for key, words in self._waiting.items() if words}
        self._sent = frozenset((key, each) for key, each in self._sent if each != local_rank)

    def _member(self, local_rank: int) -> int:
        return self._state.first_rank + local_rank
