"""Which rendezvous of torchrun's agents does this supervisor lead for the agents of its node?

So the loss of a torchrun process is never the loss of the leader. A rendezvous ends once it is closed and its agents
have left, or once nobody has been there for IDLE_S. A failure of one rendezvous leaves the others and the jobs alone.
"""

from __future__ import annotations

import logging

import anyio
from anyio.abc import TaskGroup, TaskStatus

from supervisor.core.elastic.elastic_messages import ElasticOrder
from supervisor.edges.machine.own_process.threads import in_thread
from supervisor.edges.peers.elastic.elastic_peers import ElasticLeader, ElasticMeeting
from supervisor.edges.peers.handshake import job_secrets
from supervisor.edges.peers.transport.cluster_link import PeerAddress
from supervisor.edges.peers.transport.cluster_tls import Tls, TlsFiles
from supervisor.edges.peers.transport.leader_listener import listen
from supervisor.errors import ExhaustedError
from supervisor.ports.job_requests import RendezvousRequest

IDLE_S = 60.0
PARTING_S = 5.0
HOSTED_MAX = 256
OWN_NAME = "the supervisor"  # no agent has this name: theirs end with a number

_log = logging.getLogger("holdfast.cluster")


class ElasticHosts:
    """Leads rendezvous. Use it only from the event loop's thread."""

    def __init__(self, tasks: TaskGroup, *, idle_s: float = IDLE_S) -> None:
        """Each rendezvous is a task of `tasks`."""
        self._tasks = tasks
        self._idle_s = idle_s
        self._hosted: dict[PeerAddress, str] = {}  # address → id of the job that meets there

    async def lead(self, rendezvous: RendezvousRequest) -> bool:
        """Leads it. Returns False if the address is another node's, or taken. Raises HoldfastError."""
        address = PeerAddress(rendezvous.host, rendezvous.port)
        if address in self._hosted:
            return self._hosted[address] == rendezvous.job_id
        if len(self._hosted) >= HOSTED_MAX:
            raise ExhaustedError(
                f"cannot lead another rendezvous: {HOSTED_MAX} are led here already; wait for the end of one"
            )
        tls = await in_thread(lambda: _secrets(rendezvous), abandon_on_cancel=True)
        meeting = ElasticMeeting(rendezvous.job_id, OWN_NAME, address, rendezvous.everywhere or None, tls)
        return await self._tasks.start(self._host, meeting)

    async def _host(self, meeting: ElasticMeeting, *, task_status: TaskStatus[bool]) -> None:
        listeners = await listen(meeting.endpoint, everywhere=meeting.leads is True)
        if listeners is None:
            task_status.started(self._hosted.get(meeting.endpoint) == meeting.job_id)
            return
        self._hosted[meeting.endpoint] = meeting.job_id
        try:
            async with anyio.create_task_group() as tasks:
                leader = ElasticLeader(meeting, _nobody_hears)
                await tasks.start(leader.server.run, listeners)
                task_status.started(True)
                await leader.keep_time(idle_s=self._idle_s)
                with anyio.move_on_after(PARTING_S):
                    await leader.until_all_is_heard()  # The last agent to leave waits for its confirmation, too.
                tasks.cancel_scope.cancel()
        except Exception:  # noqa: BLE001 - the bulkhead: any failure is that of this rendezvous alone
            _log.error("the rendezvous of job %s at %s is lost", meeting.job_id, meeting.endpoint, exc_info=True)
        finally:
            del self._hosted[meeting.endpoint]


def _secrets(rendezvous: RendezvousRequest) -> Tls | None:
    files = TlsFiles(rendezvous.tls_cert, rendezvous.tls_key, rendezvous.tls_ca) if rendezvous.tls_cert else None
    return job_secrets.read(rendezvous.token_file, files)


def _nobody_hears(order: ElasticOrder) -> None:
    _log.debug("dropped, for this node, which is not an agent: %s", type(order).__name__)
