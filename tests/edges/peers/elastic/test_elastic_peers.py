"""Do torchrun's agents find whichever of them leads, over real connections, and do timeouts work for them?"""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import anyio
import pytest

from supervisor.core.elastic.elastic_messages import (
    AgentClosed,
    AgentJoined,
    AgentLeft,
    BeginRound,
    ElasticOrder,
    ElasticRules,
    Refusal,
    RefuseAgent,
    RoundStoreServed,
    ServeRoundStore,
    TellClosed,
    TellWaiting,
)
from supervisor.core.election import node_loss_detection
from supervisor.edges.peers.elastic.elastic_peers import ElasticMeeting, ElasticPeers, open_elastic
from supervisor.edges.peers.transport.cluster_link import PeerAddress
from supervisor.edges.peers.transport.cluster_tls import Tls, from_token, load
from tests.edges.peers.certificates import make_authority, make_node

LIMIT_S = 30.0
RULES = ElasticRules(2, 2, 600.0, 30.0)


class Heard:
    def __init__(self) -> None:
        self.orders: list[ElasticOrder] = []
        self.losses: list[tuple[str, bool]] = []
        self._changed = anyio.Event()

    def order(self, order: ElasticOrder) -> None:
        self.orders.append(order)
        self._changed.set()

    def lose(self, why: str, is_for_good: bool) -> None:
        self.losses.append((why, is_for_good))
        self._changed.set()

    async def until(self, condition: Callable[[], object]) -> None:
        with anyio.fail_after(LIMIT_S):
            while not condition():
                self._changed = anyio.Event()
                await self._changed.wait()

    async def last(self, kind: type) -> None:
        await self.until(lambda: self.orders and isinstance(self.orders[-1], kind))


Opened = AbstractAsyncContextManager[tuple[ElasticPeers, Heard]]


class Place:
    """Where the agents of one job meet."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.token = b"a token"

    @asynccontextmanager
    async def agent(
        self, node: str, *, leads: bool | None = None, job: str = "job", look_s: float = LIMIT_S, tls: Tls | None = None
    ) -> AsyncGenerator[tuple[ElasticPeers, Heard]]:
        heard = Heard()
        tls = tls or from_token(self.token)
        meeting = ElasticMeeting(job, node, PeerAddress("127.0.0.1", self.port), leads, tls)
        async with open_elastic(meeting, on_order=heard.order, on_lost=heard.lose, look_s=look_s) as peers:
            yield peers, heard


@pytest.fixture
def place() -> Place:
    return Place()


async def begin(first: tuple[ElasticPeers, Heard], second: tuple[ElasticPeers, Heard], number: int = 0) -> None:
    """Brings agents a and b into the first round, or another one."""
    (a, at_a), (b, at_b) = first, second
    b.report(AgentJoined("b", RULES))
    a.report(AgentJoined("a", RULES))
    await at_a.last(ServeRoundStore)
    a.report(RoundStoreServed("a", number, "10.0.0.1", 4000))
    for rank, heard in enumerate((at_a, at_b)):
        await heard.last(BeginRound)
        begun = heard.orders[-1]
        assert isinstance(begun, BeginRound)
        reason = begun.reason if number else "the job starts"
        assert begun == BeginRound(number, rank, 2, "10.0.0.1", 4000, reason)


async def test_the_first_leads_and_takes_part_like_any_other(place: Place):
    async with place.agent("a") as first, place.agent("b") as second:
        assert (first[0].leads, second[0].leads) == (True, False)
        await begin(first, second)
        assert second[0].is_known
        first[0].report(AgentClosed("a", "done", failed=False))
        await second[1].last(TellClosed)
        with anyio.fail_after(LIMIT_S):
            await first[0].until_all_is_heard()
            second[0].report(AgentLeft("b", "done"))
            await second[0].until_all_is_heard()


async def test_an_agent_that_vanishes_is_a_lost_member(place: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(node_loss_detection, "LOST_S", 0.2)
    async with place.agent("a") as first:
        async with place.agent("b") as second:
            await begin(first, second)
        await first[1].last(TellWaiting)
        order = first[1].orders[-1]
        assert isinstance(order, TellWaiting)
        assert order.reason.startswith("node b is lost: ")


async def test_time_is_kept_by_the_leader(place: Place):
    async with place.agent("a") as (a, at_a):
        a.report(AgentJoined("a", ElasticRules(2, 2, 0.05, 30.0)))
        await at_a.last(RefuseAgent)
        refused = at_a.orders[-1]
        assert isinstance(refused, RefuseAgent)
        assert refused.refusal is Refusal.TIMEOUT


async def test_another_process_that_leads_later_is_noticed_at_once(place: Place):
    """It knows nothing of this conversation: message numbers would not fit, and orders would be dropped."""
    async with place.agent("b", leads=False) as second:
        async with place.agent("a") as first:
            await begin(first, second)
        async with place.agent("c"):
            await second[1].until(lambda: second[1].losses)
        why = f"the leader at 127.0.0.1:{place.port} is lost: another process leads there now"
        assert second[1].losses == [(why, False)]


async def test_an_agent_that_may_not_lead_looks_for_a_leader_and_says_when_there_is_none(place: Place):
    async with place.agent("a", leads=False, look_s=0.1) as (peers, heard):
        assert not peers.leads
        await heard.until(lambda: heard.losses)
        assert heard.losses == [(f"the leader at 127.0.0.1:{place.port} is lost: connection refused", False)]
        assert not peers.is_known


async def test_an_agent_that_must_lead_and_cannot_says_so(place: Place):
    async with place.agent("a"), place.agent("b", leads=True) as (_, heard):
        assert heard.losses == [(f"cannot listen at port {place.port}: another process does", True)]


async def test_a_refusal_is_for_good(place: Place):
    async with place.agent("a"), place.agent("b", job="another") as (_, heard):
        await heard.until(lambda: heard.losses)
        (loss,) = heard.losses
        assert loss[0].endswith("refuses this node: it wants job another, and this is job job")
        assert loss[1]


async def test_agents_meet_by_certificates_and_another_authority_s_is_refused_for_good(place: Place, tmp_path: Path):
    make_authority(tmp_path)
    make_authority(tmp_path, "other")
    own, foreign = load(make_node(tmp_path)), load(make_node(tmp_path, "stranger", authority="other"))
    async with place.agent("a", tls=own) as first, place.agent("b", tls=own) as second:
        await begin(first, second)
        async with place.agent("c", tls=foreign) as (_, heard):
            await heard.until(lambda: heard.losses)
            why, is_for_good = heard.losses[0]
            assert is_for_good
            assert "do not trust each other" in why
