"""How is a simulated elected leader played: its orders, its answers, and the time for which it leads?

The machines of core/election decide. Renewals are played only while something is wrong, because otherwise each would
find that all is well.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from supervisor.core.cluster import cluster_messages as cluster
from supervisor.core.election import lead_renewal, leader_heartbeats, order_gate
from supervisor.core.election.lead_renewal import RENEWALS
from supervisor.core.election.leader_heartbeats import LeaderHeartbeat
from supervisor.core.leader_ledger import Ledger, after_all_know
from supervisor.core.node import node_messages
from supervisor.core.orders import Order
from supervisor.edges.peers.election.order_delivery import WRITE_TIMEOUT_S
from tests.sim.backend import LEASE_S, Unavailable
from tests.sim.serving import Server
from tests.sim.setup import JOB

if TYPE_CHECKING:
    from tests.sim.host import Host
    from tests.sim.voting import Voter

RENEW_S = LEASE_S / RENEWALS


class LeaderTerm:
    """One lead. Call `begin` once it is won."""

    def __init__(self, voter: Voter) -> None:
        self.host: Host = voter.host
        self.term = 0
        self.is_over = False
        self.server = Server(
            self.host,
            on_report=self._hear,
            on_meeting=lambda node: self._world.note_meeting(node, self.term),
            may_answer=self.may_answer,
            is_well=lambda: not self._is_disturbed,
            on_disturbed=self._doubt_confirmations,
            on_confirmed=self._note_confirmed,
        )
        self._heartbeats = leader_heartbeats.State(self.host.name)
        self._found = Ledger()
        self._voter = voter
        self._world = voter.host.world
        self._timeline = self._world.timeline
        self._backend = voter.backend
        self._gate = order_gate.State(0.0)
        self._gate_rings_s = math.inf  # on the leader's own clock, like all moments of the machines
        self._renewal = lead_renewal.initial_state(LEASE_S, asked_at_s=0.0, now_s=0.0)
        self._is_disturbed = True

    def begin(self, term: int, ledger: Ledger, witnesses: tuple[str, ...], *, asked_at_s: float) -> None:
        self.term, self._found = term, ledger
        asked_at_s = self.host.local_s(asked_at_s)
        self._gate = order_gate.State(asked_at_s + LEASE_S, frozenset(witnesses))
        self._renewal = lead_renewal.initial_state(LEASE_S, asked_at_s=asked_at_s, now_s=self._now_s())
        self.server.begin()
        self._keep_soon()

    def _hear(self, report: cluster.Event) -> None:
        if isinstance(report, cluster.NodeLost):
            self._pass(order_gate.NodeForgotten(report.node))
        self.host.receive(lambda: self.coordinate(report))

    def coordinate(self, report: cluster.Event) -> None:
        if not self.is_over:
            self.host.coordinate(report)

    # --- answers

    def may_answer(self) -> bool:
        return not self._is_disturbed or self._now_s() < lead_renewal.answers_until_s(self._renewal, self._heard_at_s())

    def _heard_at_s(self) -> list[float | None]:
        server, own = self.server, self.host.name
        return [self._now_s() if name == own else server.heard_at_s(name) for name in self._gate.witnesses]

    def _now_s(self) -> float:
        return self.host.now_s()

    # --- its heartbeats

    def _beat(self) -> None:
        for name, heartbeat in leader_heartbeats.heartbeats(self._heartbeats, self._now_s()).items():
            self.server.beat(name, heartbeat)

    def _note_confirmed(self, name: str, heartbeat: LeaderHeartbeat) -> None:
        self._heartbeats = leader_heartbeats.confirmed(self._heartbeats, name, heartbeat)

    def _doubt_confirmations(self, name: str) -> None:
        if name in self._heartbeats.confirmed_at_s:
            self.disturb()

    @property
    def _is_confirmed(self) -> bool:
        """Returns whether the nodes confirm its heartbeats, and nothing hinders the next ones."""
        clients = [self.server.client_of(name) for name in self._heartbeats.confirmed_at_s]
        since_s = self._now_s() - 2 * RENEW_S
        return all(each is not None and each.is_line_open for each in clients) and all(
            at_s is not None and at_s > since_s for at_s in self._heartbeats.confirmed_at_s.values()
        )

    def _confirm_all(self, sent_at_s: float) -> None:
        """Notes what was not played: until now, all nodes have confirmed its heartbeats."""
        heartbeat = LeaderHeartbeat(self.host.local_s(sent_at_s), self._heartbeats.cycle, counts=True)
        for name in self._heartbeats.confirmed_at_s:
            self._note_confirmed(name, heartbeat)
            client = self.server.client_of(name)
            if client is not None and client.line is not None:
                heard_s = min(self._timeline.now_s, sent_at_s + client.line.takes_s()[1])
                client.heard_leader = leader_heartbeats.heard(heartbeat, client.node.local_s(heard_s))

    # --- orders

    def send(self, name: str, ordered: node_messages.Ordered) -> None:
        self._pass(order_gate.OrderGiven(name, ordered.order))

    def record(self, ledger: Ledger) -> None:
        self._pass(order_gate.LedgerChanged(ledger))

    def write_again(self) -> None:
        self._pass(order_gate.LedgerDoubted())

    @property
    def ledger(self) -> Ledger:
        """Returns the ledger as the backend has it, as far as this leader knows."""
        return self._gate.recorded or self._found

    @property
    def order_waits_s(self) -> float:
        """Returns for how long an order has waited until the ledger is written; 0.0: none waits."""
        since_s = self._gate.waits_since_s
        return self._now_s() - since_s if since_s is not None else 0.0

    @property
    def is_all_heard(self) -> bool:
        return not self._gate.waiting and not self.server.has_unheard

    def _pass(self, event: order_gate.Event) -> None:
        if self.is_over:
            return
        self._gate, actions = order_gate.step(self._gate, event, now_s=self._now_s())
        for action in actions:
            match action:
                case order_gate.Deliver(node, order):
                    self._deliver(node, order)
                case order_gate.WriteLedger(ledger):
                    self._write(ledger)
                case order_gate.EndLead(reason):
                    self._resign(reason)
        self._plan_gate()

    def _plan_gate(self) -> None:
        at_s = order_gate.next_deadline_s(self._gate)
        if at_s is None or at_s >= self._gate_rings_s:
            return

        def ring() -> None:
            if self._gate_rings_s == at_s:
                self._gate_rings_s = math.inf
                self._pass(order_gate.DeadlineReached())

        self._gate_rings_s = at_s
        self.host.ring_at(at_s, ring)

    def _write(self, ledger: Ledger) -> None:
        def written(is_kept: bool | Unavailable) -> None:
            if is_kept is False:
                self.end("the backend knows another leader, or none")
                return
            if is_kept is True and not self.is_over:
                heartbeats = leader_heartbeats.with_ledger(self._heartbeats, ledger)
                if heartbeats.confirmed_at_s and heartbeats.cycle != self._heartbeats.cycle:
                    self.disturb()  # Those of the new cycle are to be confirmed first.
                self._heartbeats = heartbeats
                nobody = lead_renewal.nobody_else_leads(
                    self._renewal,
                    now_s=self._now_s(),
                    heard_at_s=self._heard_at_s(),
                    confirmed_at_s=leader_heartbeats.last_confirmed_s(self._heartbeats),
                )
                self._voter.vouch(nobody.known_at_s)
            self._pass(order_gate.LedgerWritten() if is_kept is True else order_gate.LedgerNotWritten())

        self._backend.ask(self.host, lambda: self._backend.write(self.term, ledger), written, timeout_s=WRITE_TIMEOUT_S)

    def _deliver(self, name: str, order: Order) -> None:
        self._world.note_order(self.host, self.term, name, order)
        ordered = node_messages.Ordered(JOB, order)
        if name == self.host.name:
            self._timeline.after(0.0, lambda: self.host.take(ordered))
        else:
            self.server.send(name, ordered)

    # --- its time

    def disturb(self) -> None:
        """Plays renewals and answers from now on: something is wrong with the leader or the backend."""
        if self._is_disturbed or self.is_over:
            return
        self._is_disturbed = True
        ago_s = self._world.random.uniform(0.0, RENEW_S)
        renewed_s = self.host.local_s(self._timeline.now_s - ago_s)
        self._confirm_all(self._timeline.now_s - ago_s)
        self._renewal = lead_renewal.State(LEASE_S, renewed_s, asks_at_s=self._now_s() + RENEW_S - ago_s)
        self._pass(order_gate.LeadRenewed(renewed_s + LEASE_S))
        self._voter.doubt(renewed_s)
        self._backend.hold(self.term, LEASE_S - ago_s)
        self.server.disturb()
        self._keep_soon()

    def _keep_soon(self) -> None:
        at_s = lead_renewal.next_deadline_s(self._renewal)
        assert at_s is not None, "each question has been answered"
        self.host.ring_at(at_s, self._keep)

    def _keep(self) -> None:
        if self.is_over:
            return
        for action in self._renew_with(lead_renewal.DeadlineReached()):
            if isinstance(action, lead_renewal.Renew):
                self._beat()
                self._backend.ask(
                    self.host, lambda: self._backend.renew(self.term), self._answered, timeout_s=action.timeout_s
                )
                return
        self._keep_soon()  # woken a moment early

    def _answered(self, is_kept: bool | Unavailable) -> None:
        if self.is_over:
            return
        if is_kept is False:
            self.end("its lease has ended")
            return
        for action in self._renew_with(lead_renewal.Renewed() if is_kept is True else lead_renewal.NotRenewed()):
            match action:
                case lead_renewal.ExtendLead(valid_until_s):
                    self._pass(order_gate.LeadRenewed(valid_until_s))
                case lead_renewal.NobodyElseLeads(known_at_s):
                    self._voter.vouch(known_at_s)
                case lead_renewal.EndLead(reason):
                    self.end(reason)
                    return
                case lead_renewal.Renew():
                    pass
        if is_kept is True and self._is_confirmed and self._backend.is_well(self.host, self.term):
            self._rest()
        else:
            self._keep_soon()

    def _renew_with(self, event: lead_renewal.Event) -> tuple[lead_renewal.Action, ...]:
        self._renewal, actions = lead_renewal.step(
            self._renewal,
            event,
            now_s=self._now_s(),
            heard_at_s=self._heard_at_s(),
            confirmed_at_s=leader_heartbeats.last_confirmed_s(self._heartbeats),
            fence_until_s=self._voter.fence_until_s,
            waits_since_s=self._gate.waits_since_s,
            join_timeout_s=self._world.setup.rules.rendezvous.join_timeout_s,
        )
        return actions

    def _rest(self) -> None:
        """Stops playing them: nothing is wrong any more."""
        self._is_disturbed = False
        self._pass(order_gate.LeadRenewed(math.inf))
        self._voter.rest()
        self._backend.hold(self.term, None)

    def conclude(self, *, is_heard: bool) -> None:
        """Ends the lead. A node that did not hear the verdict finds it in the ledger."""

        def resign(_: bool | Unavailable) -> None:
            self.end("the job has ended")
            self._backend.ask(self.host, lambda: self._backend.resign(self.term), lambda _: None)

        recorded = self.ledger
        if recorded.verdict is not None:
            last = after_all_know(recorded, self.term) if is_heard else recorded
            write = self._backend.write
            self._backend.ask(self.host, lambda: write(self.term, last, is_last=True), resign, timeout_s=LEASE_S)
        else:
            resign(False)

    def _resign(self, why: str) -> None:
        self.end(why, has_resigned=True)
        self._backend.ask(self.host, lambda: self._backend.resign(self.term), lambda _: None)

    def end(self, why: str, *, has_resigned: bool = False) -> None:
        """Closes its server; waiting orders are never sent."""
        if not self.is_over:
            self.is_over = True
            self._gate.waiting.clear()
            self.server.close("the leader ends")
            self._voter.lose_lead(self, why, has_resigned=has_resigned)
