"""How does the endpoint's node begin the etcd of the job?

It begins one with one member, and puts it to use after a while in which nodes of a running job may say that theirs is
elsewhere, and in which no member can be at the other endpoints: so an endpoint's node that was lost and comes back
begins no second one.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress

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
from supervisor.ports.rendezvous_backend import BackendUnavailableError
from supervisor.ports.timed_waits import pause

UNHEARD_S = 5.0  # an etcd that begins is not in use for so long
LOOK_S = 0.25

_log = logging.getLogger("holdfast.cluster")


class Begun(msgspec.Struct, frozen=True):
    membership: Membership
    members: Published


class FirstMember:
    """The first member. Use it only from the event loop's thread."""

    def __init__(
        self,
        job_id: str,
        node: str,
        *,
        own: Endpoint,
        elsewhere: Sequence[Endpoint],
        program: EtcdProgram,
        open_records: Callable[[Endpoint], MemberRecords],
        tell: Callable[[str], None],
    ) -> None:
        """`elsewhere`: where a member of the job may be, too. `tell`: is told why it is not in use yet."""
        self._job_id = job_id
        self._node = node
        self._own = own
        self._elsewhere = elsewhere
        self._program = program
        self._open_records = open_records
        self._tell = tell

    async def begin(self, others: Sequence[str], tasks: TaskGroup) -> Begun | Published | None:
        """Begins an etcd, whose program `tasks` keep running.

        Returns the members that the job has already, if there are some; None: another node of this machine has the
        ports. `others`: more addresses at which nodes look for a member.
        """
        token = secrets.token_hex(8)  # without it, members of another etcd would take this one for theirs
        tasks.start_soon(lambda: self._program.run([self._program.peer_url], hosts=others, token=token))
        records = self._open_records(self._own)
        try:
            moved = await self._heard(records)
            if moved is not None or (self._program.is_broken and self._program.pid is None):
                return moved
            return await self._put_to_use(records)
        finally:
            records.client.close()

    async def _heard(self, records: MemberRecords) -> Published | None:
        """Returns where the members of the job are, if nodes of it say so or they are found in time.

        Returns None at once if another node of this machine has the ports, or uses its etcd already.
        """
        unheard_s = 0.0  # counted in looks: a node that is suspended meanwhile hears nobody
        is_told = False
        while unheard_s < UNHEARD_S:
            is_up = False
            try:
                found = await records.found()
                is_up = True
                if found.moved is not None or found.members is not None:
                    return found.moved
                if (moved := await self._found_elsewhere()) is not None:
                    with suppress(*NO_ANSWER):
                        await records.say_moved(moved)  # Other new nodes may read it here.
                    return moved
                unheard_s += LOOK_S
            except NO_ANSWER as error:
                why = str(error) if is_up else await self._program.last_words() or str(error)
                self._tell(why)
                if self._program.is_broken and await self._is_elsewhere():
                    return None
                if is_up:
                    unheard_s = 0.0
                if (is_up or self._program.is_broken) and not is_told:
                    is_told = True
                    _log.warning("job %s cannot begin its own etcd: %s; it is tried again", self._job_id, why)
            await pause(LOOK_S, why="a program starts, and other nodes may speak")
        return None

    async def _found_elsewhere(self) -> Published | None:
        """Returns the job's members if one is at another endpoint. Raises BackendUnavailableError while one may be.

        One silent host among others that answer is taken for a node that is down: else its loss would forbid a start.
        """
        known: list[Published] = []
        leaderless: list[str] = []
        silent: list[str] = []

        async def ask(endpoint: Endpoint) -> None:
            records = self._open_records(endpoint)  # Each time a new client: a name is looked up again.
            at = f"a member of it may be at {endpoint.host}:{endpoint.port}"
            try:
                found = await records.found()
                members = found.members or found.moved
                if found.members is not None and not await records.leader():
                    # Such as one of an earlier run, which ends.
                    leaderless.append(f"{at}, where no node leads the job")
                elif members is not None:
                    known.append(members)
            except NO_ANSWER as error:
                if not records.client.is_refused:
                    silent.append(f"{at} ({error})")
            finally:
                records.client.close()

        async with anyio.create_task_group() as tasks:
            for each in self._elsewhere:
                tasks.start_soon(ask, each)
        nobody_answers = 0 < len(silent) == len(self._elsewhere)
        if not known and (leaderless or nobody_answers):
            why = "; ".join(leaderless + silent)
            raise BackendUnavailableError(f"{why}; start that node, or leave it out of endpoints=")
        return next(iter(known), None)

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
