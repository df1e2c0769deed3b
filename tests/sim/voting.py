"""How does a node of a simulated job take part in its leader's election, and what does it do without a leader?

It decides as the tasks in edges/peers/election/elected_peers.py, which are chains of events here. A waiting chain has a
turn number: events planned in an earlier turn are dropped. The node's own fence is the machine of core/election.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from supervisor.core import orders
from supervisor.core.cluster import messages as cluster
from supervisor.core.facts import JobState, Verdict
from supervisor.core.fence import FENCE_S
from supervisor.core.ledger import Ledger, of_this_run
from supervisor.core.node import messages
from supervisor.edges.peers.cluster_peers import PARTING_S
from supervisor.edges.peers.election.elected_peers import (
    AGAIN_S,
    ASK_TIMEOUT_S,
    JITTER_S,
    WISHES_KEPT_S,
)
from tests.sim.backend import Backend, Leader, Unavailable
from tests.sim.network import ALL_IS_WELL, Link
from tests.sim.own_fence import OwnFence
from tests.sim.reign import Reign
from tests.sim.setup import JOB

if TYPE_CHECKING:
    from tests.sim.host import Host

CONNECT_MAX_S = 0.3  # between two attempts
PARTING_LOOK_S = 0.25
_Standing = cluster.NodeExcluded | cluster.NodeCordoned  # requests that hold under any leader
_Wish = cluster.StopAsked | cluster.RestartAsked | _Standing


class Voter:
    """Elects for one process. `report` begins it."""

    def __init__(self, host: Host, backend: Backend) -> None:
        self.host = host
        self.backend = backend
        self.reign: Reign | None = None
        self.fence = OwnFence(host, self._ask_while_unheard)
        self._timeline = host.world.timeline
        rules = host.world.setup.rules
        facts = msgspec.structs.replace(rules.facts, process=str(host.world.next_process()))
        self._rules = msgspec.structs.replace(rules, facts=facts)
        self._client: tuple[Link, Reign] | None = None  # the lead that it follows
        self._seen: Leader | None = None
        self._newest_term = 0
        self._turn = 0
        self._is_free = False  # may see another leader at once
        self._left_s: float | None = None  # when the previous leader may last have heard this node
        self._met_term = 0  # of the first leader that this process met; 0: none yet
        self._waits_since_s: float | None = self._timeline.now_s
        self._wishes: list[tuple[float, _Wish]] = []
        self._over = ""
        self._is_opened = False
        self._has_stopped = False  # as reported
        self._parts_until_s: float | None = None

    # --- reports and orders

    def report(self, report: cluster.Event) -> None:
        if not self._is_opened:
            self._is_opened = True
            self.backend.watch(self)
            self.fence.begin()
            self._next()
        now_s = self._timeline.now_s
        self._has_stopped = self._has_stopped or isinstance(report, cluster.NodeStopped)
        if isinstance(report, _Wish):
            self._wishes.append((now_s, report))
        if self._over:
            if isinstance(report, cluster.NodeStopped):
                self._conclude()
            return
        if isinstance(report, cluster.NodeStands):
            left_ago_s = max(0.0, self.host.elapsed_s(self._left_s)) if self._left_s is not None else 0.0
            report = msgspec.structs.replace(
                report, rules=self._rules, left_ago_s=left_ago_s, met_term=self._met_term
            )  # fmt: skip
        self._leave(report)
        if isinstance(report, cluster.NodeStands):
            for at_s, wish in self._wishes:
                if isinstance(wish, _Standing) or now_s - at_s < WISHES_KEPT_S:
                    self._leave(wish)

    def _leave(self, report: cluster.Event) -> None:
        if self.reign is not None:
            reign = self.reign
            self._timeline.after(0.0, lambda: self.host.receive(lambda: _coordinate(reign, report)))
        elif self._client is not None:
            client, reign = self._client
            client.send(client.up, lambda: _coordinate(reign, report))
        elif self._waits_since_s is None and not isinstance(report, _Wish):
            self._waits_since_s = self._timeline.now_s

    def record(self, ledger: Ledger) -> None:
        assert self.reign is not None
        self.reign.record(ledger)

    def send(self, name: str, ordered: messages.Ordered) -> None:
        assert self.reign is not None
        self.reign.send(name, ordered)

    # --- who leads

    def see(self, leader: Leader | None) -> None:
        if leader is not None and leader.term < self._newest_term:
            return
        if leader == self._seen:
            return
        self._newest_term = leader.term if leader is not None else self._newest_term
        self._seen = leader
        if self._is_free:
            self._drop_client()
            self._next()

    def _ask_while_unheard(self) -> None:
        asked_at_s = self._timeline.now_s

        def told(leader: Leader | Unavailable | None) -> None:
            if isinstance(leader, Unavailable) or self._over or self._parts_until_s is not None:
                return
            if leader is None:
                self.fence.move(asked_at_s)
            self.see(leader)

        if self.reign is None and not self._over:
            self.backend.ask(self.host, lambda: self.backend.leader, told, timeout_s=ASK_TIMEOUT_S)

    def _next(self) -> None:
        self._turn += 1
        self._is_free = False
        self._end_in_time()
        if self._over or self._parts_until_s is not None:
            return
        if self._seen is not None and self._seen.node != self.host.name:
            self._follow(self._seen)
        else:
            self._try_to_lead()

    def _end_in_time(self) -> None:
        if self._waits_since_s is None and self.fence.left_s <= 0.0:
            self._waits_since_s = self._timeline.now_s
        if self._waits_since_s is not None and not self._over:
            timeout_s = self._rules.rendezvous.join_timeout_s
            if self.host.elapsed_s(self._waits_since_s) > timeout_s:
                self._give_up(f"no leader of job {JOB} was found for {timeout_s:g} s")

    def _later(self, delay_s: float, do: Callable[[], None]) -> None:
        turn = self._turn

        def unless_late() -> None:
            if turn == self._turn:
                do()

        self._timeline.at(self.host.after_s(delay_s), lambda: self.host.receive(unless_late))

    def _soon(self, most_s: float) -> float:
        return self.host.world.random.uniform(0.0, most_s)

    # --- as a follower

    def _follow(self, leader: Leader) -> None:
        self._is_free = True
        reign = leader.reign

        def lost(why: str) -> None:
            del why
            self.host.receive(lambda: self._lose(client))

        client = Link(
            self.host.world,
            reign.host,
            self.host,
            on_leader_lost=lost,
            on_node_lost=lambda: reign.lose_node(self.host),
            on_known=self._know,
            reign=reign,
            is_connected=False,
        )
        self._client = client, reign
        self.host.take(messages.Ordered(JOB, orders.Introduce()))
        self._connect(client, reign, self.host.after_s(FENCE_S))

    def _know(self, known_s: float) -> None:
        if known_s == ALL_IS_WELL:
            self.fence.rest()
        else:
            self.fence.doubt(known_s)
            self.fence.move(known_s)

    def _connect(self, client: Link, reign: Reign, until_s: float) -> None:
        if self._timeline.now_s >= until_s:
            self._lose(client)
            return
        if client.is_open and reign.host.is_running and reign.is_served:
            if not client.enter():
                self._connect_again(client, reign, until_s)
                return
            client.said_s = self._timeline.now_s
            match reign.take_in(self.host.name, client):
                case True:
                    self.host.world.note_meeting(self.host, reign.term)
                    client.connect()
                    return
                case False:
                    self._drop_client()
                    if self._waits_since_s is not None:
                        self._give_up(
                            f"node {reign.host.name} refuses this node: another one is called {self.host.name}"
                        )
                    else:
                        self._later(AGAIN_S, self._next)
                    return
                case _:
                    pass
            client.leave_way()
        self._connect_again(client, reign, until_s)

    def _connect_again(self, client: Link, reign: Reign, until_s: float) -> None:
        haste = 8.0 if self.fence.left_s < -FENCE_S else 1.0
        self._later(self._soon(CONNECT_MAX_S * haste), lambda: self._connect(client, reign, until_s))

    def _lose(self, client: Link) -> None:
        if self._client is not None and client is self._client[0]:
            self._drop_client()
            self._turn += 1
            self._later(AGAIN_S, self._next)

    def _drop_client(self) -> None:
        if self._client is None:
            return
        (client, reign), self._client = self._client, None
        said_s = self._timeline.now_s if client.is_connected else client.said_s
        if said_s is not None:
            self._left_s, self._met_term = said_s, self._met_term or reign.term
        if client.was_connected:
            self._waits_since_s = None
        client.hang_up()

    # --- as a leader

    def _try_to_lead(self) -> None:
        self._later(self._soon(JITTER_S), self._ask_who_leads)

    def _ask_who_leads(self) -> None:
        asked_at_s, turn = self._timeline.now_s, self._turn
        reign = Reign(self)

        def told(current: Leader | Unavailable | None) -> None:
            if turn != self._turn:
                return
            if current is not None:
                self._wait_for_change()
            else:
                self.backend.ask(self.host, lambda: self.backend.elect(reign), elected)

        def elected(won: tuple[int, Ledger] | Unavailable | None) -> None:
            if turn != self._turn:
                return
            if won is None or isinstance(won, Unavailable):
                self._wait_for_change()
            else:
                self._reign(reign, *won, asked_at_s=asked_at_s)

        self.backend.ask(self.host, lambda: self.backend.leader, told)

    def _wait_for_change(self) -> None:
        self._is_free = True
        self._later(AGAIN_S, self._next)

    def _reign(self, reign: Reign, term: int, ledger: Ledger, *, asked_at_s: float) -> None:
        self.reign, self._waits_since_s, self._newest_term = reign, None, term
        ledger, former = of_this_run(ledger, term=term, met_term=self._met_term)
        self.host.world.note_lead(self.host, term, ledger, former or ledger.former)
        self.host.lead(cluster.LeadershipTaken(term, ledger, former))
        self.host.take(messages.Ordered(JOB, orders.Introduce()))
        reign.begin(term, ledger, asked_at_s=asked_at_s)

    def lose_lead(self, reign: Reign, why: str) -> None:
        if self.reign is not reign:
            return
        self.reign = None
        self._left_s, self._met_term = self._timeline.now_s, self._met_term or reign.term
        self.host.lead_no_more()
        if self._parts_until_s is None:
            self._next()

    # --- the end

    def _give_up(self, why: str) -> None:
        self._over = why
        self.host.lost_leader = why
        self._turn += 1
        self.backend.forget(self)
        if self._has_stopped:
            self._conclude()
        else:
            self.host.take(messages.Ordered(JOB, orders.WindDown(why, at_once=True)))

    def _conclude(self) -> None:
        failed = orders.Conclude(Verdict(JobState.FAILED, 1, self._over))
        self.host.take(messages.Ordered(JOB, failed))

    def end_if_all_is_over(self) -> None:
        """Ends the process once the job has ended and all its messages were heard."""
        if self.host.verdict is None or self._parts_until_s is not None:
            return
        if self.reign is None or self.host.is_led_to_its_end:
            self._parts_until_s = self.host.after_s(PARTING_S)
            self.backend.forget(self)
            self.fence.rest()
            self._part()

    def _part(self) -> None:
        reign, client = self.reign, self._client[0] if self._client is not None else None
        if reign is not None:
            is_heard = reign.is_all_heard
        else:
            is_heard = client is None or client.is_over or not client.up.waiting
        if not is_heard and self._timeline.now_s < (self._parts_until_s or 0.0):
            self._timeline.after(PARTING_LOOK_S, lambda: self.host.receive(self._part))
            return
        self._turn += 1
        self._drop_client()
        if reign is not None:
            reign.conclude(is_heard=is_heard)


def _coordinate(reign: Reign, report: cluster.Event) -> None:
    if not reign.is_over:
        reign.host.coordinate(report)
