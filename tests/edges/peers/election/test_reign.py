"""A node leads: it serves until the backend says that another may lead, and lost nodes get nothing of what waits."""

from __future__ import annotations

import anyio
import msgspec

from supervisor.core import orders
from supervisor.core.cluster.messages import NodeLost, Reported
from supervisor.core.ledger import Ledger
from supervisor.core.node.messages import FenceMoved, JobAbandoned, Ordered
from supervisor.edges.peers.cluster_link import PeerAddress
from supervisor.edges.peers.election.own_fence import OwnFence
from supervisor.edges.peers.election.reign import Reign
from supervisor.edges.peers.election.voter import Voter
from supervisor.edges.peers.listening import listen
from tests.edges.peers.election.memory_backend import Memory, MemoryBackend

LIMIT_S = 30.0


async def begin(memory: Memory) -> tuple[Reign, OwnFence, list[Ordered | Reported | FenceMoved | JobAbandoned]]:
    posted: list[Ordered | Reported | FenceMoved | JobAbandoned] = []
    lead = await MemoryBackend(memory, "a").try_to_lead("a", "127.0.0.1:1")
    assert lead is not None
    own_fence = OwnFence("job", "a", posted.append)
    voter = Voter("job", "a", "127.0.0.1", b"a token of the test", 0.5)
    asked_at_s = anyio.current_time()
    return Reign(voter, lead, posted.append, own_fence, lambda _, __: None, asked_at_s=asked_at_s), own_fence, posted


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


async def test_it_gives_up_once_its_workers_have_ended_and_the_backend_does_not_come_back():
    memory = Memory(ttl_s=0.2)
    begun, own_fence, _ = await begin(memory)
    own_fence._until_s = anyio.current_time() - 10  # pyright: ignore[reportPrivateUsage]
    begun._renewed_at_s -= 10  # pyright: ignore[reportPrivateUsage]
    memory.away = {"a"}
    listeners = await listen(PeerAddress("127.0.0.1", 0))
    assert listeners is not None
    with anyio.fail_after(LIMIT_S):
        assert "the backend does not come back" in await begun.run(listeners)
