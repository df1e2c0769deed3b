"""How does the endpoint's node begin the etcd of the job?

It begins one with one member, and puts it to use after a while in which nodes of a running job may say that theirs is
elsewhere: so an endpoint's node that was lost and comes back begins no second one.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence

import anyio
import msgspec
from anyio.abc import TaskGroup

from supervisor.core import etcd_membership
from supervisor.core.etcd_membership import Published, Seat
from supervisor.edges.peers.election.etcd_member_connection import Endpoint
from supervisor.edges.peers.election.etcd_program import EtcdProgram
from supervisor.edges.peers.election.member_folder import Membership
from supervisor.edges.peers.election.member_records import MemberRecords
from supervisor.edges.peers.election.member_seat import NO_ANSWER
from supervisor.edges.peers.transport.cluster_link import PeerAddress
from supervisor.edges.peers.transport.leader_listener import listen
from supervisor.ports.pauses import pause

UNHEARD_S = 5.0  # an etcd that begins is not in use for so long
LOOK_S = 0.25

_log = logging.getLogger("holdfast.cluster")


class Begun(msgspec.Struct, frozen=True):
    membership: Membership
    members: Published


class FirstMember:
    """The first member. Use it only from the event loop's thread."""

    def __init__(
        self, job_id: str, node: str, *, own: Endpoint, program: EtcdProgram, tell: Callable[[str], None]
    ) -> None:
        """`tell`: is told why it is not in use yet."""
        self._job_id = job_id
        self._node = node
        self._own = own
        self._program = program
        self._tell = tell

    async def begin(self, records: MemberRecords, others: Sequence[str], tasks: TaskGroup) -> Begun | Published | None:
        """Begins an etcd, whose program `tasks` keep running. `records` ask this node's member alone.

        Returns the members that the job has already, if nodes of it say so; None: another node of this machine has the
        ports. `others`: more addresses at which nodes look for a member.
        """
        token = secrets.token_hex(8)  # without it, members of another etcd would take this one for theirs
        tasks.start_soon(lambda: self._program.run([self._program.peer_url], hosts=others, token=token))
        moved = await self._heard(records)
        if moved is not None or (self._program.is_broken and self._program.pid is None):
            return moved
        return await self._put_to_use(records)

    async def _heard(self, records: MemberRecords) -> Published | None:
        """Returns where the members of the job are, if nodes of it say so in time.

        Returns None at once if another node of this machine has the ports.
        """
        deadline_s: float | None = None
        is_told = False
        while deadline_s is None or anyio.current_time() < deadline_s:
            try:
                moved = (await records.found()).moved
                if moved is not None:
                    return moved
                deadline_s = deadline_s or anyio.current_time() + UNHEARD_S
            except NO_ANSWER as error:
                why = await self._program.last_words() or str(error)
                self._tell(why)
                if self._program.is_broken and await self._is_elsewhere():
                    return None
                if self._program.is_broken and not is_told:
                    is_told = True
                    _log.warning("job %s cannot begin its own etcd: %s; it is tried again", self._job_id, why)
            await pause(LOOK_S, why="a program starts, and other nodes may speak")
        return None

    async def _is_elsewhere(self) -> bool:
        """Returns whether another process has the ports, not the node's own program, which is started repeatedly."""
        return self._program.pid is None and not await can_listen(self._own) and self._program.pid is None

    async def _put_to_use(self, records: MemberRecords) -> Begun | None:
        """Returns None if this node has not begun it, or the job runs with another one."""
        while True:
            try:
                view = await records.view()
                names = [each.name for each in view.members]
                if all(names) and names != [self._program.name]:
                    return None
                if all(names):
                    seat = Seat(0, self._node, self._program.peer_url, at_endpoint=True)
                    members = etcd_membership.published(view.cluster_id, [seat], view.members)
                    lease = await records.begin(seat, members)
                    own_id = view.members[0].id
                    return Begun(Membership(own_id, 0, lease, at_endpoint=True), members) if lease else None
            except NO_ANSWER as error:
                self._tell(str(error))
            await pause(LOOK_S, why="nothing tells when it answers again")


async def can_listen(own: Endpoint) -> bool:
    """Returns whether both ports of a member are free on this node."""
    return all([await free_hosts(Endpoint(own.host, own.port + each)) for each in (0, 1)])


async def free_hosts(endpoint: Endpoint) -> list[str]:
    """Returns the addresses of this host at which nobody listens, of those that the endpoint has."""
    try:
        listeners = await listen(PeerAddress(endpoint.host, endpoint.port))
    except OSError:  # such as a port that only root may use
        return []
    hosts = [str(each.getsockname()[0]) for each in listeners or ()]
    for each in listeners or ():
        each.close()
    return hosts
