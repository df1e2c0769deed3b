"""Orders go out in turn, after everything recorded ahead of them, and never from a leader whose time is up."""

from __future__ import annotations

import anyio
import pytest

from supervisor.core.election import order_gate as machine
from supervisor.core.leader_ledger import Ledger
from supervisor.core.orders import JoinAgain, Order
from supervisor.edges.peers.election.backend_outage import BackendOutage
from supervisor.edges.peers.election.order_delivery import OrderDelivery
from supervisor.ports.rendezvous_backend import BackendUnavailableError, LeadLostError
from tests.settling import settled


class Writing:
    """A backend that keeps a write once the test allows it."""

    def __init__(self) -> None:
        self.kept: list[Ledger] = []
        self.may = anyio.Event()
        self.error: Exception | None = None

    async def write(self, ledger: Ledger) -> None:
        await self.may.wait()
        if self.error is not None:
            raise self.error
        self.kept.append(ledger)


def order(cycle: int) -> Order:
    return JoinAgain(cycle, "a reason")


def gate(*, valid_for_s: float = 60.0) -> tuple[OrderDelivery, list[tuple[str, Order]]]:
    delivered: list[tuple[str, Order]] = []
    return OrderDelivery(
        lambda node, each: delivered.append((node, each)),
        BackendOutage("job"),
        valid_until_s=anyio.current_time() + valid_for_s,
    ), delivered


async def test_an_order_leaves_at_once_and_one_behind_a_record_once_that_is_kept():
    opened, delivered = gate()
    writing = Writing()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(opened.run, writing.write)
        opened.send("a", order(1))
        assert delivered == [("a", order(1))]
        opened.record(Ledger(1))
        opened.record(Ledger(2))
        opened.send("a", order(2))
        opened.send("b", order(2))
        await settled()
        assert len(delivered) == 1
        writing.may.set()
        await opened.until_empty()
        assert delivered[1:] == [("a", order(2)), ("b", order(2))]
        assert writing.kept == [Ledger(2)]
        assert opened.last_recorded == Ledger(2)
        tasks.cancel_scope.cancel()


async def test_a_write_that_may_still_arrive_adds_its_witnesses_and_one_that_is_kept_alone_counts(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(machine, "WRITE_AGAIN_S", 0.01)
    until_s = anyio.current_time() + 60
    opened = OrderDelivery(lambda node, each: None, BackendOutage("job"), valid_until_s=until_s, witnesses=["a"])
    writing = Writing()
    writing.may.set()
    writing.error = BackendUnavailableError("no answer")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(opened.run, writing.write)
        opened.record(Ledger(1, witnesses=("a", "b")))
        await anyio.sleep(0.05)
        assert opened.witnesses == {"a", "b"}
        writing.error = None
        opened.record(Ledger(1, witnesses=("b",)))
        await opened.until_empty()
        assert opened.witnesses == {"b"}
        tasks.cancel_scope.cancel()


async def test_a_leader_whose_time_is_up_orders_nothing_until_its_lead_is_renewed():
    opened, delivered = gate(valid_for_s=-1.0)
    writing = Writing()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(opened.run, writing.write)
        opened.send("a", order(1))
        await settled()
        assert delivered == []
        opened.extend(anyio.current_time() + 60)
        await opened.until_empty()
        assert delivered == [("a", order(1))]
        tasks.cancel_scope.cancel()


async def test_what_waits_for_a_node_that_is_lost_never_comes_to_it():
    """Otherwise a node that comes back would begin a cycle that the others know has ended."""
    opened, delivered = gate()
    writing = Writing()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(opened.run, writing.write)
        opened.record(Ledger(1))
        opened.send("a", order(1))
        opened.send("b", order(1))
        opened.forget("a")
        writing.may.set()
        await opened.until_empty()
        assert delivered == [("b", order(1))]
        tasks.cancel_scope.cancel()


async def test_a_backend_that_fails_is_tried_again_and_one_that_knows_another_leader_ends_it(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(machine, "WRITE_AGAIN_S", 0.01)
    opened, delivered = gate()
    writing = Writing()
    writing.may.set()
    writing.error = BackendUnavailableError("no answer")
    told: list[str] = []

    async def run() -> None:
        try:
            await opened.run(writing.write)
        except LeadLostError as error:
            told.append(str(error))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        opened.record(Ledger(1))
        opened.send("a", order(1))
        await anyio.sleep(0.05)
        writing.error = None
        await opened.until_empty()
        assert delivered == [("a", order(1))]
        writing.error = LeadLostError("another one leads")
        opened.record(Ledger(2))
        opened.send("a", order(2))
    assert told == ["another one leads"]
    assert delivered == [("a", order(1))]


async def test_since_when_nothing_has_left_that_was_to_leave_is_known():
    opened, delivered = gate(valid_for_s=-1.0)
    assert opened.waits_since_s is None
    began_s = anyio.current_time()
    opened.send("a", order(1))
    opened.send("a", order(2))
    assert delivered == []
    assert opened.waits_since_s == pytest.approx(began_s, abs=0.5)
