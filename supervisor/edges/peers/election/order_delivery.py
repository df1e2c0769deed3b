"""How are the orders of one lead delivered, and its ledgers written?"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable

import anyio

from supervisor.core.election import order_gate as machine
from supervisor.core.election.order_gate import Deliver, EndLead, WriteLedger
from supervisor.core.leader_ledger import Ledger
from supervisor.core.orders import Order
from supervisor.edges.peers.election.backend_outage import BackendOutage
from supervisor.ports.rendezvous_backend import BackendRefusedError, BackendUnavailableError

WRITE = "keep what was decided, so that it may be ordered"  # see BackendOutage
WRITE_TIMEOUT_S = 3.0


class ResignedError(Exception):
    """Raised once the leader has given up the lead, and all that it decided before is kept."""


class OrderDelivery:
    """Plays core/election/order_gate.py. Call its methods only in the event loop's thread."""

    def __init__(
        self,
        deliver: Callable[[str, Order], None],
        outage: BackendOutage,
        *,
        valid_until_s: float,
        witnesses: Iterable[str] = (),
    ) -> None:
        """`witnesses`: those of the ledger as it was found."""
        self._deliver = deliver
        self._outage = outage
        self._state = machine.State(valid_until_s, frozenset(witnesses))
        self._to_write: Ledger | None = None
        self._resigns = ""  # why
        self._changed = anyio.Event()

    def send(self, node: str, order: Order) -> None:
        self._take(machine.OrderGiven(node, order))

    def record(self, ledger: Ledger) -> None:
        self._take(machine.LedgerChanged(ledger))

    def write_again(self) -> None:
        """Writes the last ledger again: the backend may have lost it."""
        self._take(machine.LedgerDoubted())

    def forget(self, node: str) -> None:
        """Forgets a lost node. If it comes back, it does not know its earlier orders."""
        self._take(machine.NodeForgotten(node))

    def extend(self, valid_until_s: float) -> None:
        """Extends the lead after a renewal."""
        self._take(machine.LeadRenewed(valid_until_s))

    @property
    def witnesses(self) -> frozenset[str]:
        return self._state.witnesses

    @property
    def last_recorded(self) -> Ledger | None:
        return self._state.recorded

    @property
    def waits_since_s(self) -> float | None:
        """Returns since when an order has been held back; None: none is."""
        return self._state.waits_since_s

    async def until_empty(self) -> None:
        while self._state.waiting:
            await self._changed.wait()

    async def run(self, write: Callable[[Ledger], Coroutine[None, None, None]]) -> None:
        """Runs until cancelled. Retries `write` after BackendUnavailableError; its other errors end the gate.

        Raises ResignedError.
        """
        while True:
            if self._resigns:
                raise ResignedError(self._resigns)
            if self._to_write is not None:
                ledger, self._to_write = self._to_write, None
                self._take(await self._written(ledger, write))
                continue
            deadline_s = machine.next_deadline_s(self._state)
            with anyio.CancelScope(deadline=deadline_s if deadline_s is not None else float("inf")):
                await self._changed.wait()
            self._take(machine.DeadlineReached())

    def _take(self, event: machine.Event) -> None:
        self._state, actions = machine.step(self._state, event, now_s=anyio.current_time())
        for action in actions:
            match action:
                case Deliver(node, order):
                    self._deliver(node, order)
                case WriteLedger(ledger):
                    self._to_write = ledger
                case EndLead(reason):
                    self._resigns = reason
        is_order = isinstance(event, machine.OrderGiven | machine.DeadlineReached)
        if not is_order or self._resigns:  # else nothing waits for this
            changed, self._changed = self._changed, anyio.Event()
            changed.set()

    async def _written(
        self, ledger: Ledger, write: Callable[[Ledger], Coroutine[None, None, None]]
    ) -> machine.LedgerWritten | machine.LedgerNotWritten:
        try:
            with anyio.fail_after(WRITE_TIMEOUT_S):
                await write(ledger)
        except (BackendUnavailableError, BackendRefusedError, TimeoutError) as error:
            self._outage.failed(WRITE, error)
            return machine.LedgerNotWritten()
        self._outage.worked(WRITE)
        return machine.LedgerWritten()
