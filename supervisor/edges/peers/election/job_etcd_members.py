"""How does a job bring its own etcd: how does each node know its members, become one of them, and leave?

The endpoint's node begins it (first_member.py). core/etcd_membership.py decides who joins, votes and is removed.
"""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress

import anyio
from anyio.abc import TaskGroup

from supervisor.core import etcd_membership
from supervisor.core.etcd_membership import Published, Seat
from supervisor.edges.peers.election.etcd_client import CompactedError, EtcdClient
from supervisor.edges.peers.election.etcd_member_connection import Endpoint, endpoint_of
from supervisor.edges.peers.election.etcd_program import EtcdProgram
from supervisor.edges.peers.election.first_member import Begun, FirstMember, can_listen, free_hosts
from supervisor.edges.peers.election.member_folder import MemberFolder, Membership
from supervisor.edges.peers.election.member_records import MemberRecords, published_in
from supervisor.edges.peers.election.member_seat import NO_ANSWER, MemberSeat
from supervisor.edges.peers.transport.own_address import is_loopback
from supervisor.ports.rendezvous_backend import BackendUnavailableError
from supervisor.ports.timed_waits import pause

HEEDED_S = 2.0  # after nodes of a running job were heard: so long, other new nodes may read it, too
LOOK_S = 0.5
FORGOTTEN_S = 10.0  # the members that are known may all have been replaced
TELL_S, TELL_SELDOM_S, TELL_TIMEOUT_S = 1.0, 3.0, 2.0
READY_S = 10.0  # for which a call waits for members
JOIN_TIMEOUT_S = 60.0
LEAVE_S, LEAVE_AGAIN_S, UNANSWERED_S = 8.0, 0.1, 3.0
ENDING_S = 2.0  # a job that ends has no leader any more after that
SEAT_AGAIN_S = 1.0
BEGIN_AGAIN_S = 10.0  # while no etcd is found, and the endpoint's node has begun none
UNFIT_S = 60.0  # until a node tries again on which a member did not run
SPREAD_S = 0.5  # of the nodes that ask for a free seat, at least
ASK_PER_S = 500.0  # nodes of a large job, until the first of them has it

_log = logging.getLogger("holdfast.cluster")


class JobEtcdMembers:
    """The part of one node. Use it only from the event loop's thread."""

    def __init__(
        self,
        job_id: str,
        node: str,
        *,
        own: Endpoint,
        endpoints: Sequence[Endpoint],
        prefix: str,
        folder: MemberFolder,
        program: EtcdProgram,
        open_client: Callable[[Sequence[Endpoint]], EtcdClient],
        nodes_max: int,
    ) -> None:
        """`own`: where this node's member serves. `endpoints`: where nodes that know nothing look for one, the job's
        own first. `prefix`: of the jobs' keys."""
        self._job_id = job_id
        self._node = node
        self._own = own
        self._endpoints = tuple(endpoints)
        self._prefix = prefix
        self._folder = folder
        self.program = program
        self._open_client = open_client
        self._nodes_max = nodes_max
        self._client = open_client(self._endpoints)
        self._records = self._records_of(self._client)
        self._clients = [self._client]
        self._published: Published | None = None
        self._is_news = anyio.Event()
        self._is_ready = anyio.Event()
        self._seat: MemberSeat | None = None
        self._why = "no answer yet"
        self._work = anyio.CancelScope()
        self._tasks: TaskGroup | None = None

    def _records_of(self, client: EtcdClient) -> MemberRecords:
        return MemberRecords(client, self._prefix, self._job_id)

    def new_client(self) -> EtcdClient:
        """Returns a client that always knows the members. The caller closes it."""
        client = self._open_client(self._endpoints)
        self._clients.append(client)
        if self._published is not None:
            self._move(client, self._published)
        return client

    @property
    def is_ready(self) -> bool:
        """Whether this node has found the job's etcd in use."""
        return self._is_ready.is_set()

    async def until_ready(self) -> None:
        """Waits until the job's etcd is in use. Raises BackendUnavailableError after a while."""
        with anyio.move_on_after(READY_S):
            await self._is_ready.wait()
            return
        raise BackendUnavailableError(f"no member of the job's own etcd answers: {self._why}")

    @asynccontextmanager
    async def serving(self, may_train: Callable[[], bool]) -> AsyncGenerator[None]:
        """Takes part until the end of the block, and then leaves. `may_train`: whether ranks may run on this node."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            tasks.start_soon(self._take_part, may_train)
            try:
                yield
            finally:
                with anyio.CancelScope(shield=True):
                    self._work.cancel()
                    with anyio.move_on_after(LEAVE_S):
                        await self._leave()
                    await self.program.end()
                    await self._folder.remove()
                    self._client.close()
                tasks.cancel_scope.cancel()

    async def _take_part(self, may_train: Callable[[], bool]) -> None:
        with self._work:
            if self._folder.known is not None:
                await self._take(self._folder.known)
            if self._folder.kept is not None:
                await self._become(self._folder.kept, [self.program.peer_url])
            elif self._published is None and (hosts := await self._hosts_of_endpoint()):
                await self._begin(hosts)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._look)
                tasks.start_soon(self._tell_newcomers, may_train)
                tasks.start_soon(self._sit)
                tasks.start_soon(self._folder.stay_in_use)

    async def _begin(self, hosts: list[str]) -> None:
        """Begins an etcd, unless the job has one."""
        first = FirstMember(
            self._job_id, self._node, own=self._own, elsewhere=self._endpoints[1:], program=self.program,
            open_records=lambda endpoint: self._records_of(self._open_client([endpoint])), tell=self._tell_why,
        )  # fmt: skip
        others = [] if self._own.host in hosts else hosts
        assert self._tasks is not None, "the block has begun"
        begun = await first.begin(others, self._tasks)
        if isinstance(begun, Begun):
            await self._sit_down(begun.membership)
            await self._take(begun.members)
            return
        if begun is not None:
            where = ", ".join(begun.endpoints)
            _log.warning("job %s runs with the members at %s; this node joins them", self._job_id, where)
            await self._take(begun, is_in_use=False)
        await pause(HEEDED_S, why="other new nodes read it, too")
        await self.program.end()
        await self._folder.remove_data()

    async def _hosts_of_endpoint(self) -> list[str]:
        """Returns the endpoint's addresses if they are this node's, and free. All nodes of a machine have loopback."""
        hosts = await free_hosts(self._endpoints[0])
        is_here = self._own.host in hosts or not all(is_loopback(each) for each in hosts)
        return hosts if is_here and await free_hosts(Endpoint(self._own.host, self._own.port + 1)) else []

    def _tell_why(self, why: str) -> None:
        self._why = why

    # --- what all nodes do -----------------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Follows who the members are. If none of them answers for long, others are asked, too."""
        answered_at_s = anyio.current_time()
        while True:
            try:
                found = await self._records.found()
                answered_at_s = anyio.current_time()
                if found.members is not None:
                    await self._take(found.members)
                    changes = self._client.watch(self._records.members_key, found.revision + 1)
                    async with aclosing(changes):
                        async for told in changes:
                            for event in told.events:
                                if event.kv.value:
                                    await self._take(published_in(event.kv.value))
                elif found.moved is not None:
                    await self._take(found.moved, is_in_use=False)
                else:
                    self._why = (
                        "it is not in use yet"
                        if found.job_id in ("", self._job_id)
                        else (f"the etcd of job {found.job_id} is there; write a port of its own for each job")
                    )
            except CompactedError:
                continue
            except NO_ANSWER as error:
                self._why = str(error)
                if anyio.current_time() > answered_at_s + FORGOTTEN_S and self._published is not None:
                    for client in self._clients:
                        self._move(client, self._published, *self._endpoints)
            await pause(LOOK_S, why="nothing tells when a member answers")

    async def _take(self, members: Published, *, is_in_use: bool = True) -> None:
        """Asks these members from now on."""
        is_new, self._published = members != self._published, members
        for client in self._clients:
            self._move(client, members)
        if is_in_use:
            self._is_ready.set()
            self._is_news.set()
            self._is_news = anyio.Event()
        if is_new:
            await self._folder.keep_known(members)

    def _move(self, client: EtcdClient, members: Published, *others: Endpoint) -> None:
        with suppress(ValueError):
            known = [endpoint_of(each) for each in members.endpoints]
            client.move_to(list(dict.fromkeys((*known, *others))), members.cluster_id)

    async def _tell_newcomers(self, may_train: Callable[[], bool]) -> None:
        """Says at the endpoint where the members are: its node may have been lost, and begin another etcd."""
        newcomer: MemberRecords | None = None
        try:
            while True:
                seldom = TELL_SELDOM_S * random.uniform(0.5, 1.0)
                await pause(TELL_S if self._seat is not None else seldom, why="nothing tells when it comes back")
                members, own = self._published, self._seat
                if members is None or not self._is_ready.is_set() or (own is not None and own.membership.at_endpoint):
                    continue
                if own is None and members.has_endpoint:
                    continue
                newcomer = newcomer or self._records_of(self._open_client(self._endpoints[:1]))
                found = None
                with suppress(*NO_ANSWER), anyio.move_on_after(TELL_TIMEOUT_S):
                    found = await newcomer.found()
                    is_new = found.cluster_id != members.cluster_id and found.members is None and found.moved is None
                    if is_new and (may_train() or await self._answers()):
                        await newcomer.say_moved(members)
                if found is None:
                    newcomer.client.close()  # Its name is looked up again, and packets are sent at once.
                    newcomer = None
        finally:
            if newcomer is not None:
                newcomer.client.close()

    async def _answers(self) -> bool:
        """Returns whether the job's etcd still works, so that this node is none of an old run."""
        return (await self._records.found()).members is not None

    # --- a seat ----------------------------------------------------------------------------------------------------

    @property
    def _has_free_seat(self) -> bool:
        return self.is_ready and self._published is not None and self._published.has_free_seat

    async def _sit(self) -> None:
        """Takes a free seat, and tends it until it is lost, and then another one."""
        is_told = False
        while True:
            if self._seat is None and not self._has_free_seat:
                await self._wait_for_seat()
                continue
            if self._seat is None:
                spread_s = max(SPREAD_S, self._nodes_max / ASK_PER_S)
                await pause(random.uniform(0.0, spread_s), why="not all nodes ask at once")
                if not self._has_free_seat:
                    continue
                if not await can_listen(self._own):
                    if not is_told:
                        is_told = True
                        _log.info("this node can't be a member of job %s's etcd: its ports are taken", self._job_id)
                    await pause(UNFIT_S, why="nothing tells when a port is free")
                    continue
                with suppress(*NO_ANSWER):
                    await self._take_seat()
                if self._seat is None:
                    await pause(SEAT_AGAIN_S, why="who has the seat becomes known")
                    continue
            alone = self._open_client([self._own])
            try:
                await self._seat.tend(alone)
            finally:
                alone.close()
            seat, self._seat = self._seat, None
            is_broken = self.program.is_broken
            await seat.vacate()
            await self._folder.remove_data()
            if is_broken:
                await pause(UNFIT_S, why="other nodes may have a seat before, and here a disk may have room later")

    async def _wait_for_seat(self) -> None:
        """Waits for news. If none is found for a while, begins an etcd after all: its ports may be free by now."""
        with anyio.move_on_after(BEGIN_AGAIN_S if self._published is None else None):
            await self._is_news.wait()
            return
        if self._published is None and (hosts := await self._hosts_of_endpoint()):
            await self._begin(hosts)

    async def _take_seat(self) -> None:
        """Becomes a member, if a seat is free."""
        view = await self._records.view()
        number = etcd_membership.free_seat(view.after)
        if number is None:
            return
        at_endpoint = bool(await self._hosts_of_endpoint())
        seat = Seat(number, self._node, self.program.peer_url, at_endpoint)
        lease = await self._records.take_seat(seat)
        if not lease:
            return
        try:
            await self._join(seat, lease, old={each.id for each in view.members if each.peer_url == seat.peer_url})
        finally:
            if self._seat is None:
                with anyio.CancelScope(shield=True), suppress(*NO_ANSWER), anyio.move_on_after(UNANSWERED_S):
                    await self._client.revoke(lease)

    async def _join(self, seat: Seat, lease: int, *, old: set[int]) -> None:
        """Joins as a learner. `old`: members that were this node's, whose data is gone."""
        for each in old:
            await self._client.remove_member(each)
        deadline_s = anyio.current_time() + JOIN_TIMEOUT_S
        while anyio.current_time() < deadline_s:
            with suppress(*NO_ANSWER):
                if not await self._client.keep_alive(lease):
                    return
                members = (await self._records.view()).members
                own = next((each.id for each in members if each.peer_url == seat.peer_url), 0)
                urls = [each.peer_url for each in members]
                if not own:
                    told = await self._client.add_learner(seat.peer_url)
                    own, urls = told.member.ID, [next(iter(each.peerURLs), "") for each in told.members]
                await self._become(Membership(own, seat.number, lease, seat.at_endpoint), urls)
                return
            await pause(LOOK_S, why="another member joins, or was lost a moment ago")

    async def _sit_down(self, membership: Membership) -> None:
        self._seat = MemberSeat(
            membership, job_id=self._job_id, node=self._node, records=self._records, program=self.program,
            folder=self._folder, published=lambda: self._published, open_client=self._open_client,
        )  # fmt: skip
        await self._folder.keep(membership)

    async def _become(self, membership: Membership, urls: Sequence[str]) -> None:
        await self._sit_down(membership)
        found = await free_hosts(self._endpoints[0]) if membership.at_endpoint else []
        hosts = [each for each in found if each != self._own.host]
        assert self._tasks is not None, "the block has begun"
        self._tasks.start_soon(lambda: self.program.run(urls, hosts=hosts))

    # --- the end ---------------------------------------------------------------------------------------------------

    async def _leave(self) -> None:
        """Leaves so that the others go on. While the job ends, this member stays until the leader has ended."""
        membership = self._seat.membership if self._seat is not None else None
        answered_at_s = begun_s = anyio.current_time()
        while membership is not None and anyio.current_time() < answered_at_s + UNANSWERED_S:
            with suppress(*NO_ANSWER):
                if await self._records.has_ended():
                    await self._end_together(membership)
                    return
                view = await self._records.view()
                answered_at_s = anyio.current_time()
                is_late = answered_at_s > begun_s + ENDING_S
                is_last = etcd_membership.is_last(membership.id, view.members)
                if is_late and is_last and not await self._records.leader():
                    return
                if is_late and not is_last:
                    for each in etcd_membership.unseated(view.before, view.members, view.after):
                        await self._client.remove_member(each.id)
                    if any(each.id == membership.id for each in view.members):  # Else it was, before a call failed.
                        await self._client.remove_member(membership.id)
                    await self._client.revoke(membership.lease)
                    return
            await pause(LEAVE_AGAIN_S, why="nothing tells when the leader has ended")

    async def _end_together(self, membership: Membership) -> None:
        """Gives up the seat, and waits until all have, so that each member learns of the end while etcd answers."""
        with suppress(*NO_ANSWER), anyio.move_on_after(ENDING_S):
            await self._client.revoke(membership.lease)
            while await self._records.seats():
                await pause(LEAVE_AGAIN_S, why="nothing tells when another node has ended")
