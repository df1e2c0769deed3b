"""Does a supervisor lead several rendezvous of torchrun's agents until they end, separate from each other?"""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint
from msgspec.structs import replace

from supervisor.core.elastic.elastic_messages import AgentClosed, AgentLeft, TellClosed, TellWaiting
from supervisor.edges.peers.elastic.elastic_hosts import ElasticHosts
from supervisor.edges.peers.transport.cluster_link import PeerAddress
from supervisor.edges.peers.transport.leader_listener import listen
from supervisor.errors import ConfigurationError
from supervisor.ports.job_requests import RendezvousRequest
from tests.edges.peers.elastic.test_elastic_peers import LIMIT_S, Place, begin


@pytest.fixture
def place() -> Place:
    return Place()


@pytest.fixture
def rendezvous(place: Place, tmp_path: Path) -> RendezvousRequest:
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text("a secret of the job")
    return RendezvousRequest("job", "127.0.0.1", place.port, token_file=str(token))


async def until_free(port: int) -> None:
    with anyio.fail_after(LIMIT_S):
        while (listeners := await listen(PeerAddress("127.0.0.1", port))) is None:
            await checkpoint()
    for each in listeners:
        each.close()


async def test_agents_that_all_follow_meet_and_go_on_without_any_of_them(place: Place, rendezvous: RendezvousRequest):
    async with anyio.create_task_group() as tasks:
        hosts = ElasticHosts(tasks)
        assert await hosts.lead(rendezvous)
        assert await hosts.lead(rendezvous)
        assert not await hosts.lead(replace(rendezvous, job_id="other"))
        place.token = b"a secret of the job"
        async with place.agent("b", leads=False) as second:
            async with place.agent("a", leads=False) as first:
                await begin(first, second)
                first[0].report(AgentLeft("a", "it is killed"))
                await first[0].until_all_is_heard()
            await second[1].last(TellWaiting)
            assert second[1].orders[-1] == TellWaiting(1, "node a has left: it is killed")
            async with place.agent("a", leads=False) as third:
                await begin(third, second, number=1)
                third[0].report(AgentClosed("a", "its workers have ended", failed=False))
                await second[1].last(TellClosed)
                for name, (peers, _) in (("a", third), ("b", second)):
                    peers.report(AgentLeft(name, "it has ended"))
                    await peers.until_all_is_heard()
        await until_free(place.port)
        tasks.cancel_scope.cancel()


async def test_one_to_which_nobody_comes_ends_and_another_keeps_its_place(place: Place, rendezvous: RendezvousRequest):
    async with anyio.create_task_group() as tasks:
        assert await ElasticHosts(tasks, idle_s=0.05).lead(rendezvous)
        await until_free(place.port)
        taken = await listen(PeerAddress("127.0.0.1", place.port))
        assert taken is not None
        assert not await ElasticHosts(tasks).lead(rendezvous)
        for each in taken:
            each.close()
        with pytest.raises(ConfigurationError, match="cannot read the token file"):
            await ElasticHosts(tasks).lead(replace(rendezvous, token_file="/none"))
        assert not await ElasticHosts(tasks).lead(replace(rendezvous, host="192.0.2.1"))
        tasks.cancel_scope.cancel()
