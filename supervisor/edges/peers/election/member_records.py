"""Which records about its members does the job's own etcd hold, and how are they read and written?

`members` says to all nodes who they are; an etcd without it is not in use yet. `seat-N` belongs to the lease of the
node that has that seat. `moved` is written by nodes of a job that runs, into an etcd that is not in use yet: it says
where theirs is. `.job` says to nodes of other jobs whose etcd they have found.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from holdfast_wire.v1 import etcd_pb2 as etcd

from supervisor.core.etcd_membership import SEAT_TTL_S, Member, Published, Seat
from supervisor.edges.peers.election.etcd_backend import leader_in
from supervisor.edges.peers.election.etcd_client import EtcdClient
from supervisor.edges.peers.election.etcd_leftovers import FOLDER as ENDED
from supervisor.ports.rendezvous_backend import BackendRefusedError

Record = TypeVar("Record", Published, Seat)


class Found(msgspec.Struct, frozen=True):
    """What an etcd says about members. Both None: it is not in use yet."""

    cluster_id: int
    revision: int
    members: Published | None = None
    moved: Published | None = None
    job_id: str = ""  # whose etcd it is; "": nobody's yet


class View(msgspec.Struct, frozen=True):
    """The seats before and after the members were listed, and those."""

    cluster_id: int
    before: tuple[Seat, ...]
    members: tuple[Member, ...]
    after: tuple[Seat, ...]


class MemberRecords:
    """The records of one job, read and written through one client. Each method raises as the client does."""

    def __init__(self, client: EtcdClient, prefix: str, job_id: str) -> None:
        self.client = client
        self._job_id = job_id
        folder = f"{prefix}/{job_id}"
        self.members_key, self._moved_key = f"{folder}/members".encode(), f"{folder}/moved".encode()
        self._leader_key, self._seat_keys = f"{folder}/leader".encode(), f"{folder}/seat-".encode()
        self._ledger_key, self._job_key = f"{folder}/ledger".encode(), f"{prefix}/.job".encode()
        self._ended_key = f"{prefix}/{ENDED}/{job_id}".encode()

    async def found(self) -> Found:
        told = await self._read(self.members_key, self._moved_key, self._job_key)
        *values, jobs = (each.response_range.kvs for each in told.responses)
        members, moved = (published_in(each[0].value) if each else None for each in values)
        job_id = jobs[0].value.decode(errors="replace") if jobs else ""
        return Found(told.header.cluster_id, told.header.revision, members, moved, job_id)

    async def view(self) -> View:
        before = await self.seats()
        told = await self.client.members()
        members = tuple(
            Member(each.ID, next(iter(each.peerURLs), ""), next(iter(each.clientURLs), ""), each.isLearner, each.name)
            for each in told.members
        )
        return View(told.header.cluster_id, before, members, await self.seats())

    async def seats(self) -> tuple[Seat, ...]:
        told = await self.client.range(self._seat_keys, end=self._seat_keys[:-1] + b".")
        return tuple(_decoded(each.value, Seat) for each in told.kvs)

    async def take_seat(self, seat: Seat) -> int:
        """Takes the seat, and returns its lease; 0: another node has it."""
        lease, _ = await self.client.grant(SEAT_TTL_S)
        key = self._seat_keys + str(seat.number).encode()
        if await self.client.replace(key, msgspec.json.encode(seat), lease=lease, changed_at=0):
            return lease
        await self.client.revoke(lease)
        return 0

    async def begin(self, seat: Seat, members: Published) -> int:
        """Puts this etcd to use. Returns the seat's lease; 0: the job runs with another one."""
        lease, _ = await self.client.grant(SEAT_TTL_S)
        key = self._seat_keys + str(seat.number).encode()
        puts = (
            etcd.PutRequest(key=self.members_key, value=msgspec.json.encode(members)),
            etcd.PutRequest(key=key, value=msgspec.json.encode(seat), lease=lease),
            etcd.PutRequest(key=self._job_key, value=self._job_id.encode()),
        )
        return lease if await self._if_absent(self._moved_key, *puts) else 0

    async def publish(self, members: Published) -> None:
        """Says who the members are, unless another member says so at this moment."""
        told = await self.client.range(self.members_key)
        changed_at = told.kvs[0].mod_revision if told.kvs else 0
        await self.client.replace(self.members_key, msgspec.json.encode(members), lease=0, changed_at=changed_at)

    async def say_moved(self, members: Published) -> bool:
        """Says in an etcd that is not in use where the job's is. Returns False if it is in use now."""
        return await self._if_absent(
            self.members_key, etcd.PutRequest(key=self._moved_key, value=msgspec.json.encode(members))
        )

    async def leader(self) -> str:
        """Returns the node that leads the job; "": none does."""
        found = (await self.client.range(self._leader_key)).kvs
        return leader_in(found[0]).node if found else ""

    async def has_ended(self) -> bool:
        """Returns whether the job has ended: nobody leads it, and the mark of its end is as new as the ledger."""
        told = await self._read(self._leader_key, self._ended_key, self._ledger_key)
        leader, mark, ledger = ([one.mod_revision for one in each.response_range.kvs] for each in told.responses)
        return not leader and mark != [] and mark == ledger

    async def _read(self, *keys: bytes) -> etcd.TxnResponse:
        reads = [etcd.RequestOp(request_range=etcd.RangeRequest(key=each)) for each in keys]
        return await self.client.txn(etcd.TxnRequest(success=reads))

    async def _if_absent(self, key: bytes, *puts: etcd.PutRequest) -> bool:
        compare = etcd.Compare(target=etcd.Compare.CREATE, key=key, create_revision=0)
        success = [etcd.RequestOp(request_put=each) for each in puts]
        return (await self.client.txn(etcd.TxnRequest(compare=[compare], success=success))).succeeded


def published_in(value: bytes) -> Published:
    """Raises BackendRefusedError."""
    return _decoded(value, Published)


def _decoded(value: bytes, kind: type[Record]) -> Record:
    try:
        return msgspec.json.decode(value, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise BackendRefusedError("the job's own etcd has a record that can't be read") from None
