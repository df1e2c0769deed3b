"""What happens to an agent whose leader is lost: do its workers continue or stop, and does it find the next leader?"""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import anyio
import pytest

from supervisor.core.elastic.elastic_messages import (
    AgentClosed,
    BeginRound,
    ElasticRules,
    Refusal,
    RefuseAgent,
    RoundStoreServed,
    ServeRoundStore,
)
from supervisor.core.election import leader_loss_detection
from supervisor.edges.peers.elastic.elastic_peers import ElasticFollower, ElasticMeeting
from supervisor.edges.peers.transport.cluster_link import PeerAddress
from supervisor.programs.torchrun.leader_connection import ForAgent, LeaderConnection, Unreachable
from tests.settling import settled

LIMIT_S = 30.0
FIXED = ElasticRules(2, 2, LIMIT_S, 0.0)
ELASTIC = ElasticRules(1, 2, LIMIT_S, 0.0)


class Side:
    """An agent, and what it received."""

    def __init__(self, node: str, port: int, rules: ElasticRules, leads: bool | None) -> None:
        self.node = node
        self.touch = LeaderConnection(
            ElasticMeeting("job", node, PeerAddress("127.0.0.1", port), leads), rules, self._take
        )
        self.orders: list[ForAgent] = []
        self._changed = anyio.Event()

    def want(self) -> None:
        self.orders.clear()
        self.touch.want(1, -1)

    def _take(self, request: int, meeting: int, order: ForAgent) -> None:
        assert request == 1
        if isinstance(order, ServeRoundStore):
            self.touch.say(RoundStoreServed(self.node, order.round, "10.0.0.1", 4000), meeting=meeting)
        self.orders.append(order)
        self._changed.set()

    async def order(self, kind: type) -> ForAgent:
        with anyio.fail_after(LIMIT_S):
            while True:
                found = [each for each in self.orders if isinstance(each, kind)]
                if found:
                    return found[0]
                self._changed = anyio.Event()
                await self._changed.wait()


async def until(condition: Callable[[], object]) -> None:
    with anyio.fail_after(LIMIT_S):
        while not condition():
            await settled()
            await anyio.sleep(0.005)


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def agent(node: str, port: int, rules: ElasticRules, *, leads: bool | None = None) -> AsyncGenerator[Side]:
    side = Side(node, port, rules, leads)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(side.touch.run)
        side.want()
        yield side
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("stays", [True, False])
async def test_workers_of_a_fixed_number_of_nodes_stop_without_a_leader_as_long_as_there_is_a_spare(
    port: int, monkeypatch: pytest.MonkeyPatch, stays: bool
):
    async with agent("b", port, FIXED, leads=False) as follower:
        async with agent("a", port, FIXED) as leader:
            await leader.order(BeginRound)
            await follower.order(BeginRound)
            async with agent("c", port, FIXED, leads=False) as spare:
                await until(lambda: follower.touch._has_spares)  # pyright: ignore[reportPrivateUsage]
                if not stays:
                    await spare.touch.part("it is not needed")
                    await until(lambda: not follower.touch._has_spares)  # pyright: ignore[reportPrivateUsage]
            assert follower.touch.waiting == 0
            monkeypatch.setattr(leader_loss_detection, "FENCE_S", 0.3)
        await until(lambda: follower.touch._is_loss_told)  # pyright: ignore[reportPrivateUsage]
        assert (follower.touch.waiting > 0) is stays


@pytest.mark.parametrize(("rules", "stops"), [(FIXED, False), (ELASTIC, True)])
async def test_without_a_leader_workers_stop_only_where_others_could_go_on(
    port: int, monkeypatch: pytest.MonkeyPatch, rules: ElasticRules, stops: bool
):
    monkeypatch.setattr(leader_loss_detection, "FENCE_S", 0.3)
    async with agent("b", port, rules, leads=False) as follower:
        async with agent("a", port, FIXED if rules is FIXED else ElasticRules(1, 2, LIMIT_S, LIMIT_S)) as leader:
            if rules is ELASTIC:
                follower.touch._rules = ElasticRules(1, 2, LIMIT_S, LIMIT_S)  # pyright: ignore[reportPrivateUsage]
                follower.want()
            await leader.order(BeginRound)
            await follower.order(BeginRound)
            assert follower.touch.waiting == 0
        await until(lambda: follower.touch._is_loss_told)  # pyright: ignore[reportPrivateUsage]
        assert (follower.touch.waiting > 0) is stops
        async with agent("c", port, follower.touch._rules) as next_leader:  # pyright: ignore[reportPrivateUsage]
            follower.want()
            assert isinstance(await follower.order(BeginRound), BeginRound)
            await next_leader.order(BeginRound)
            assert follower.touch.waiting == 0


async def test_a_node_that_its_living_leader_has_given_up_restarts_its_workers(port: int):
    """As after a cut of some seconds: the others have been told that it is lost, and wait for it."""
    async with agent("a", port, FIXED) as leader, agent("b", port, FIXED, leads=False) as follower:
        await leader.order(BeginRound)
        await follower.order(BeginRound)
        peers = follower.touch._peers  # pyright: ignore[reportPrivateUsage]
        assert isinstance(peers, ElasticFollower)
        peers._client._on_lost("nothing was heard")  # pyright: ignore[reportPrivateUsage]
        await until(lambda: follower.touch.waiting)
        await until(lambda: leader.touch.waiting)
        for side in (leader, follower):
            side.want()
        for side in (leader, follower):
            await side.order(BeginRound)
            assert side.touch.waiting == 0


async def test_a_wish_without_any_leader_ends_with_its_time(port: int):
    async with agent("a", port, ElasticRules(2, 2, 0.1, 0.0), leads=False) as side:
        order = await side.order(Unreachable)
        assert order == Unreachable(f"the leader at 127.0.0.1:{port} is lost: connection refused")


async def test_a_refused_agent_asks_again_when_it_has_a_new_wish(port: int):
    async with agent("a", port, FIXED), agent("a", port, FIXED, leads=False) as same_name:
        for _ in range(2):
            order = await same_name.order(Unreachable)
            assert isinstance(order, Unreachable)
            assert "another node of the job is called a" in order.reason
            same_name.want()


async def test_a_closed_rendezvous_takes_nobody_in_even_without_its_leader(port: int):
    async with agent("b", port, FIXED, leads=False) as follower:
        async with agent("a", port, FIXED) as leader:
            await follower.order(BeginRound)
            leader.touch.say(AgentClosed("a", "done", failed=False))
            await until(lambda: follower.touch.closed)
        follower.want()
        refused = await follower.order(RefuseAgent)
        assert isinstance(refused, RefuseAgent)
        assert refused.refusal is Refusal.CLOSED
        with anyio.fail_after(LIMIT_S):
            await follower.touch.part("the test has ended")


async def test_a_port_that_may_not_be_listened_at_is_said(monkeypatch: pytest.MonkeyPatch):
    async def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("supervisor.edges.peers.elastic.elastic_peers.listen", refuse)
    async with agent("a", 80, FIXED) as side:
        assert await side.order(Unreachable) == Unreachable("cannot listen at 127.0.0.1:80: Permission denied")
