"""What may a simulated elected leader order, when does it answer, and for how long does it lead?

It decides as edges/peers/election/reign.py and order_gate.py: an order goes out in its turn, once everything recorded
ahead of it is kept, and only while the leader's time is not up; core/fence.py says when a leader answers. Renewals are
played only while something is wrong, because otherwise each would find that all is well.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from supervisor.core import fence
from supervisor.core.ledger import Ledger, after_all_know
from supervisor.core.node import messages
from supervisor.edges.peers.election.order_gate import WRITE_AGAIN_S, WRITE_TIMEOUT_S
from supervisor.edges.peers.election.reign import RENEW_AGAIN_S, RENEW_TIMEOUT, RENEWALS
from tests.sim.backend import LEASE_S, Unavailable

if TYPE_CHECKING:
    from tests.sim.host import Host
    from tests.sim.network import Link
    from tests.sim.voting import Voter

RENEW_S = LEASE_S / RENEWALS


class Reign:
    """One lead. Call `begin` once it is won."""

    def __init__(self, voter: Voter) -> None:
        self.host: Host = voter.host
        self.term = 0
        self.is_over = False
        self.nodes: dict[str, Link] = {}  # by name
        self._recorded = Ledger()
        self._voter = voter
        self._world = voter.host.world
        self._timeline = self._world.timeline
        self._backend = voter.backend
        self._waiting: deque[tuple[str, messages.Ordered] | Ledger] = deque()
        self._waits_since_s = 0.0
        self._is_writing = False
        self._is_disturbed = True
        self._renewed_s = 0.0  # on the leader's own clock, like the other moments that core/fence.py compares
        self._valid_until_s = 0.0
        self._witnesses: frozenset[str] = frozenset()
        self._knocked_s: dict[str, float] = {}  # when nodes that were not admitted last came

    def begin(self, term: int, ledger: Ledger, *, asked_at_s: float) -> None:
        self.term, self._renewed_s = term, self.host.local_s(asked_at_s)
        self._valid_until_s = self._renewed_s + LEASE_S
        self._recorded, self._witnesses = ledger, frozenset(ledger.witnesses)
        self._keep_soon(0.0)

    @property
    def is_served(self) -> bool:
        """Returns whether nodes can follow it."""
        return bool(self.term) and not self.is_over

    @property
    def is_well(self) -> bool:
        return not self._is_disturbed

    def take_in(self, name: str, link: Link) -> bool | None:
        """Handles a node's hello. Returns False if another process of that name is connected; None: not now."""
        known = self.nodes.get(name)
        if name == self.host.name or (known is not None and known.is_connected):
            return False
        self._knocked_s[name] = self._now_s()
        if not self.may_answer():
            return None
        self._knocked_s.pop(name)
        if known is not None:
            known.replace()
        self.nodes[name] = link
        return True

    def lose_node(self, lost: Host) -> None:
        """Forgets a lost node. If it comes back, it does not know its earlier orders."""
        self._waiting = deque(each for each in self._waiting if isinstance(each, Ledger) or each[0] != lost.name)
        self.host.lose_node(lost)

    # --- answers

    def may_answer(self) -> bool:
        return not self._is_disturbed or self._now_s() < self._answers_until_s()

    def _answers_until_s(self) -> float:
        heard = (self._now_s() if name == self.host.name else self._heard_s(name) for name in self._witnesses)
        return fence.answers_until_s(self._renewed_s, LEASE_S, heard)

    def _heard_s(self, name: str) -> float | None:
        link = self.nodes.get(name)
        heard_s = self.host.local_s(link.heard_s) if link is not None and not link.is_given_up else None
        moments = (heard_s, self._knocked_s.get(name))
        return max((each for each in moments if each is not None), default=None)

    def _now_s(self) -> float:
        return self.host.local_s(self._timeline.now_s)

    # --- orders

    def send(self, name: str, ordered: messages.Ordered) -> None:
        if self._waiting or not self._is_valid():
            self._waits_since_s = self._waits_since_s if self._waiting else self._now_s()
            self._waiting.append((name, ordered))
        else:
            self._deliver(name, ordered)

    def record(self, ledger: Ledger) -> None:
        if self._waiting and isinstance(self._waiting[-1], Ledger):
            self._waiting.pop()
        self._waits_since_s = self._waits_since_s if self._waiting else self._now_s()
        self._waiting.append(ledger)
        self._let_out()

    @property
    def is_all_heard(self) -> bool:
        return not self._waiting and not any(link.down.waiting for link in self.nodes.values() if not link.is_over)

    def _is_valid(self) -> bool:
        return not self._is_disturbed or self._now_s() < self._valid_until_s

    def _let_out(self) -> None:
        while self._waiting and not self.is_over and not self._is_writing:
            first = self._waiting[0]
            if isinstance(first, Ledger):
                self._write(first)
            elif self._is_valid():
                self._waiting.popleft()
                self._deliver(*first)
            else:
                return

    def _write(self, ledger: Ledger) -> None:
        self._is_writing = True
        self._witnesses |= frozenset(ledger.witnesses)

        def written(is_kept: bool | Unavailable) -> None:
            self._is_writing = False
            if self.is_over:
                return
            if isinstance(is_kept, Unavailable):
                self._is_writing = True
                self._timeline.after(WRITE_AGAIN_S, lambda: self.host.receive(again))
            elif not is_kept:
                self.end("the backend knows another leader, or none")
            else:
                self._witnesses = frozenset(ledger.witnesses)
                if self._waiting[0] is ledger:
                    self._recorded = ledger
                    self._waiting.popleft()
                self._let_out()

        def again() -> None:
            self._is_writing = False
            self._let_out()

        self._backend.ask(self.host, lambda: self._backend.write(self.term, ledger), written, timeout_s=WRITE_TIMEOUT_S)

    def _deliver(self, name: str, ordered: messages.Ordered) -> None:
        self._world.note_order(self.host, self.term, name, ordered.order)
        if name == self.host.name:
            self._timeline.after(0.0, lambda: self.host.take(ordered))
        elif (link := self.nodes.get(name)) is not None:
            link.send(link.down, lambda: link.node.take(ordered))

    # --- its time

    def disturb(self) -> None:
        """Plays renewals and answers from now on: something is wrong with the leader or the backend."""
        if self._is_disturbed or self.is_over:
            return
        self._is_disturbed = True
        ago_s = self._world.random.uniform(0.0, RENEW_S)
        self._renewed_s = self.host.local_s(self._timeline.now_s - ago_s)
        self._valid_until_s = self._renewed_s + LEASE_S
        self._voter.fence.doubt(self._timeline.now_s - ago_s)
        self._backend.hold(self.term, LEASE_S - ago_s)
        for link in list(self.nodes.values()):
            link.disturb()
        self._keep_soon(RENEW_S - ago_s)

    def _keep_soon(self, delay_s: float) -> None:
        self._timeline.at(self.host.after_s(delay_s), lambda: self.host.receive(self._keep))

    def _keep(self) -> None:
        if self.is_over:
            return
        asked_at_s = self._now_s()

        def answered(is_kept: bool | Unavailable) -> None:
            if self.is_over:
                return
            if is_kept is False:
                self.end("its lease has ended")
                return
            if is_kept is True:
                self._renewed_s, self._valid_until_s = asked_at_s, asked_at_s + LEASE_S
                self._let_out()
            self._voter.fence.move(self.host.moment_s(min(self._now_s(), self._answers_until_s())))
            timeout_s = self.host.world.setup.rules.rendezvous.join_timeout_s
            if self._voter.fence.is_passed_for_s > timeout_s:
                self.end("its workers have ended, and the backend does not come back")
            elif self._waiting and self._now_s() - self._waits_since_s > timeout_s:
                self.end("what it has decided can't be ordered, and the backend does not come back")
            elif is_kept is True and self._backend.answers(self.host):
                self._rest()
            else:
                self._keep_soon(RENEW_S if is_kept is True else RENEW_AGAIN_S)

        def renew() -> bool:
            return self._backend.renew(self.term)

        self._backend.ask(self.host, renew, answered, timeout_s=LEASE_S * RENEW_TIMEOUT)

    def _rest(self) -> None:
        """Stops playing them: nothing is wrong any more."""
        self._is_disturbed = False
        self._voter.fence.rest()
        self._backend.hold(self.term, None)

    def conclude(self, *, is_heard: bool) -> None:
        """Ends the lead. A node that did not hear the verdict finds it in the ledger."""

        def resign(_: bool | Unavailable) -> None:
            self.end("the job has ended")
            self._backend.ask(self.host, lambda: self._backend.resign(self.term), lambda _: None)

        if self._recorded.verdict is not None:
            last = after_all_know(self._recorded, self.term) if is_heard else self._recorded
            write = self._backend.write
            self._backend.ask(self.host, lambda: write(self.term, last, is_last=True), resign, timeout_s=LEASE_S)
        else:
            resign(False)

    def end(self, why: str) -> None:
        """Closes its server; waiting orders are never sent."""
        if not self.is_over:
            self.is_over = True
            self._waiting.clear()
            for link in self.nodes.values():
                link.disturb()
            self._voter.lose_lead(self, why)
