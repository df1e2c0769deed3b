"""How does a node take part in electing the leader of its job, from start to end?"""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from supervisor.config.job_spec import Nodes
from supervisor.edges.peers.election.backends import open_backend
from supervisor.edges.peers.election.elected_peers import ElectedPeers
from supervisor.edges.peers.election.voter import Voter
from supervisor.edges.peers.questions.request_router import refuse
from supervisor.edges.peers.stream.session_store import JobPeers, SessionStore
from supervisor.edges.peers.transport.cluster_tls import Tls
from supervisor.errors import ConfigurationError
from supervisor.ports.edges import Post
from supervisor.ports.questions import TakeQuestion
from supervisor.ports.rendezvous_backend import RendezvousBackend

if TYPE_CHECKING:
    from supervisor.edges.peers.election.job_etcd_members import JobEtcdMembers

PARTING_S = 5.0  # for messages that the other nodes have not heard when this one ends


async def joining(
    job_id: str, nodes: Nodes, tls: Tls | None, session_store: SessionStore, *, own_host: str, state_dir: Path
) -> Callable[[Post, TakeQuestion], AbstractAsyncContextManager[JobPeers]]:
    """Returns the job as this node runs it, and how to open its peers. Raises ConfigurationError."""
    if tls is None and not ipaddress.ip_address(own_host).is_loopback:
        raise ConfigurationError(
            f"cannot meet the other nodes at {own_host}: anybody who reaches that address could join the job; write "
            "--rdzv-conf token_file=F, a secret that is the same on each, or tls_cert, tls_key and tls_ca"
        )
    voter = Voter(job_id, nodes.name, own_host, nodes.join_timeout_s, tls, nodes.fan_out, nodes.max_nodes - 1)
    if not nodes.brings_etcd:
        backend = open_backend(job_id, nodes)
        return lambda post, take: open_elected(voter, backend, post, session_store, take_question=take)
    from supervisor.edges.peers.election import job_etcd_backend  # Late: few jobs need it.

    assert tls is not None, "a job that brings its etcd has a token or certificates"
    goes_on = session_store.kept is not None
    own = await job_etcd_backend.open_backend(
        job_id, nodes, tls, own_host=own_host, state_dir=state_dir, goes_on=goes_on
    )
    return lambda post, take: open_elected(voter, own, post, session_store, take_question=take, members=own.members)


@asynccontextmanager
async def open_elected(
    voter: Voter,
    backend: RendezvousBackend,
    post: Post,
    session_store: SessionStore | None = None,
    *,
    take_question: TakeQuestion = refuse,
    members: JobEtcdMembers | None = None,
) -> AsyncGenerator[JobPeers]:
    """Opens peers with an elected leader. Any node may lead, and any node may be lost.

    `members`: of the job's own etcd. They end after this node has given up the lead.
    """
    peers = ElectedPeers(voter, backend, post, session_store, take_question=take_question)
    try:
        async with (
            members.serving(lambda: peers.may_train) if members is not None else nullcontext(),
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(peers.run)
            yield peers
            with anyio.move_on_after(PARTING_S):
                await peers.until_all_is_heard()
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(PARTING_S):
            await backend.close()
