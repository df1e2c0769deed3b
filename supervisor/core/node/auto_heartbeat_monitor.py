"""Has the main thread of a rank executed no bytecode for longer than the job allows?

Needs nothing in the script. As in rank_monitor.py, a deadline is only a reason to read the rank's page, so there is no
polling and no judgement by an old reading. A rank that is not forked by us, or that has executed another program, has
no page: nothing is judged. In a wrapped call, the Wrapper's own timeouts decide.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import assert_never

import msgspec

from supervisor.core import worker_messages
from supervisor.core.facts import Progress
from supervisor.core.node import node_messages
from supervisor.core.rank_silence import REREAD_PAUSE_S, Silence, read_moment_s

_TEXT = "executed no Python code for {age} (limit {limit})"

# --- states --------------------------------------------------------------------------------------------------------


class Watched(msgspec.Struct, frozen=True):
    local_rank: int
    due_s: float
    is_asked: bool = False  # the page was requested; without an answer, there is no verdict


class State(msgspec.Struct, frozen=True):
    ranks: tuple[Watched, ...] = ()  # those that run and were not found to hang


# --- events --------------------------------------------------------------------------------------------------------

Event = (
    worker_messages.PrepareWorkers | worker_messages.StopWorkers | worker_messages.KillWorkers |
    worker_messages.LoseWorkers | node_messages.WorkerSpawned
    | node_messages.WorkerExited | node_messages.ProgressRead | node_messages.SupervisorReturned
    | node_messages.DeadlineReached
)  # fmt: skip

# --- actions -------------------------------------------------------------------------------------------------------


class ReadPage(msgspec.Struct, frozen=True):
    local_rank: int


class DeclareHang(msgspec.Struct, frozen=True):
    """`reason` lacks its subject."""

    local_rank: int
    reason: str


Action = ReadPage | DeclareHang
Outcome = tuple[State, tuple[Action, ...]]

# --- decisions -----------------------------------------------------------------------------------------------------


def initial_state() -> State:
    return State()


def step(state: State, event: Event, *, now_s: float, limit_s: float, in_call: Collection[int]) -> Outcome:
    """Takes one event. `in_call`: local ranks in a wrapped call."""
    match event:
        case node_messages.WorkerSpawned(local_rank=local_rank):
            return _with(state, Watched(local_rank, now_s + limit_s)), ()
        case node_messages.WorkerExited(exit=exit_):
            return _without(state, exit_.local_rank), ()
        case (
            worker_messages.PrepareWorkers()
            | worker_messages.StopWorkers()
            | worker_messages.KillWorkers()
            | worker_messages.LoseWorkers()
        ):
            return State(), ()
        case node_messages.SupervisorReturned():
            # The answer to the earlier one's request never comes.
            return State(tuple(Watched(each.local_rank, now_s) for each in state.ranks)), ()
        case node_messages.ProgressRead(local_rank=local_rank, progress=progress):
            return _judge(state, local_rank, progress, now_s, limit_s, in_call)
        case node_messages.DeadlineReached():
            return _ask(state, now_s)
        case _:
            assert_never(event)


def next_deadline_s(state: State) -> float | None:
    return min((each.due_s for each in state.ranks if not each.is_asked), default=None)


def _ask(state: State, now_s: float) -> Outcome:
    due = [each.local_rank for each in state.ranks if not each.is_asked and each.due_s <= now_s]
    if not due:
        return state, ()
    ranks = tuple(
        msgspec.structs.replace(each, is_asked=True) if each.local_rank in due else each for each in state.ranks
    )
    return State(ranks), tuple(ReadPage(local_rank) for local_rank in due)


def _judge(
    state: State, local_rank: int, progress: Progress, now_s: float, limit_s: float, in_call: Collection[int]
) -> Outcome:
    before = next((each for each in state.ranks if each.local_rank == local_rank), None)
    if before is None or not before.is_asked:
        return state, ()
    read_at_s = read_moment_s(progress, now_s)
    if progress.executed_at_s is None or local_rank in in_call:
        return _with(state, Watched(local_rank, read_at_s + limit_s)), ()
    silence = Silence(progress.executed_at_s, limit_s, _TEXT)
    if silence.due_at_s <= read_at_s:
        return _without(state, local_rank), (DeclareHang(local_rank, silence.reason(read_at_s)),)
    due_s = silence.due_at_s if silence.due_at_s > now_s else now_s + REREAD_PAUSE_S
    return _with(state, Watched(local_rank, due_s)), ()


def _with(state: State, watched: Watched) -> State:
    return State((*_without(state, watched.local_rank).ranks, watched))


def _without(state: State, local_rank: int) -> State:
    ranks = tuple(each for each in state.ranks if each.local_rank != local_rank)
    return state if len(ranks) == len(state.ranks) else State(ranks)
