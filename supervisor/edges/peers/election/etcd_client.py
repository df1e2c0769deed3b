"""How are the few calls of etcd made that an election needs?

A thin client of API v3, with our own messages (proto/holdfast_wire/v1/etcd.proto). Each call has a deadline. Temporary
failures raise BackendUnavailableError; those that a person must fix raise BackendRefusedError.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Sequence
from typing import TypeVar

import msgspec
from google.protobuf.message import DecodeError, Message
from holdfast_wire.v1 import etcd_pb2 as etcd

from supervisor.edges.peers.election.etcd_channel import EtcdChannel
from supervisor.edges.peers.election.etcd_member_connection import Endpoint
from supervisor.edges.rpc.grpc_client import Metadata
from supervisor.edges.rpc.statuses import CallError, Status
from supervisor.ports.rendezvous_backend import BackendRefusedError, BackendUnavailableError

SERVICE = "/etcdserverpb"
CALL_TIMEOUT_S = 2.0
REFUSED = frozenset({Status.PERMISSION_DENIED, Status.UNIMPLEMENTED})
TOKEN_WORDS = ("invalid auth token", "user name is empty")  # etcd's words; its tokens last a few minutes
OLD_TOKEN_WORDS = "revision of auth store is old"  # of a signed token, once any user or role has changed
PASSWORD_WORDS = ("authentication failed", "user name not found", "invalid user ID or password")

Answer = TypeVar("Answer", bound=Message)


class Login(msgspec.Struct, frozen=True):
    user: str
    password: str


class CompactedError(Exception):
    """Raised if the revision to be watched is gone: the caller must read the current state."""


class EtcdClient:
    """A client of one etcd cluster. Use it in one event loop only."""

    def __init__(
        self, endpoints: Sequence[Endpoint], *, tls: ssl.SSLContext | None = None, login: Login | None = None
    ) -> None:
        self._channel = EtcdChannel(endpoints, tls)
        self._login = login
        self._token = ""
        self._cluster_id = 0  # answers of another cluster count for nothing; 0: not known

    def move_to(self, endpoints: Sequence[Endpoint], cluster_id: int) -> None:
        """Makes these the members that are asked, all of them of that cluster. Connections to others end."""
        self._cluster_id = cluster_id
        self._channel.move_to(endpoints)

    async def txn(self, request: etcd.TxnRequest) -> etcd.TxnResponse:
        return await self._call("KV/Txn", request, etcd.TxnResponse)

    async def range(self, key: bytes, *, end: bytes = b"", oldest: int = 0) -> etcd.RangeResponse:
        """Reads keys linearizably, as the cluster's majority has them. `end`: all keys before it.

        `oldest`: at most so many, those that have not changed for the longest time; 0: all, in order.
        """
        request = etcd.RangeRequest(key=key, range_end=end, limit=oldest)
        if oldest:
            request.sort_order, request.sort_target = etcd.RangeRequest.ASCEND, etcd.RangeRequest.MOD
        return await self._call("KV/Range", request, etcd.RangeResponse)

    async def remove(self, key: bytes, *others: bytes, changed_at: int) -> None:
        """Removes the key, and the others with it, unless it has changed since that revision."""
        deletes = [etcd.DeleteRangeRequest(key=each) for each in (key, *others)]
        compare = etcd.Compare(target=etcd.Compare.MOD, key=key, mod_revision=changed_at)
        success = [etcd.RequestOp(request_delete_range=each) for each in deletes]
        await self.txn(etcd.TxnRequest(compare=[compare], success=success))

    async def replace(self, key: bytes, value: bytes, *, lease: int, changed_at: int) -> bool:
        """Writes the key unless it has changed since that revision; 0: unless it exists. Returns whether it did."""
        put = etcd.PutRequest(key=key, value=value, lease=lease)
        compare = etcd.Compare(target=etcd.Compare.MOD, key=key, mod_revision=changed_at)
        told = await self.txn(etcd.TxnRequest(compare=[compare], success=[etcd.RequestOp(request_put=put)]))
        return told.succeeded

    async def grant(self, ttl_s: int) -> tuple[int, int]:
        """Grants a lease. Returns its id and its length in seconds, which the server may extend."""
        told = await self._call("Lease/LeaseGrant", etcd.LeaseGrantRequest(TTL=ttl_s), etcd.LeaseGrantResponse)
        return told.ID, told.TTL

    async def time_to_live(self, lease: int) -> etcd.LeaseTimeToLiveResponse:
        request = etcd.LeaseTimeToLiveRequest(ID=lease)
        return await self._call("Lease/LeaseTimeToLive", request, etcd.LeaseTimeToLiveResponse)

    async def revoke(self, lease: int) -> None:
        await self._call("Lease/LeaseRevoke", etcd.LeaseRevokeRequest(ID=lease), etcd.LeaseRevokeResponse)

    async def keep_alive(self, lease: int) -> bool:
        """Renews the lease. Returns False if there is no such lease any more."""
        request = etcd.LeaseKeepAliveRequest(ID=lease)  # a stream of one
        return (await self._call("Lease/LeaseKeepAlive", request, etcd.LeaseKeepAliveResponse)).TTL > 0

    async def members(self) -> etcd.MemberListResponse:
        """Lists the members as the one that is asked knows them; after `range`, at least as new as that."""
        return await self._call("Cluster/MemberList", etcd.MemberListRequest(), etcd.MemberListResponse)

    async def add_learner(self, peer_url: str) -> etcd.MemberAddResponse:
        """Adds a member that does not vote yet. Raises BackendUnavailableError also if there is one already."""
        request = etcd.MemberAddRequest(peerURLs=[peer_url], isLearner=True)
        return await self._call("Cluster/MemberAdd", request, etcd.MemberAddResponse)

    async def promote(self, member: int) -> None:
        """Lets a learner vote. Raises BackendUnavailableError also if it has not all data yet."""
        await self._call("Cluster/MemberPromote", etcd.MemberPromoteRequest(ID=member), etcd.MemberListResponse)

    async def remove_member(self, member: int) -> None:
        """Removes a member. Raises BackendUnavailableError also if too few would be left, or there is none."""
        await self._call("Cluster/MemberRemove", etcd.MemberRemoveRequest(ID=member), etcd.MemberListResponse)

    async def leading_member(self) -> int:
        """Returns the member that leads the others, as the one that is asked knows it; 0: none."""
        return (await self._call("Maintenance/Status", etcd.StatusRequest(), etcd.StatusResponse)).leader

    async def move_lead(self, member: int) -> None:
        """Makes another member lead the others. Only the one that leads now can do that: ask it alone."""
        request = etcd.MoveLeaderRequest(targetID=member)
        await self._call("Maintenance/MoveLeader", request, etcd.MoveLeaderResponse)

    async def watch(self, key: bytes, from_revision: int) -> AsyncGenerator[etcd.WatchResponse]:
        """Yields changes of one key, after an empty answer once the watch is set up. Raises CompactedError."""
        await self._log_in()
        create = etcd.WatchCreateRequest(key=key, start_revision=from_revision)
        try:
            async with self._channel.call(
                f"{SERVICE}.Watch/Watch", connect_s=CALL_TIMEOUT_S, metadata=self._metadata()
            ) as call:
                await call.send(etcd.WatchRequest(create_request=create).SerializeToString())
                while (answer := await call.receive()) is not None:
                    told = self._of_own(_read(etcd.WatchResponse, answer))
                    if told.compact_revision:
                        raise CompactedError
                    if told.canceled:
                        raise BackendUnavailableError(f"etcd has ended the watch: {told.cancel_reason}")
                    yield told
        except CallError as error:
            raise self._judged(error) from error
        raise BackendUnavailableError("etcd has ended the watch")

    @property
    def is_refused(self) -> bool:
        """Whether the hosts answered the last call that nobody listens there. A silent host says nothing."""
        return self._channel.is_refused

    def close(self) -> None:
        self._channel.close()

    async def _call(self, method: str, request: Message, kind: type[Answer]) -> Answer:
        await self._log_in()
        return await self._unary(method, request, kind, self._metadata())

    async def _unary(self, method: str, request: Message, kind: type[Answer], metadata: Metadata) -> Answer:
        try:
            answer = await self._channel.unary(
                f"{SERVICE}.{method}", request.SerializeToString(), timeout_s=CALL_TIMEOUT_S, metadata=metadata
            )
        except CallError as error:
            raise self._judged(error) from error
        return self._of_own(_read(kind, answer))

    def _of_own(self, answer: Answer) -> Answer:
        """Returns the answer if it is of the cluster that is meant."""
        header: object = getattr(answer, "header", None)
        if self._cluster_id and isinstance(header, etcd.ResponseHeader) and header.cluster_id != self._cluster_id:
            self._channel.avoid_first()
            raise BackendUnavailableError("a member of another etcd answers there")
        return answer

    async def _log_in(self) -> None:
        if self._login is None or self._token:
            return
        request = etcd.AuthenticateRequest(name=self._login.user, password=self._login.password)
        self._token = (await self._unary("Auth/Authenticate", request, etcd.AuthenticateResponse, ())).token

    def _metadata(self) -> Metadata:
        """Requires a leader: a member cut off from the majority then refuses instead of being silent."""
        return (("hasleader", "true"), *((("token", self._token),) if self._token else ()))

    def _judged(self, error: CallError) -> BackendUnavailableError | BackendRefusedError:
        text = (str(error) or Status(error.status).name).removeprefix("etcdserver: ")
        if any(words in text for words in (*TOKEN_WORDS, OLD_TOKEN_WORDS)) and self._login is not None:
            self._token = ""  # the next call fetches a new one
            return BackendUnavailableError(f"etcd: {text}")
        if error.status in REFUSED or any(words in text for words in (*TOKEN_WORDS, *PASSWORD_WORDS)):
            return BackendRefusedError(f"etcd refuses: {text}")
        return BackendUnavailableError(f"etcd: {text}")


def _read(kind: type[Answer], answer: bytes) -> Answer:
    try:
        return kind.FromString(answer)
    except DecodeError as error:
        raise BackendUnavailableError("etcd has sent an answer that can't be decoded") from error
