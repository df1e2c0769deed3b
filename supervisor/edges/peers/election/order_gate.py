"""When may an order of an elected leader go out?

In its turn, only after everything recorded before it is kept, and only while the lead is valid: later another node may
lead, and nodes must never obey two leaders. Orders that wait when the lead is lost never go out.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable

import anyio
import msgspec

from supervisor.core.ledger import Ledger
from supervisor.core.orders import Order
from supervisor.pauses import pause
from supervisor.rendezvous_backend import BackendRefusedError, BackendUnavailableError

WRITE_AGAIN_S = 0.2
WRITE_TIMEOUT_S = 3.0

_log = logging.getLogger("holdfast.cluster")


class _Letter(msgspec.Struct, frozen=True):
    node: str
    order: Order


class OrderGate:
    """The gate of one lead. Call its methods only in the event loop's thread."""

    def __init__(
        self, deliver: Callable[[str, Order], None], *, valid_until_s: float, witnesses: Iterable[str] = ()
    ) -> None:
        """`witnesses`: those of the ledger as it was found."""
        self._deliver = deliver
        self.witnesses = frozenset(witnesses)  # of the ledger as it is kept, or may be: a write may still arrive
        self.valid_until_s = valid_until_s
        self._waiting: deque[_Letter | Ledger] = deque()
        self._waits_since_s = 0.0  # valid if something waits
        self._changed = anyio.Event()
        self._empty = anyio.Event()
        self.last_recorded: Ledger | None = None

    def send(self, node: str, order: Order) -> None:
        if self._waiting or not self._is_valid():
            self._put(_Letter(node, order))
        else:
            self._deliver(node, order)

    def record(self, ledger: Ledger) -> None:
        if self._waiting and isinstance(self._waiting[-1], Ledger):
            self._waiting.pop()  # no order depends on it alone
        self._put(ledger)

    def forget(self, node: str) -> None:
        """Forgets a lost node. If it comes back, it does not know its earlier orders."""
        self._waiting = deque(each for each in self._waiting if not isinstance(each, _Letter) or each.node != node)

    @property
    def waits_for_s(self) -> float:
        """Returns how long waiting orders have been held back."""
        return anyio.current_time() - self._waits_since_s if self._waiting else 0.0

    def extend(self, valid_until_s: float) -> None:
        """Extends the lead after a renewal."""
        self.valid_until_s = valid_until_s
        self._changed.set()

    async def until_empty(self) -> None:
        while self._waiting:
            self._empty = anyio.Event()
            await self._empty.wait()

    async def run(self, write: Callable[[Ledger], Coroutine[None, None, None]]) -> None:
        """Runs until cancelled. Retries `write` after BackendUnavailableError; its other errors end the gate."""
        while True:
            while self._waiting:
                await self._let_out(self._waiting[0], write)
            self._empty.set()
            self._changed = anyio.Event()
            await self._changed.wait()

    async def _let_out(self, first: _Letter | Ledger, write: Callable[[Ledger], Coroutine[None, None, None]]) -> None:
        if isinstance(first, Ledger):
            if await self._written(first, write):
                self.last_recorded = first
                self._waiting.popleft()
            return
        if not self._is_valid():
            self._changed = anyio.Event()
            await self._changed.wait()
            return
        self._waiting.popleft()
        self._waits_since_s = anyio.current_time()
        self._deliver(first.node, first.order)

    async def _written(self, ledger: Ledger, write: Callable[[Ledger], Coroutine[None, None, None]]) -> bool:
        """Writes the ledger. Returns False if that failed, or if a newer one must be written next."""
        self.witnesses |= frozenset(ledger.witnesses)
        try:
            with anyio.fail_after(WRITE_TIMEOUT_S):
                await write(ledger)
            self.witnesses = frozenset(ledger.witnesses)
        except (BackendUnavailableError, BackendRefusedError, TimeoutError) as error:
            _log.warning("orders wait: what was decided can't be kept: %s", error or "no answer in time")
            await pause(WRITE_AGAIN_S, why="nothing tells when the backend works again")
            return False
        return self._waiting[0] is ledger

    def _is_valid(self) -> bool:
        return anyio.current_time() < self.valid_until_s

    def _put(self, item: _Letter | Ledger) -> None:
        if not self._waiting:
            self._waits_since_s = anyio.current_time()
        self._waiting.append(item)
        self._changed.set()
