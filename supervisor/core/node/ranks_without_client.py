"""Which machine hears what the node sees of its ranks without a word from their script?

Folds what needs no line of code in the script: which configured limits nothing has armed (ineffective_limits.py), which
ranks a signal has stopped (stopped_ranks.py), whose main thread executes nothing (auto_heartbeat_monitor.py), when the
script was seen again after a restart (script_seen.py), and which ranks a stop waits for (slow_exits.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

import msgspec

from supervisor.core import job_phases, worker_messages
from supervisor.core.facts import HangLimits, JobRules
from supervisor.core.node import (
    auto_heartbeat_monitor,
    call_watch,
    hang_response,
    ineffective_limits,
    node_messages,
    rank_monitor,
    script_seen,
    slow_exits,
    stopped_ranks,
    worker_group,
)


class State(msgspec.Struct, frozen=True):
    arming: ineffective_limits.State = msgspec.field(default_factory=ineffective_limits.initial_state)
    stops: stopped_ranks.State = msgspec.field(default_factory=stopped_ranks.initial_state)
    main_threads: auto_heartbeat_monitor.State = msgspec.field(default_factory=auto_heartbeat_monitor.initial_state)
    seen: script_seen.State = msgspec.field(default_factory=script_seen.initial_state)
    ending: slow_exits.State = msgspec.field(default_factory=slow_exits.initial_state)


Event = (
    worker_messages.PrepareWorkers | worker_messages.StopWorkers | worker_messages.KillWorkers |
    worker_messages.LoseWorkers
    | node_messages.WorkerSpawned | node_messages.WorkerExited | node_messages.ClientJoined
    | node_messages.ProgressRead | node_messages.RankStopped | node_messages.RankContinued | node_messages.RankPrinted
    | node_messages.RanksLookedAt | node_messages.SupervisorReturned | node_messages.DeadlineReached
)  # fmt: skip
Action = ineffective_limits.Action | slow_exits.Action | hang_response.RankHung
Outcome = tuple[State, tuple[Action, ...]]

_NOT_OF_ARMING = (
    node_messages.WorkerExited | node_messages.RankStopped | node_messages.RankContinued | node_messages.RankPrinted
    | node_messages.RanksLookedAt | node_messages.SupervisorReturned
)  # fmt: skip
_NOT_OF_MAIN_THREADS = (
    node_messages.ClientJoined | node_messages.RankStopped | node_messages.RankContinued | node_messages.RankPrinted
    | node_messages.RanksLookedAt
)  # fmt: skip


class Ranks(msgspec.Struct, frozen=True):
    """What the other machines of the job know about its ranks here. Both by local rank."""

    first_rank: int
    monitors: Sequence[rank_monitor.State]
    watches: Sequence[call_watch.State]
    job: job_phases.State
    group: worker_group.State

    def rank(self, local_rank: int) -> int:
        return self.first_rank + local_rank

    def is_over(self, local_rank: int) -> bool:
        """Returns whether the rank does not exist, has ended, or is being ended with its group."""
        return local_rank >= len(self.monitors) or isinstance(self.monitors[local_rank], rank_monitor.Gone)

    def limits(self, local_rank: int, rules: JobRules) -> HangLimits:
        """Returns the limits that hold for the rank: its own once it has said hello."""
        monitor = self.monitors[local_rank]
        if isinstance(monitor, rank_monitor.Watching | rank_monitor.Reading | rank_monitor.Hung):
            return monitor.limits
        return self.job.limits or rules.hang_limits

    def in_call(self) -> tuple[int, ...]:
        return tuple(at for at, watch in enumerate(self.watches) if not isinstance(watch, call_watch.Idle))


def initial_state() -> State:
    return State()


def step(state: State, event: Event, *, now_s: float, cycle: int, ranks: Ranks, rules: JobRules) -> Outcome:
    actions: list[Action] = []
    arming, stops, main_threads = state.arming, state.stops, state.main_threads
    if not isinstance(event, _NOT_OF_ARMING):
        has_rank_0 = ranks.first_rank == 0
        arming, more = ineffective_limits.step(
            arming, event, now_s=now_s, cycle=cycle, has_rank_0=has_rank_0, rules=rules
        )  # fmt: skip
        actions += more
    stop = _stop_event(event, ranks, rules)
    if stop is not None:
        in_call = ranks.in_call()
        stops, said = stopped_ranks.step(stops, stop, now_s=now_s, job_id=rules.job_id, cycle=cycle, in_call=in_call)
        actions += [_by_rank(each, ranks) for each in said]
    limit_s = rules.auto_heartbeat_s
    if limit_s is not None and not isinstance(event, _NOT_OF_MAIN_THREADS):
        main_threads, said = auto_heartbeat_monitor.step(
            main_threads, event, now_s=now_s, limit_s=limit_s, in_call=ranks.in_call()
        )
        actions += [_read_or_hung(each, ranks, rules, cycle) for each in said]
    seen = state.seen
    if isinstance(event, script_seen.Event):
        seen, more = script_seen.step(
            seen, event, now_s=now_s, job_id=rules.job_id, cycle=cycle,
            first_rank=ranks.first_rank, lost_at_s=ranks.job.lost_at_s,
        )  # fmt: skip
        actions += more
    ending = state.ending
    if isinstance(event, slow_exits.Event):
        is_over = isinstance(ranks.group, worker_group.Killing | worker_group.Empty)  # What the kernel keeps is left.
        alive = tuple(each.rank for each in worker_group.workers_of(ranks.group) if not each.ended and not is_over)
        ending, told = slow_exits.step(
            ending, event, now_s=now_s, job_id=rules.job_id, cycle=cycle,
            alive=alive, by_signal=ranks.job.last_signal != 0,
        )  # fmt: skip
        actions += told
    same = arming is state.arming and stops is state.stops and main_threads is state.main_threads
    same = same and seen is state.seen and ending is state.ending
    return (state if same else State(arming, stops, main_threads, seen, ending)), tuple(actions)


def next_deadline_s(state: State) -> float | None:
    dues_s = (
        ineffective_limits.next_deadline_s(state.arming),
        stopped_ranks.next_deadline_s(state.stops),
        auto_heartbeat_monitor.next_deadline_s(state.main_threads),
        slow_exits.next_deadline_s(state.ending),
    )
    return min((due_s for due_s in dues_s if due_s is not None), default=None)


def _by_rank(action: stopped_ranks.Action, ranks: Ranks) -> Action:
    if isinstance(action, stopped_ranks.DeclareHang):
        return hang_response.RankHung(action.local_rank, ranks.rank(action.local_rank), action.reason)
    return action


def _read_or_hung(action: auto_heartbeat_monitor.Action, ranks: Ranks, rules: JobRules, cycle: int) -> Action:
    match action:
        case auto_heartbeat_monitor.ReadPage(local_rank):
            return node_messages.ReadProgress(rules.job_id, cycle, local_rank)
        case auto_heartbeat_monitor.DeclareHang(local_rank, reason):
            return hang_response.RankHung(local_rank, ranks.rank(local_rank), reason)
        case _:
            assert_never(action)


def _stop_event(event: Event, ranks: Ranks, rules: JobRules) -> stopped_ranks.Event | None:
    match event:
        case node_messages.RankStopped(_, _, local_rank, pid, signal, at_s):
            if ranks.is_over(local_rank):
                return None
            limit_s = stopped_ranks.limit_s(ranks.limits(local_rank, rules), rules.auto_heartbeat_s)
            return stopped_ranks.RankStopped(local_rank, ranks.rank(local_rank), pid, signal, at_s, limit_s)
        case node_messages.RankContinued(_, _, local_rank, at_s):
            return stopped_ranks.RankContinued(local_rank, ranks.rank(local_rank), at_s)
        case node_messages.WorkerExited(exit=exit_):
            return stopped_ranks.WorkerEnded(exit_.local_rank)
        case (
            worker_messages.PrepareWorkers()
            | worker_messages.StopWorkers()
            | worker_messages.KillWorkers()
            | worker_messages.LoseWorkers()
        ):
            return stopped_ranks.WorkersEnding()
        case node_messages.DeadlineReached():
            return event
        case (
            node_messages.WorkerSpawned() | node_messages.ClientJoined() | node_messages.ProgressRead()
            | node_messages.RankPrinted() | node_messages.RanksLookedAt() | node_messages.SupervisorReturned()
        ):  # fmt: skip
            return None
        case _:
            assert_never(event)
