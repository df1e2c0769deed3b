"""Which ranks has a signal stopped, and for how long may that last?

The kernel tells the ranks' parent, the spawner, so no heartbeat is needed. A stop is reported at once, and is a hang
after the limit between heartbeats, whether a heartbeat has armed that limit or not. In a wrapped call, the Wrapper's
own timeouts decide. A supervisor that was itself stopped until after the limit first waits for what it has missed.
"""

from __future__ import annotations

import signal as signals
from collections.abc import Collection
from typing import assert_never

import msgspec

from supervisor.core.facts import HangLimits, JobEvent
from supervisor.core.node import node_messages

LATE_S = 1.0  # a deadline passed later than this: the supervisor was stopped or starved
CATCH_UP_S = 5.0  # and reads first what has happened meanwhile

# --- states --------------------------------------------------------------------------------------------------------


class StoppedRank(msgspec.Struct, frozen=True):
    local_rank: int
    signal: int
    since_s: float
    limit_s: float | None  # None: it is only reported
    until_s: float | None  # None: it is no longer judged


class State(msgspec.Struct, frozen=True):
    ranks: tuple[StoppedRank, ...] = ()

    @property
    def signals(self) -> dict[int, str]:
        """Returns which signal stopped each rank that is stopped, by local rank."""
        return {each.local_rank: _name(each.signal) for each in self.ranks}


# --- events --------------------------------------------------------------------------------------------------------


class RankStopped(msgspec.Struct, frozen=True):
    local_rank: int
    rank: int
    pid: int
    signal: int
    at_s: float
    limit_s: float | None


class RankContinued(msgspec.Struct, frozen=True):
    local_rank: int
    rank: int
    at_s: float


class WorkerEnded(msgspec.Struct, frozen=True):
    local_rank: int


class WorkersEnding(msgspec.Struct, frozen=True):
    """A cycle ends or begins: no stop of it matters any more."""


Event = RankStopped | RankContinued | WorkerEnded | WorkersEnding | node_messages.DeadlineReached

# --- actions -------------------------------------------------------------------------------------------------------


class DeclareHang(msgspec.Struct, frozen=True):
    """`reason` lacks its subject."""

    local_rank: int
    reason: str


Action = DeclareHang | node_messages.Publish
Outcome = tuple[State, tuple[Action, ...]]

# --- decisions -----------------------------------------------------------------------------------------------------


def initial_state() -> State:
    return State()


def step(state: State, event: Event, *, now_s: float, job_id: str, cycle: int, in_call: Collection[int]) -> Outcome:
    """Takes one event. `in_call`: local ranks in a wrapped call."""
    match event:
        case RankStopped():
            until_s = None if event.limit_s is None else event.at_s + event.limit_s
            stopped = StoppedRank(event.local_rank, event.signal, event.at_s, event.limit_s, until_s)
            said = JobEvent("rank_stopped", _stopped(event), cycle, event.rank)
            return State((*_others(state, event.local_rank), stopped)), (node_messages.Publish(job_id, said),)
        case RankContinued(local_rank, rank, at_s):
            before = next((each for each in state.ranks if each.local_rank == local_rank), None)
            if before is None:
                return state, ()
            text = f"rank {rank} goes on after it was stopped for {max(at_s - before.since_s, 0.0):.1f} s"
            said = JobEvent("rank_continued", text, cycle, rank)
            return State(_others(state, local_rank)), (node_messages.Publish(job_id, said),)
        case WorkerEnded(local_rank):
            return State(_others(state, local_rank)), ()
        case WorkersEnding():
            return State(), ()
        case node_messages.DeadlineReached():
            return _pass_deadlines(state, now_s, in_call)
        case _:
            assert_never(event)


def limit_s(limits: HangLimits, auto_heartbeat_s: float | None) -> float | None:
    """Returns for how long a signal may stop a rank: the limit between heartbeats or of its main thread, if shorter.

    It holds from the start on: a stopped rank cannot be at work on its set-up either. None: it is only reported.
    """
    both_s = (limits.heartbeat_s, auto_heartbeat_s)
    return min((each_s for each_s in both_s if each_s is not None), default=None)


def next_deadline_s(state: State) -> float | None:
    return min((each.until_s for each in state.ranks if each.until_s is not None), default=None)


def _others(state: State, local_rank: int) -> tuple[StoppedRank, ...]:
    return tuple(each for each in state.ranks if each.local_rank != local_rank)


def _pass_deadlines(state: State, now_s: float, in_call: Collection[int]) -> Outcome:
    ranks: list[StoppedRank] = []
    hangs: list[Action] = []
    for each in state.ranks:
        if each.until_s is None or now_s < each.until_s:
            ranks.append(each)
        elif now_s > each.until_s + LATE_S:
            ranks.append(msgspec.structs.replace(each, until_s=now_s + CATCH_UP_S))
        else:
            ranks.append(msgspec.structs.replace(each, until_s=None))
            if each.local_rank not in in_call:
                age_s, name = now_s - each.since_s, _name(each.signal)
                hangs.append(DeclareHang(each.local_rank, f"is stopped ({name}) for {age_s:.1f} s"))
    return (State(tuple(ranks)), tuple(hangs)) if tuple(ranks) != state.ranks else (state, ())


def _stopped(event: RankStopped) -> str:
    text = (
        f"rank {event.rank} (pid {event.pid}) is stopped ({_name(event.signal)}); `kill -CONT {event.pid}` continues it"
    )
    return text if event.limit_s is None else f"{text}, and after {event.limit_s:g} s it counts as a hang"


def _name(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"
