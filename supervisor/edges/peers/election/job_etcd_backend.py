"""How is the job's own etcd opened as the backend of its rendezvous?

Calls wait until the etcd is in use. Nobody had led the job in it before (job_etcd_members.py), so a leader need not
wait for nodes that train without a ledger.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

from supervisor.config.job_spec import Nodes
from supervisor.edges.machine.clock import Clock
from supervisor.edges.machine.own_process.threads import in_thread
from supervisor.edges.peers.election import etcd_program, member_tls
from supervisor.edges.peers.election.etcd_backend import DEFAULT_PREFIX, EtcdBackend
from supervisor.edges.peers.election.etcd_client import EtcdClient
from supervisor.edges.peers.election.etcd_member_connection import Endpoint, endpoint_of
from supervisor.edges.peers.election.job_etcd_members import JobEtcdMembers
from supervisor.edges.peers.election.member_folder import MemberFolder
from supervisor.edges.peers.transport.cluster_tls import Tls, TlsFiles
from supervisor.errors import ConfigurationError
from supervisor.ports.rendezvous_backend import Lead, Leader, Place


class JobEtcdBackend:
    """The backend; see rendezvous_backend.RendezvousBackend."""

    def __init__(self, backend: EtcdBackend, members: JobEtcdMembers) -> None:
        self._backend = backend
        self.members = members

    async def try_to_lead(self, node: str, address: str) -> Lead | None:
        return await self.try_to_lead_above(node, address, 0)

    async def try_to_lead_above(self, node: str, address: str, above: int) -> Lead | None:
        await self.members.until_ready()
        return await self._backend.try_to_lead_above(node, address, above)

    async def leader(self) -> Leader | None:
        await self.members.until_ready()
        return await self._backend.leader()

    async def leaders(self) -> AsyncGenerator[Leader | None]:
        await self.members.until_ready()
        async with aclosing(self._backend.leaders()) as leaders:
            async for leader in leaders:
                yield leader

    async def end_lead(self, term: int) -> None:
        await self.members.until_ready()
        await self._backend.end_lead(term)

    async def close(self) -> None:
        await self._backend.close()


async def open_backend(
    job_id: str, nodes: Nodes, tls: Tls, *, own_host: str, state_dir: Path, goes_on: bool
) -> JobEtcdBackend:
    """Opens it. `goes_on`: with what the supervisor before this one left. Raises ConfigurationError."""
    path = await in_thread(etcd_program.find)
    options = dict(nodes.backend_options)

    def prepare() -> tuple[MemberFolder, member_tls.MemberFiles, ssl.SSLContext]:
        folder = MemberFolder(state_dir, job_id, nodes.name, goes_on=goes_on)
        try:
            if tls.token:  # also beside certificates, which alone are not enough then
                files = member_tls.from_token(tls.token, own_host, folder.path)
            else:
                files = member_tls.given(TlsFiles(nodes.tls_cert, nodes.tls_key, nodes.tls_ca), own_host)
            return folder, files, member_tls.context(files)
        except BaseException:  # raised again
            folder.close()
            raise

    try:
        others = [endpoint_of(each) for each in options.get("endpoints", "").split("|") if each]
        folder, files, context = await in_thread(prepare)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"cannot prepare the job's own etcd in {state_dir}: {error}; check --state-dir and --rdzv-conf"
        ) from error
    own = Endpoint(own_host, nodes.port)
    members = JobEtcdMembers(
        job_id,
        nodes.name,
        own=own,
        endpoints=(Endpoint(nodes.host, nodes.port), *others),
        prefix=DEFAULT_PREFIX,
        folder=folder,
        program=etcd_program.EtcdProgram(path, folder.path, own, files),
        open_client=lambda endpoints: EtcdClient(endpoints, tls=context),
        nodes_max=nodes.max_nodes,
    )
    place = Place(job_id, nodes.host, nodes.port, {}, nodes.leader_ttl_s)
    backend = EtcdBackend(place, members.new_client, Clock().unix_ns, is_jobs_own=True)
    return JobEtcdBackend(backend, members)
