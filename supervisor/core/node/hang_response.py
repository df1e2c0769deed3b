"""What is done about hung ranks, from the first verdict to the fault?

Evidence comes first: nothing is signalled before the stacks of all ranks on all nodes have arrived or are overdue. The
coordinator collects them (cluster/hang_evidence.py) and decides which ranks hang and which only wait. Then the silent
ranks get their termination signal, and the job gets one fault, however many ranks are silent and whatever fails
meanwhile.
"""

from __future__ import annotations

import signal as signals
from typing import assert_never

import msgspec

from supervisor.core import worker_messages
from supervisor.core.facts import JobEvent, JobRules
from supervisor.core.node import node_messages

EVIDENCE_MARGIN_S = 0.2  # beyond the budget, for the coordinator's answer; it gives the nodes 0.1 s itself
ESCALATION_S = 2.0  # from a termination signal other than SIGKILL to SIGKILL
RANKS_NAMED_MAX = 4

# --- states --------------------------------------------------------------------------------------------------------


class HungRank(msgspec.Struct, frozen=True):
    local_rank: int
    sentence: str


class Quiet(msgspec.Struct, frozen=True):
    pass


class Examining(msgspec.Struct, frozen=True):
    hung: tuple[HungRank, ...]  # in the order of the verdicts
    until_s: float
    ended: tuple[int, ...] = ()  # local ranks; those of the hung ones need no signal


class Ending(msgspec.Struct, frozen=True):
    """The hung ranks got a signal and have some time to react."""

    hung: tuple[HungRank, ...]
    alive: tuple[int, ...]  # local ranks
    until_s: float
    reason: str


class Over(msgspec.Struct, frozen=True):
    """The workers of this cycle are being stopped; further silence does not matter."""

    hung: tuple[HungRank, ...] = ()  # the ranks whose hang was the reason


State = Quiet | Examining | Ending | Over

# --- events --------------------------------------------------------------------------------------------------------


class RankHung(msgspec.Struct, frozen=True):
    """A rank hangs. `reason` lacks its subject, as the rank's monitor words it."""

    local_rank: int
    rank: int
    reason: str


class WorkersEnding(msgspec.Struct, frozen=True):
    """The node has begun to stop all workers, for any reason."""


class EvidenceTaken(msgspec.Struct, frozen=True):
    """The coordinator has the stacks, or continues without them. `verdict` "": they are inconclusive."""

    verdict: str = ""


Event = RankHung | WorkersEnding | worker_messages.RankExited | EvidenceTaken | node_messages.DeadlineReached

# --- actions -------------------------------------------------------------------------------------------------------


class WantStacks(msgspec.Struct, frozen=True):
    """Asks the coordinator for the stacks of all ranks, this one's first; EvidenceTaken may answer."""

    local_rank: int
    noticed: str  # the sentence about it


Action = (
    worker_messages.HangFound | worker_messages.HangEnded | worker_messages.HangFaulted | worker_messages.KillRanks |
    WantStacks | node_messages.Publish
)  # fmt: skip
Outcome = tuple[State, tuple[Action, ...]]

# --- decisions -----------------------------------------------------------------------------------------------------


def initial_state() -> State:
    return Quiet()


def step(state: State, event: Event, *, now_s: float, cycle: int, rules: JobRules) -> Outcome:
    match event:
        case RankHung():
            return _hung(state, event, now_s, cycle, rules)
        case WorkersEnding():
            return Over(_hung_of(state)), ()
        case worker_messages.RankExited():
            return _exited(state, event, cycle, rules)
        case EvidenceTaken(verdict):
            return _end(state.hung, state.ended, now_s, rules, verdict) if isinstance(state, Examining) else (state, ())
        case node_messages.DeadlineReached():
            return _pass_deadline(state, now_s, rules)
        case _:
            assert_never(event)


def is_hung(state: State, local_rank: int) -> bool:
    """Returns whether the rank was found to be silent in this cycle."""
    return any(each.local_rank == local_rank for each in _hung_of(state))


def next_deadline_s(state: State) -> float | None:
    match state:
        case Examining(until_s=until_s) | Ending(until_s=until_s):
            return until_s
        case Quiet() | Over():
            return None
        case _:
            assert_never(state)


def _hung(state: State, event: RankHung, now_s: float, cycle: int, rules: JobRules) -> Outcome:
    found = HungRank(event.local_rank, f"rank {event.rank} {event.reason}")
    match state:
        case Quiet():
            said = node_messages.Publish(rules.job_id, JobEvent("hang_detected", found.sentence, cycle, event.rank))
            if rules.evidence_budget_s <= 0:
                state, actions = _end((found,), (), now_s, rules)
                return state, (said, worker_messages.HangFound(found.sentence), *actions)
            state = Examining((found,), now_s + rules.evidence_budget_s + EVIDENCE_MARGIN_S)
            return state, (
                said,
                worker_messages.HangFound(found.sentence),
                WantStacks(event.local_rank, found.sentence),
            )
        case Examining(hung, until_s, ended):
            if is_hung(state, event.local_rank):
                return state, ()  # Found in two ways.
            return Examining((*hung, found), until_s, ended), ()  # At the same time: one verdict covers all.
        case Ending() | Over():
            return state, ()  # It is stopped with the others.
        case _:
            assert_never(state)


def _exited(state: State, event: worker_messages.RankExited, cycle: int, rules: JobRules) -> Outcome:
    local_rank = event.exit.local_rank
    match state:
        case Examining(hung, until_s, ended) if event.exit.succeeded:
            left = tuple(each for each in hung if each.local_rank != local_rank)
            if left:
                return Examining(left, until_s, ended), ()
            text = f"rank {event.exit.rank} exited with code 0 before it was ended for its hang"
            said = node_messages.Publish(rules.job_id, JobEvent("hang_ended", text, cycle, event.exit.rank))
            return Quiet(), (said, worker_messages.HangEnded(text))
        case Examining(hung, until_s, ended):
            return Examining(hung, until_s, (*ended, local_rank)), ()
        case Ending(hung, alive, until_s, reason):
            alive = tuple(each for each in alive if each != local_rank)
            if alive:
                return Ending(hung, alive, until_s, reason), ()
            return Over(hung), (worker_messages.HangFaulted(reason),)
        case Quiet() | Over():
            return state, ()
        case _:
            assert_never(state)


def _pass_deadline(state: State, now_s: float, rules: JobRules) -> Outcome:
    match state:
        case Examining(hung, until_s, ended) if now_s >= until_s:
            return _end(hung, ended, now_s, rules)
        case Ending(hung, _, until_s, reason) if now_s >= until_s:
            return Over(hung), (worker_messages.HangFaulted(reason),)
        case Quiet() | Examining() | Ending() | Over():
            return state, ()
        case _:
            assert_never(state)


def _end(
    hung: tuple[HungRank, ...], ended: tuple[int, ...], now_s: float, rules: JobRules, verdict: str = ""
) -> Outcome:
    """Terminates the hung ranks. SIGKILL needs no wait; a rank may react to any other signal."""
    reason = verdict or _reason(hung)
    signal = rules.rank_termination_signal
    ranks = tuple(sorted({each.local_rank for each in hung} - {*ended}))
    if not ranks:
        return Over(hung), (worker_messages.HangFaulted(reason),)
    kill = worker_messages.KillRanks(ranks, signal, ESCALATION_S)
    if signal == signals.SIGKILL:
        return Over(hung), (kill, worker_messages.HangFaulted(reason))
    return Ending(hung, ranks, now_s + ESCALATION_S, reason), (kill,)


def _hung_of(state: State) -> tuple[HungRank, ...]:
    return () if isinstance(state, Quiet) else state.hung


def _reason(hung: tuple[HungRank, ...]) -> str:
    named = "; ".join(each.sentence for each in hung[:RANKS_NAMED_MAX])
    more = len(hung) - RANKS_NAMED_MAX
    return f"{named}; and {more} more hung" if more > 0 else named
