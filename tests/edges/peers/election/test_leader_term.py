"""A node leads: it serves until the backend says that another may lead, and lost nodes get no waiting orders."""

from __future__ import annotations

from pathlib import Path

import anyio
import msgspec
import pytest

from supervisor.core import orders
from supervisor.core.cluster.cluster_messages import NodeLost, Reported
from supervisor.core.election import leader_heartbeats
from supervisor.core.election.ledger_of_this_run import of_this_run
from supervisor.core.facts import JobState, Verdict
from supervisor.core.fence_times import FENCE_S, UNCONFIRMED_S
from supervisor.core.leader_ledger import Ledger, after_all_know
from supervisor.core.node.node_messages import FenceMoved, JobAbandoned, Ordered
from supervisor.edges.peers.election import etcd_backend
from supervisor.edges.peers.election.backend_outage import BackendOutage
from supervisor.edges.peers.election.leader_term import LeaderTerm, read_ledger
from supervisor.edges.peers.election.voter import Voter
from supervisor.edges.peers.transport.cluster_link import PeerAddress
from supervisor.edges.peers.transport.leader_listener import listen
from supervisor.ports.rendezvous_backend import Lead, Place
from tests.edges.peers.election.memory_backend import Memory, MemoryBackend
from tests.etcd_server import etcd

LIMIT_S = 30.0


ENDED = Ledger(4, 4, 1, verdict=Verdict(JobState.SUCCEEDED, 0, "all ranks exited with code 0"))


class Fence:
    """The fence of the leader's own node."""

    def __init__(self) -> None:
        self.until_s = anyio.current_time() + FENCE_S

    def vouch(self, known_at_s: float) -> None:
        self.until_s = max(self.until_s, known_at_s + FENCE_S)


async def begin(memory: Memory) -> tuple[LeaderTerm, Fence, list[Ordered | Reported | FenceMoved | JobAbandoned]]:
    lead = await MemoryBackend(memory, "a").try_to_lead("a", "127.0.0.1:1")
    assert lead is not None
    return of(lead)


def of(lead: Lead, met_term: int = 0) -> tuple[LeaderTerm, Fence, list[Ordered | Reported | FenceMoved | JobAbandoned]]:
    posted: list[Ordered | Reported | FenceMoved | JobAbandoned] = []
    own_fence = Fence()
    voter = Voter("job", "a", "127.0.0.1", 0.5)
    found, _ = of_this_run(read_ledger(lead.state), term=lead.term, met_term=met_term)
    leader_term = LeaderTerm(
        voter, lead, posted.append, own_fence.vouch, lambda: own_fence.until_s, lambda _, __: None,
        on_parted=lambda _, __: None, outage=BackendOutage("job"), asked_at_s=anyio.current_time(), found=found,
        witnesses=found.witnesses,
    )  # fmt: skip
    return leader_term, own_fence, posted


async def write_down(leader_term: LeaderTerm, ledger: Ledger) -> None:
    leader_term.gate.record(ledger)
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(leader_term.gate.run, leader_term._write)  # pyright: ignore[reportPrivateUsage]
            await leader_term.gate.until_empty()
            tasks.cancel_scope.cancel()


async def test_it_ends_once_another_may_lead():
    memory = Memory(ttl_s=0.2)
    begun, own_fence, _ = await begin(memory)
    listeners = await listen(PeerAddress("127.0.0.1", 0))
    assert listeners is not None
    before_s = own_fence.until_s
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            await tasks.start(begun.run, listeners)
            while own_fence.until_s <= before_s + 0.2:  # noqa: ASYNC110 - nothing tells
                await anyio.sleep(0.02)
            memory.elect(None)
    await begun.end()
    assert memory.leader is None


async def test_what_the_ledger_names_counts_before_anything_is_written_and_what_waits_for_a_lost_node_is_dropped():
    memory = Memory()
    memory.state = msgspec.json.encode(Ledger(3, 3, 1, witnesses=("b",)))
    begun, _, posted = await begin(memory)
    assert begun.gate.witnesses == {"b"}
    begun.gate.record(Ledger(4, 4, 1))
    begun.gate.send("a", orders.JoinAgain(5, "a reason"))
    lost = Reported("job", NodeLost("a", "it is gone"))
    begun._take(lost)  # pyright: ignore[reportPrivateUsage] - as its server does
    assert posted == [lost]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(begun.gate.run, begun._write)  # pyright: ignore[reportPrivateUsage]
        await begun.gate.until_empty()
        tasks.cancel_scope.cancel()
    assert posted == [lost]
    assert msgspec.json.decode(memory.state, type=Ledger) == Ledger(4, 4, 1)


async def test_without_the_nodes_that_do_not_confirm_the_fence_moves_before_the_orders_of_a_cycle_go_out():
    begun, own_fence, _ = await begin(Memory())
    now_s = own_fence.until_s = anyio.current_time()
    fence_at_orders_s: list[float] = []

    def note_fence(_: object) -> None:
        fence_at_orders_s.append(own_fence.until_s)

    begun._post = note_fence  # pyright: ignore[reportPrivateUsage]
    unheard = leader_heartbeats.State("a", 4, {"b": now_s - 10.0})
    begun._heartbeats = unheard  # pyright: ignore[reportPrivateUsage] - node b has confirmed, and does so no more
    for cycle, parts in ((4, ("a", "b")), (5, ("a",))):
        begun.gate.record(Ledger(cycle, cycle, 1, parts=parts, term=1, leader="a"))
        begun.gate.send("a", orders.JoinAgain(cycle + 1, "a reason"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(begun.gate.run, begun._write)  # pyright: ignore[reportPrivateUsage]
            await begun.gate.until_empty()
            tasks.cancel_scope.cancel()
    unconfirmed_s, moved_s = fence_at_orders_s
    assert moved_s - unconfirmed_s == pytest.approx(FENCE_S - UNCONFIRMED_S)


async def test_it_gives_up_once_its_workers_have_ended_and_the_backend_does_not_come_back():
    memory = Memory(ttl_s=0.2)
    begun, own_fence, _ = await begin(memory)
    renewal = begun._renewal  # pyright: ignore[reportPrivateUsage]
    own_fence.until_s = long_ago_s = anyio.current_time() - 10
    begun._renewal = msgspec.structs.replace(renewal, renewed_at_s=long_ago_s)  # pyright: ignore[reportPrivateUsage]
    memory.away = {"a"}
    listeners = await listen(PeerAddress("127.0.0.1", 0))
    assert listeners is not None
    with anyio.fail_after(LIMIT_S):
        assert "the backend does not come back" in await begun.run(listeners)


async def test_a_verdict_is_kept_without_a_limit_until_its_leader_leaves_it():
    memory = Memory()
    begun, _, _ = await begin(memory)
    await write_down(begun, ENDED)
    assert not memory.may_vanish
    await begun.conclude()
    assert memory.may_vanish
    assert msgspec.json.decode(memory.state, type=Ledger) == after_all_know(ENDED, 1)
    assert memory.leader is None


async def test_a_verdict_that_was_not_told_to_all_is_kept_for_a_while_as_such():
    memory = Memory()
    begun, _, _ = await begin(memory)
    await write_down(begun, ENDED)
    await begun.end()
    assert memory.may_vanish
    assert msgspec.json.decode(memory.state, type=Ledger) == ENDED
    assert memory.leader is None


async def test_a_leader_that_finds_the_verdict_and_has_nothing_to_record_says_that_it_was_told():
    memory = Memory()
    memory.state = msgspec.json.encode(ENDED)
    begun, _, _ = await begin(memory)
    await begun.conclude()
    assert msgspec.json.decode(memory.state, type=Ledger) == after_all_know(ENDED, 1)


async def test_a_leader_of_a_job_that_goes_on_leaves_the_ledger_as_it_is():
    memory = Memory()
    begun, _, _ = await begin(memory)
    await write_down(begun, Ledger(4, 4, 1))
    await begun.conclude()
    await begun.end()
    assert (memory.may_vanish, len(memory.written)) == (False, 1)


async def test_etcd_revokes_all_leases_before_or_after_a_verdict_was_told_and_the_next_leader_finds_it(tmp_path: Path):
    with etcd(tmp_path / "etcd") as server:
        server.ctl("endpoint", "health")
        backend = etcd_backend.open_backend(Place("job", "127.0.0.1", server.port, {}, ttl_s=5.0))

        def revoke_all() -> None:
            for lease in server.ctl("lease", "list").split()[3:]:
                server.ctl("lease", "revoke", lease)

        async def elected() -> LeaderTerm:
            lead = await backend.try_to_lead("a", "127.0.0.1:1")
            assert lead is not None
            return of(lead, met_term=1)[0]

        first = await elected()
        await write_down(first, ENDED)
        revoke_all()
        second = await elected()
        assert second.found == ENDED
        await second.conclude()
        revoke_all()
        third = await elected()
        assert third.found == after_all_know(ENDED, second.lead.term)
        await backend.close()
