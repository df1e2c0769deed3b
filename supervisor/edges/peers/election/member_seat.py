"""What does a node that has a seat do in the job's own etcd, until it loses the seat?

It keeps the seat, begins to vote when it is time, removes members whose nodes are lost, and publishes who the others
are. core/etcd_membership.py decides all of that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

import anyio
import msgspec

from supervisor.core import etcd_membership
from supervisor.core.etcd_membership import Published, Seat
from supervisor.edges.peers.election.etcd_client import EtcdClient
from supervisor.edges.peers.election.etcd_member_connection import Endpoint, endpoint_of
from supervisor.edges.peers.election.etcd_program import EtcdProgram
from supervisor.edges.peers.election.member_folder import MemberFolder, Membership
from supervisor.edges.peers.election.member_records import MemberRecords, View
from supervisor.ports.rendezvous_backend import BackendRefusedError, BackendUnavailableError
from supervisor.ports.timed_waits import pause

NO_ANSWER = (BackendUnavailableError, BackendRefusedError)
KEEP_S = etcd_membership.SEAT_TTL_S / 5
TEND_S, JOIN_S = 1.0, 0.3
ANSWER_S = 3.0
HUNG_S, HUNG_MAX_S = 15.0, 60.0  # without an answer of this node's member, while etcd answers

_log = logging.getLogger("holdfast.cluster")


class MemberSeat:
    """The seat of this node. Use it only from the event loop's thread."""

    def __init__(
        self,
        membership: Membership,
        *,
        job_id: str,
        node: str,
        records: MemberRecords,
        program: EtcdProgram,
        folder: MemberFolder,
        published: Callable[[], Published | None],
        open_client: Callable[[Sequence[Endpoint]], EtcdClient],
    ) -> None:
        """`published`: what this node knows about the members."""
        self.membership = membership
        self._job_id = job_id
        self._node = node
        self._records = records
        self._client = records.client
        self._program = program
        self._folder = folder
        self._published = published
        self._open_client = open_client
        self._unseated_since_s: dict[int, float] = {}

    async def tend(self, alone: EtcdClient) -> None:
        """Returns once this node has lost the seat, or must give it up. `alone` asks the member of this node."""
        async with anyio.create_task_group() as tasks:

            async def until_lost() -> None:
                await self._keep()
                tasks.cancel_scope.cancel()

            tasks.start_soon(until_lost)
            tasks.start_soon(self._watch, alone)
            await self._take_part(alone)
            tasks.cancel_scope.cancel()

    async def vacate(self) -> None:
        """Gives the seat up, and ends the program."""
        why = await self._program.last_words() or "it was removed"
        _log.warning("this node is no longer a member of the etcd of job %s: %s", self._job_id, why)
        with suppress(*NO_ANSWER), anyio.move_on_after(ANSWER_S):
            if self._program.is_broken:
                await self._client.remove_member(self.membership.id)
            await self._client.revoke(self.membership.lease)
        await self._program.end()

    async def _keep(self) -> None:
        """Renews the lease. Returns once another node has the seat."""
        while True:
            with suppress(*NO_ANSWER):
                if not await self._client.keep_alive(self.membership.lease):
                    seat = Seat(self.membership.seat, self._node, self._program.peer_url, self.membership.at_endpoint)
                    if not (lease := await self._records.take_seat(seat)):
                        return
                    self.membership = msgspec.structs.replace(self.membership, lease=lease)
                    await self._folder.keep(self.membership)
            await pause(KEEP_S, why="a lease is renewed in time")

    async def _watch(self, alone: EtcdClient) -> None:
        """Restarts the program of this node if it hangs, and keeps its log short."""
        heard_at_s, patience_s = anyio.current_time(), HUNG_S
        while True:
            now_s = anyio.current_time()
            with suppress(*NO_ANSWER):
                await alone.leading_member()
                heard_at_s = now_s
            if now_s > heard_at_s + patience_s and self._program.pid is not None and await self._others_answer():
                _log.warning("the member of the etcd of job %s on this node hangs, and is restarted", self._job_id)
                self._program.restart()
                heard_at_s, patience_s = now_s, min(2 * patience_s, HUNG_MAX_S)  # It may be slow to start.
            await self._program.trim_log()
            await pause(TEND_S, why="nothing tells when a program hangs")

    async def _others_answer(self) -> bool:
        """Returns whether etcd answers without this node's member, or there is no other one."""
        members = self._published()
        if members is not None and len(members.endpoints) > 1:
            with suppress(*NO_ANSWER):
                await self._records.leader()
                return True
            return False
        return True

    async def _take_part(self, alone: EtcdClient) -> None:
        own_id, missed, is_voter = self.membership.id, 0, False
        started_at_s: float | None = None
        while True:
            with suppress(*NO_ANSWER):
                view = await self._records.view()
                own = next((each for each in view.members if each.id == own_id), None)
                missed = missed + 1 if own is None else 0
                if missed > 1 or (self._program.is_broken and not etcd_membership.is_last(own_id, view.members)):
                    return
                if own is not None and own.client_url and not is_voter:
                    started_at_s = started_at_s or anyio.current_time()
                    joined_for_s = anyio.current_time() - started_at_s
                    if own.is_learner and etcd_membership.may_vote(view.after, view.members, joined_for_s=joined_for_s):
                        await self._client.promote(own_id)
                    is_voter = not own.is_learner
                if is_voter:
                    await self._tidy(view)
                    await self._part_leaders(own_id, view, alone)
            await pause(TEND_S if is_voter else JOIN_S, why="etcd tells nobody of its members")

    async def _tidy(self, view: View) -> None:
        """Removes the members whose nodes are lost, and publishes who the others are."""
        now_s = anyio.current_time()
        unseated = etcd_membership.unseated(view.before, view.members, view.after)
        self._unseated_since_s = {each.id: self._unseated_since_s.get(each.id, now_s) for each in unseated}
        for each in etcd_membership.lost(unseated, self._unseated_since_s, now_s=now_s):
            _log.warning("the member of the etcd of job %s at %s is lost, and removed", self._job_id, each.peer_url)
            await self._client.remove_member(each.id)
        members = etcd_membership.published(view.cluster_id, view.after, view.members)
        if members != self._published():
            await self._records.publish(members)

    async def _part_leaders(self, own_id: int, view: View, alone: EtcdClient) -> None:
        """Has another member lead etcd while this node leads the job."""
        leads_job = await self._records.leader() == self._node
        leading = await alone.leading_member() if leads_job else 0
        for target in etcd_membership.transfer_targets(own_id, leading, view.members, leads_job=leads_job):
            other = self._open_client([endpoint_of(target.client_url.partition("://")[2])])
            try:
                with suppress(*NO_ANSWER):
                    await other.leading_member()  # While one that is lost were to lead, etcd would take no writes.
                    await alone.move_lead(target.id)
                    return
            finally:
                other.close()
