"""How does a node of a simulated job take part in its leader's election, and reach its leader?

core/election/candidate.py decides. Its fence is played only while something is wrong: a leader that answers all the
time moves it continuously.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from supervisor.core.cluster import cluster_messages as cluster
from supervisor.core.election import candidate, node_fence
from supervisor.core.election.leader import Leader
from supervisor.core.election.node_fence import MOVED_EVERY_S, MoveFence, NobodyElse
from supervisor.core.fence_times import FENCE_S
from supervisor.core.leader_ledger import Ledger
from supervisor.core.node import node_messages
from supervisor.edges.peers.election.elected_peers import ASK_TIMEOUT_S
from supervisor.edges.peers.embedded.cluster_peers import PARTING_S
from tests.sim.backend import LEASE_S, Backend, Elected, Unavailable
from tests.sim.following import ALL_IS_WELL, Client
from tests.sim.leader_term import LeaderTerm
from tests.sim.setup import JOB

if TYPE_CHECKING:
    from tests.sim.host import Host

PARTING_LOOK_S = 0.25


class Voter:
    """Elects for one process. `report` begins it."""

    def __init__(self, host: Host, backend: Backend) -> None:
        self.host = host
        self.backend = backend
        self.leader_term: LeaderTerm | None = None
        self._won: LeaderTerm | None = None  # not begun yet
        self._asked_s = 0.0  # for the lead
        self._timeline = host.world.timeline
        rules = host.world.setup.rules
        self._state = candidate.initial_state(
            JOB,
            host.name,
            str(host.world.next_process()),
            join_timeout_s=rules.rendezvous.join_timeout_s,
            now_s=host.now_s(),
        )
        self._leader_terms: dict[int, LeaderTerm] = {}  # of the leaders that it has seen, by term
        self._client: tuple[Client, LeaderTerm] | None = None  # the lead that it follows
        self._due_s = math.inf  # planned, on its own clock
        self._parts_until_s: float | None = None

    # --- reports and orders

    def report(self, report: cluster.Event) -> None:
        if isinstance(self._state.phase, candidate.Unopened):
            self.backend.watch(self)
        self._take(candidate.Said(report))

    def record(self, ledger: Ledger) -> None:
        assert self.leader_term is not None
        self.leader_term.record(ledger)

    def send(self, name: str, ordered: node_messages.Ordered) -> None:
        assert self.leader_term is not None
        self.leader_term.send(name, ordered)

    # --- decisions

    def _take(self, event: candidate.Event) -> None:
        if self._parts_until_s is not None and not isinstance(event, candidate.Said | candidate.LeadLost):
            return
        jitter = self.host.world.random.random()
        self._state, actions = candidate.step(self._state, event, now_s=self.host.now_s(), jitter=jitter)
        for action in actions:
            self._perform(action)
        if self._state.over:
            self.backend.forget(self)
        self._plan()

    def _perform(self, action: candidate.Action) -> None:
        match action:
            case candidate.Obey(order):
                self.host.take(node_messages.Ordered(JOB, order))
            case candidate.Coordinate(report):
                self._coordinate_here(report)
            case candidate.Report(report):
                if self._client is None:
                    assert self._parts_until_s is not None, "only a process that ends has hung up by itself"
                    return
                client, leader_term = self._client
                client.report(lambda: leader_term.coordinate(report))
            case MoveFence(until_s):
                self.host.move_fence(until_s)
            case candidate.Follow(leader):
                self._follow(self._leader_terms[leader.term])
            case candidate.Unfollow():
                self._lose("another one leads")
            case candidate.AskForLead(above):
                self._ask_for_lead(above)
            case candidate.WriteAgain():
                if self.leader_term is not None:
                    self.leader_term.write_again()
            case candidate.AskWhoLeads():
                self._ask_who_leads()
            case candidate.Lead(term, found, former, witnesses):
                self.leader_term, self._won = self._won, None
                assert self.leader_term is not None
                self.host.world.note_lead(self.host, term, found, former or found.former)
                self.leader_term.begin(term, found, witnesses, asked_at_s=self._asked_s)

    def _coordinate_here(self, report: cluster.Event | cluster.LeadershipTaken | cluster.LeadershipLost) -> None:
        match report:
            case cluster.LeadershipTaken():
                self.host.lead(report)
            case cluster.LeadershipLost():
                self.host.lead_no_more()
            case _:
                leader_term = self.leader_term
                assert leader_term is not None
                self._timeline.after(0.0, lambda: self.host.receive(lambda: leader_term.coordinate(report)))

    def _plan(self) -> None:
        due_s = candidate.next_deadline_s(self._state)
        if due_s is None or due_s >= self._due_s or self._parts_until_s is not None:
            return

        def ring() -> None:
            if self._due_s == due_s:
                self._due_s = math.inf
                self._take(candidate.DeadlineReached())

        self._due_s = due_s
        self.host.ring_at(due_s, ring)

    @property
    def over(self) -> str:
        """Returns why it has given up; "": it has not."""
        return self._state.over

    @property
    def leader(self) -> Host | None:
        """Returns whom it leads or follows with."""
        leader_term = self.leader_term or (self._client[1] if self._client is not None else None)
        return leader_term.host if leader_term is not None else None

    # --- its fence

    @property
    def fence_until_s(self) -> float:
        """Returns the limit on the node's own clock."""
        return self._state.fence.until_s

    def vouch(self, known_at_s: float) -> None:
        """Moves the fence: at `known_at_s`, no other node could replace this one."""
        if self.fence_until_s < math.inf:
            self._take(NobodyElse(known_at_s))

    def doubt(self, known_at_s: float) -> None:
        """Plays the fence, which was moved continuously until now."""
        if self.fence_until_s == math.inf:
            draw, host = self.host.world.random, self.host
            told_s = known_at_s - draw.uniform(0.0, MOVED_EVERY_S) + FENCE_S  # the spawner knows less
            host.move_fence(told_s)
            tells_at_s = host.now_s() + draw.uniform(0.0, MOVED_EVERY_S)
            self._change_fence(node_fence.State(host.name, known_at_s + FENCE_S, told_s, tells_at_s))

    def rest(self) -> None:
        """Stops playing the fence: it is moved continuously."""
        self.host.move_fence(ALL_IS_WELL)
        self._change_fence(node_fence.State(self.host.name, math.inf, math.inf, tells_at_s=math.inf))

    def _change_fence(self, fence: node_fence.State) -> None:
        self._state = msgspec.structs.replace(self._state, fence=fence)
        self._plan()

    # --- who leads

    def see(self, leader: Elected | None) -> None:
        self._take(candidate.LeaderSeen(self._known(leader)))

    def _known(self, leader: Elected | None) -> Leader | None:
        if leader is None:
            return None
        self._leader_terms[leader.term] = leader.leader_term
        return Leader(leader.term, leader.node, "", LEASE_S)

    def _ask_who_leads(self) -> None:
        asked_at_s = self.host.now_s()

        def told(leader: Elected | Unavailable | None) -> None:
            if isinstance(leader, Unavailable):
                self._take(candidate.LeaderAnswered())
            else:
                self._take(candidate.LeaderAnswered(self._known(leader), asked_at_s))

        self.backend.ask(self.host, lambda: self.backend.leader, told, timeout_s=ASK_TIMEOUT_S)

    def _ask_for_lead(self, above: int) -> None:
        self._asked_s = self._timeline.now_s
        leader_term = LeaderTerm(self)

        def told(current: Elected | Unavailable | None) -> None:
            if current is not None:
                self._take(candidate.LeadNotWon())
            else:
                self.backend.ask(self.host, lambda: self.backend.elect(leader_term, above), elected)

        def elected(won: tuple[int, Ledger, float, int] | Unavailable | None) -> None:
            if self._state.over or self._parts_until_s is not None:
                return
            if won is None or isinstance(won, Unavailable):
                self._take(candidate.LeadNotWon())
            else:
                self._won = leader_term
                self._take(candidate.LeadWon(*won))

        self.backend.ask(self.host, lambda: self.backend.leader, told)

    def lose_lead(self, leader_term: LeaderTerm, why: str, *, has_resigned: bool) -> None:
        if self.leader_term is leader_term:
            self.leader_term = None
            if self._parts_until_s is None:
                self.doubt(self.host.now_s())  # nothing moves the fence any more, even if all was well until now
            self._take(candidate.LeadLost(why, has_resigned, leader_term.ledger))
            self._take(candidate.Left())
            if has_resigned:
                self.end_if_all_is_over()  # It has ended by itself.

    # --- as a follower

    def _follow(self, leader_term: LeaderTerm) -> None:
        def lost(why: str, is_refused: bool) -> None:
            self.host.receive(lambda: self._lose(why, client, is_refused=is_refused))

        client = Client(self.host, leader_term.server, on_lost=lost, on_fence=self._move_fence)
        self._client = client, leader_term

        def begin() -> None:
            client.begin(FENCE_S, ranks_until_s=self.fence_until_s)

        self._timeline.after(0.0, lambda: self.host.receive(begin))

    def _move_fence(self, until_s: float) -> None:
        if until_s == ALL_IS_WELL:
            self.rest()
        else:
            self.doubt(until_s - FENCE_S)
            self.vouch(until_s - FENCE_S)

    def _lose(self, why: str, lost: Client | None = None, *, is_refused: bool = False) -> None:
        """Loses the leader that it follows; `lost`: only if that is its connection."""
        if self._client is None or (lost is not None and self._client[0] is not lost):
            return
        client = self._hang_up()
        self._take(candidate.LinkLost(why, client.said_at_s, client.was_reached, is_refused, client.heard_leader))

    def _hang_up(self) -> Client:
        assert self._client is not None
        (client, _), self._client = self._client, None
        client.hang_up()
        return client

    # --- the end

    def end_if_all_is_over(self) -> None:
        """Ends the process once the job has ended and all its messages were heard."""
        if self.host.verdict is None or self._parts_until_s is not None:
            return
        if self.leader_term is None or self.host.is_led_to_its_end:
            self._parts_until_s = self.host.after_s(PARTING_S)
            self.backend.forget(self)
            self.rest()
            self._part()

    def _part(self) -> None:
        leader_term, client = self.leader_term, self._client[0] if self._client is not None else None
        if leader_term is not None:
            is_heard = leader_term.is_all_heard
        else:
            is_heard = client is None or client.is_over or not client.up.waiting
        if not is_heard and self._timeline.now_s < (self._parts_until_s or 0.0):
            self._timeline.after(PARTING_LOOK_S, lambda: self.host.receive(self._part))
            return
        if client is not None:
            self._hang_up()
        if leader_term is not None:
            leader_term.conclude(is_heard=is_heard)
