"""Which leader does a node follow, when does it ask to lead, and what does it do without a leader?

Each node watches who leads, and asks to lead while nobody does. The loss of the backend or the leader does not itself
stop training: the node's own fence decides how long it may go on (node_fence.py, which this machine carries).
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from supervisor.core import orders
from supervisor.core.cluster import cluster_messages as cluster
from supervisor.core.election import first_start, node_fence
from supervisor.core.election.leader import Leader
from supervisor.core.election.leader_heartbeats import HeardLeader
from supervisor.core.election.ledger_of_this_run import of_this_run
from supervisor.core.election.node_fence import EndWorkers, MoveFence
from supervisor.core.facts import JobState, Verdict
from supervisor.core.fence_times import FENCE_S, HEARD_S, led_at_s
from supervisor.core.leader_ledger import Former, Ledger, as_before, newer
from supervisor.core.session_state import LastingRequest, Request

JITTER_S = 0.2  # before a node asks to lead, so that not all ask at once
AGAIN_S = 0.5
STANDS_AGAIN_S = 10.0  # after it has given up the lead for another node: by then, one that can lead does
KEPT_S = 10.0  # a person's request is repeated to a new leader that comes within this time

# --- phases --------------------------------------------------------------------------------------------------------


class Unopened(msgspec.Struct, frozen=True):
    """The node has no job yet that could be led."""


class Waiting(msgspec.Struct, frozen=True):
    """Nobody is followed. Another leader is followed as soon as it is seen."""

    until_s: float


class Preparing(msgspec.Struct, frozen=True):
    """Asks to lead soon."""

    until_s: float


class Asking(msgspec.Struct, frozen=True):
    """The backend has been asked for the lead."""


class Following(msgspec.Struct, frozen=True):
    leader: Leader
    is_new: bool = False  # it hears first how this node stands: that includes earlier reports


class Leaving(msgspec.Struct, frozen=True):
    """The connection to that leader is being ended, or the own lead."""

    leader: Leader


class Leading(msgspec.Struct, frozen=True):
    term: int


class Over(msgspec.Struct, frozen=True):
    """The node has given up."""

    why: str


Phase = Unopened | Waiting | Preparing | Asking | Following | Leaving | Leading | Over


class State(msgspec.Struct, frozen=True):
    job_id: str
    node: str
    process: str  # as the ledger names this node's process
    join_timeout_s: float
    fence: node_fence.State
    waits_since_s: float | None  # for a leader, while nothing runs; None: something may run
    asks_at_s: float  # who leads, if the fence has not moved by then
    phase: Phase = Unopened()
    seen: Leader | None = None
    has_seen: bool = False  # the backend has answered at least once
    seen_at_s: float = 0.0  # when that, or the own lead, was news
    newest_term: int = 0
    ledger: Ledger = Ledger()  # the last one that is known to be kept
    doubts: bool = False  # who leads: a watch tells of an earlier leader
    left_at_s: float | None = None  # when the previous leader may last have heard this node
    left: str = ""  # the node of that leader
    left_term: int = 0  # of that leader; 0: unknown
    heard_leader: HeardLeader | None = None  # of that leader; None: no heartbeat that counted
    met_term: int = 0  # of the first leader that this process met; 0: none yet
    requests: tuple[tuple[float, Request], ...] = ()
    stands_from_s: float | None = None  # it gave up the lead; until then, others may lead
    has_stopped: bool = False  # as reported
    is_asking: bool = False  # who leads

    @property
    def over(self) -> str:
        """Returns why the node has given up; "": it has not."""
        return self.phase.why if isinstance(self.phase, Over) else ""


# --- events, beside those of node_fence ----------------------------------------------------------------------------


class Opened(msgspec.Struct, frozen=True):
    """The node goes on with a job of the process before this one, and with the connection to a leader, if any."""

    follows: Leader | None = None


class Said(msgspec.Struct, frozen=True):
    """The node reports to the job's coordinator, wherever that runs."""

    report: cluster.Event


class LeaderSeen(msgspec.Struct, frozen=True):
    """The backend says who leads now; None: nobody."""

    leader: Leader | None


class LeaderAnswered(msgspec.Struct, frozen=True):
    """The answer to AskWhoLeads, or none."""

    leader: Leader | None = None
    asked_at_s: float | None = None  # None: the backend did not answer


class BackendRefused(msgspec.Struct, frozen=True):
    """The backend refuses this node: the configuration is wrong. That ends only a job that has not begun."""

    why: str


class Unable(msgspec.Struct, frozen=True):
    """This node has no address at which it could lead, and says why. That ends only a job that has met no leader."""

    why: str


class LeadWon(msgspec.Struct, frozen=True):
    term: int
    ledger: Ledger  # as found
    held_for_s: float = 0.0  # see first_start.may_train
    previous_term: int = 0  # of the lead just before; 0: unknown


class LeadNotWon(msgspec.Struct, frozen=True):
    """Another node leads, the backend did not answer, or this node could not listen."""


class LeadLost(msgspec.Struct, frozen=True):
    """The own lead has ended. It is being left; `Left` follows."""

    why: str
    has_resigned: bool = False  # for a node that hears more of the others
    ledger: Ledger = Ledger()  # the last one that is kept


class LinkLost(msgspec.Struct, frozen=True):
    """The leader that was followed is no longer heard. `said_at_s`: when it may last have heard this node."""

    why: str
    said_at_s: float | None
    was_heard: bool
    is_refused: bool = False
    heard_leader: HeardLeader | None = None


class Left(msgspec.Struct, frozen=True):
    """Nothing of the own lead is left to do."""


class DeadlineReached(msgspec.Struct, frozen=True):
    pass


Event = (
    Opened | Said | LeaderSeen | LeaderAnswered | BackendRefused | Unable | LeadWon | LeadNotWon | LeadLost | LinkLost
    | Left | node_fence.NobodyElse | DeadlineReached
)  # fmt: skip

# --- actions, beside those of node_fence ---------------------------------------------------------------------------


class Follow(msgspec.Struct, frozen=True):
    """Connect to it. LinkLost follows, at the latest after Unfollow."""

    leader: Leader


class Unfollow(msgspec.Struct, frozen=True):
    """End the connection to the leader."""


class AskForLead(msgspec.Struct, frozen=True):
    """Answer with LeadWon, LeadNotWon or Unable. The term is to be later than `above`."""

    above: int = 0


class AskWhoLeads(msgspec.Struct, frozen=True):
    """Answer with LeaderAnswered."""


class Lead(msgspec.Struct, frozen=True):
    """Serve the other nodes. LeadLost follows."""

    term: int
    found: Ledger  # of this run
    former: Former | None  # how the run before ended, if that was another one
    witnesses: tuple[str, ...] = ()  # those that the backend names: another leader that wins now meets them first


class WriteAgain(msgspec.Struct, frozen=True):
    """Write the ledger again, if this lead has: the backend may have lost it, or have an older one back."""


class Coordinate(msgspec.Struct, frozen=True):
    """For the coordinator, which runs here."""

    report: cluster.Event | cluster.LeadershipTaken | cluster.LeadershipLost


class Report(msgspec.Struct, frozen=True):
    """For the leader that is followed."""

    report: cluster.Event


class Obey(msgspec.Struct, frozen=True):
    """For this node."""

    order: orders.Order


Action = Follow | Unfollow | AskForLead | AskWhoLeads | Lead | WriteAgain | Coordinate | Report | Obey | MoveFence
_Result = tuple[State, tuple[Action, ...]]

# --- the machine ---------------------------------------------------------------------------------------------------


def initial_state(
    job_id: str, node: str, process: str, *, join_timeout_s: float, now_s: float, known_at_s: float | None = None
) -> State:
    """Begins. `known_at_s`: see node_fence.initial_state."""
    fence = node_fence.initial_state(node, now_s=now_s, known_at_s=known_at_s)
    return State(job_id, node, process, join_timeout_s, fence, waits_since_s=now_s, asks_at_s=now_s + AGAIN_S)


def step(state: State, event: Event, *, now_s: float, jitter: float = 0.0) -> _Result:
    """Takes one event. `jitter`: a random value from 0 to 1, a new one for each node and call."""
    match event:
        case node_fence.NobodyElse():
            return _fence(state, event, now_s)
        case Said(report):
            return _say(state, report, now_s, jitter)
        case LeaderSeen(leader):
            return _see(state, leader, now_s, jitter)
        case LeaderAnswered(leader, asked_at_s):
            state = msgspec.structs.replace(state, is_asking=False, doubts=False, asks_at_s=now_s + AGAIN_S)
            if asked_at_s is None or isinstance(state.phase, Over):
                return state, ()
            # If this node led last, the next leader may know that nobody hears it.
            nobody = node_fence.NobodyElse(led_at_s(asked_at_s) if state.left == state.node else asked_at_s)
            state, moved = _fence(state, nobody, now_s) if leader is None else (state, ())
            return _and_then(moved, _see(state, leader, now_s, jitter, is_sure=asked_at_s > state.seen_at_s))
        case DeadlineReached():
            return _reach(state, now_s, jitter)
        case _:
            return _change(state, event, now_s, jitter)


def next_deadline_s(state: State) -> float | None:
    if isinstance(state.phase, Unopened | Over):
        return None
    until_s = state.phase.until_s if isinstance(state.phase, Waiting | Preparing) else None
    deadlines_s = node_fence.next_deadline_s(state.fence), until_s, _asks_at_s(state)
    return min(each_s for each_s in deadlines_s if each_s is not None)


def _change(
    state: State,
    event: Opened | BackendRefused | Unable | LeadWon | LeadNotWon | LeadLost | LinkLost | Left,
    now_s: float,
    jitter: float,
) -> _Result:
    """Takes what happened to the connection, or to the own lead."""
    if isinstance(state.phase, Over):
        return state, ()
    match event:
        case Opened(follows):
            return _open(state, follows, now_s, jitter)
        case BackendRefused(why):
            if state.has_seen:
                return state, ()
            return _give_up(state, f"cannot elect a leader of job {state.job_id}: {why}; check --rdzv-conf")
        case Unable(why):
            return _not_won(state, now_s, jitter) if state.met_term else _give_up(state, why)
        case LeadWon():
            return _win(state, event, now_s)
        case LeadNotWon():
            return _not_won(state, now_s, jitter)
        case LeadLost():
            return _lose_lead(state, event, now_s)
        case LinkLost():
            return _lose_link(state, event, now_s, jitter)
        case Left():
            return _decide(state, now_s, jitter)
        case _:
            assert_never(event)


# --- who leads -----------------------------------------------------------------------------------------------------


def _open(state: State, follows: Leader | None, now_s: float, jitter: float) -> _Result:
    if not isinstance(state.phase, Unopened):
        return state, ()
    state, told = _fence(state, node_fence.DeadlineReached(), now_s)
    if follows is None:
        return _and_then(told, _decide(state, now_s, jitter))
    state = msgspec.structs.replace(state, phase=Following(follows), seen=follows, has_seen=True)
    return state, (*told, Follow(follows))


def _decide(state: State, now_s: float, jitter: float) -> _Result:
    """Follows the leader that was seen last, or asks to lead; gives up if there has been none for too long."""
    since_s = state.waits_since_s
    if since_s is None and now_s >= state.fence.until_s:
        since_s = now_s  # the workers have ended
        state = msgspec.structs.replace(state, waits_since_s=since_s)
    if since_s is not None and now_s - since_s > state.join_timeout_s:
        return _give_up(state, f"no leader of job {state.job_id} was found for {state.join_timeout_s:g} s")
    leader = state.seen
    if leader is not None and leader.node != state.node:
        state = msgspec.structs.replace(state, phase=Following(leader, is_new=True))
        return state, (Follow(leader), Obey(orders.Introduce()))
    if state.stands_from_s is not None and now_s < state.stands_from_s:
        return msgspec.structs.replace(state, phase=Waiting(state.stands_from_s)), ()
    return msgspec.structs.replace(state, phase=Preparing(now_s + jitter * JITTER_S)), ()


def _see(state: State, leader: Leader | None, now_s: float, jitter: float, *, is_sure: bool = False) -> _Result:
    """Notes the leader. News about an earlier leader comes too late to matter, unless it is sure that this one leads.

    Then the backend has lost data, and what this node knew before is older all the same than what that leader writes.
    """
    if isinstance(state.phase, Over):
        return state, ()
    if leader is not None and leader.term < state.newest_term and not is_sure:
        return msgspec.structs.replace(state, doubts=True, asks_at_s=now_s), ()
    is_news = leader != state.seen or not state.has_seen
    if not is_news:  # The watch has begun again.
        return state, ((WriteAgain(),) if isinstance(state.phase, Leading) else ())
    newest_term = max(leader.term if leader is not None else 0, state.newest_term)
    state = msgspec.structs.replace(state, seen=leader, seen_at_s=now_s, has_seen=True, newest_term=newest_term)
    if leader is not None:
        met_term, ledger = min(leader.term, state.met_term), as_before(state.ledger, leader.term)
        state = msgspec.structs.replace(state, met_term=met_term, ledger=ledger)
    if isinstance(state.phase, Following):
        return msgspec.structs.replace(state, phase=Leaving(state.phase.leader)), (Unfollow(),)
    return _decide(state, now_s, jitter) if isinstance(state.phase, Waiting) else (state, ())


def _lose_link(state: State, event: LinkLost, now_s: float, jitter: float) -> _Result:
    phase = state.phase
    assert isinstance(phase, Following | Leaving), "only a link can be lost"
    if event.said_at_s is not None:
        left, met_term = phase.leader, state.met_term or phase.leader.term
        state = msgspec.structs.replace(
            state, left_at_s=event.said_at_s, left=left.node, left_term=left.term, heard_leader=event.heard_leader,
            met_term=met_term,
        )  # fmt: skip
    if event.was_heard:
        state = msgspec.structs.replace(state, waits_since_s=None)
    if isinstance(phase, Leaving):
        return _decide(state, now_s, jitter)
    if event.is_refused and state.waits_since_s is not None:
        return _give_up(state, event.why)
    return msgspec.structs.replace(state, phase=Waiting(now_s + AGAIN_S)), ()


def _win(state: State, won: LeadWon, now_s: float) -> _Result:
    term, newest_term = won.term, max(won.term, won.ledger.term)
    found, former = of_this_run(newer(won.ledger, state.ledger), term=term, met_term=state.met_term)
    state = msgspec.structs.replace(state, phase=Leading(term), waits_since_s=None, seen_at_s=now_s)
    state = msgspec.structs.replace(state, newest_term=newest_term, ledger=found)
    taken = cluster.LeadershipTaken(term, found, former, first_start.may_train(won.held_for_s), won.previous_term)
    witnesses = found.witnesses if found == won.ledger else ()
    return state, (Lead(term, found, former, witnesses), Coordinate(taken), Obey(orders.Introduce()))


def _lose_lead(state: State, event: LeadLost, now_s: float) -> _Result:
    assert isinstance(state.phase, Leading), "only a lead can be lost"
    state = msgspec.structs.replace(
        state,
        phase=Leaving(Leader(state.phase.term, state.node, "", 0.0)),
        left_at_s=now_s, left=state.node, left_term=state.phase.term, heard_leader=None,
        met_term=state.met_term or state.phase.term,
        stands_from_s=now_s + STANDS_AGAIN_S if event.has_resigned else None,
        ledger=newer(event.ledger, state.ledger),
    )  # fmt: skip
    told = (Obey(orders.Resign(event.why)),) if event.has_resigned else ()
    return state, (Coordinate(cluster.LeadershipLost(event.why)), *told)


def _not_won(state: State, now_s: float, jitter: float) -> _Result:
    assert isinstance(state.phase, Asking), "one question, one answer"
    if state.seen is not None and state.seen.node != state.node:
        return _decide(state, now_s, jitter)  # it was seen meanwhile
    return msgspec.structs.replace(state, phase=Waiting(now_s + AGAIN_S)), ()


# --- time ----------------------------------------------------------------------------------------------------------


def _reach(state: State, now_s: float, jitter: float) -> _Result:
    if isinstance(state.phase, Unopened | Over):
        return state, ()
    is_due, event = now_s >= node_fence.next_deadline_s(state.fence), node_fence.DeadlineReached()
    state, actions = _fence(state, event, now_s) if is_due else (state, ())
    asks_at_s = _asks_at_s(state)
    if asks_at_s is not None and now_s >= asks_at_s:
        state, actions = msgspec.structs.replace(state, is_asking=True), (*actions, AskWhoLeads())
    match state.phase:
        case Preparing(until_s) if now_s >= until_s:
            return msgspec.structs.replace(state, phase=Asking()), (*actions, AskForLead(state.newest_term))
        case Waiting(until_s) if now_s >= until_s:
            return _and_then(actions, _decide(state, now_s, jitter))
        case _:
            return state, actions


def _asks_at_s(state: State) -> float | None:
    """Returns when to ask who leads, since a watch may report late or never. If nobody leads, this node is safe."""
    if state.is_asking or isinstance(state.phase, Leading):
        return None
    if state.doubts:
        return state.asks_at_s
    return max(state.asks_at_s, state.fence.until_s - (FENCE_S - HEARD_S))


def _fence(state: State, event: node_fence.Event, now_s: float) -> _Result:
    fence, actions = node_fence.step(state.fence, event, now_s=now_s)
    said: list[Action] = [Obey(each.order) if isinstance(each, EndWorkers) else each for each in actions]
    return msgspec.structs.replace(state, fence=fence), tuple(said)


# --- reports -------------------------------------------------------------------------------------------------------


def _say(state: State, report: cluster.Event, now_s: float, jitter: float) -> _Result:
    """Reports an event. If nobody leads, the next leader learns it from this node's state then."""
    if isinstance(report, Request):
        state = msgspec.structs.replace(state, requests=(*state.requests, (now_s, report)))
    if isinstance(report, cluster.NodeStopped):
        state = msgspec.structs.replace(state, has_stopped=True)
    if isinstance(state.phase, Over):
        return state, (_failed(state.phase.why),) if isinstance(report, cluster.NodeStopped) else ()
    said: list[cluster.Event] = [report]
    if isinstance(report, cluster.NodeStands):
        kept = (each for at_s, each in state.requests if now_s - at_s < KEPT_S)
        said = [_introduced(state, report, now_s), *kept]
    actions: tuple[Action, ...] = ()
    match state.phase:
        case Leading():
            actions = tuple(Coordinate(each) for each in said)
        case Following(leader, is_new):
            is_new = is_new and not isinstance(report, cluster.NodeStands)
            state = msgspec.structs.replace(state, phase=Following(leader, is_new))
            actions = () if is_new else tuple(Report(each) for each in said)
        case _:
            if state.waits_since_s is None and not isinstance(report, Request | LastingRequest):
                state = msgspec.structs.replace(state, waits_since_s=now_s)
    return _and_then(actions, _open(state, None, now_s, jitter))


def _introduced(state: State, stands: cluster.NodeStands, now_s: float) -> cluster.NodeStands:
    left_ago_s = max(0.0, now_s - state.left_at_s) if state.left_at_s is not None else 0.0
    heard = state.heard_leader
    facts = msgspec.structs.replace(stands.rules.facts, process=state.process)
    rules = msgspec.structs.replace(stands.rules, facts=facts)
    return msgspec.structs.replace(
        stands, rules=rules, left_ago_s=left_ago_s, left=state.left, met_term=state.met_term,
        newest_term=state.newest_term, left_term=state.left_term,
        heard_cycle=heard.cycle if heard is not None else -1,
        heard_ago_s=max(0.0, now_s - heard.at_s) if heard is not None else 0.0,
    )  # fmt: skip


# --- the end -------------------------------------------------------------------------------------------------------


def _give_up(state: State, why: str) -> _Result:
    """Ends the job here. If this node has stopped, nobody else will say how the job ends."""
    ends = _failed(why) if state.has_stopped else Obey(orders.WindDown(why, at_once=True))
    return msgspec.structs.replace(state, phase=Over(why)), (ends,)


def _failed(why: str) -> Obey:
    return Obey(orders.Conclude(Verdict(JobState.FAILED, 1, why)))


def _and_then(actions: tuple[Action, ...], result: _Result) -> _Result:
    state, later = result
    return state, (*actions, *later)
