"""Which member of etcd is asked, and which one next if it does not answer?

A call goes to the member that answered the last one. If it can't be reached, says that it can't serve, or keeps a call
waiting, the next calls go to the others first; a call itself is never repeated. Connections stay open.
"""

from __future__ import annotations

import errno
import math
import ssl
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from socket import SOCK_STREAM

import anyio

from supervisor.edges.peers.election.etcd_member_connection import Endpoint, Member
from supervisor.edges.peers.transport.name_lookup import Found, look_up
from supervisor.edges.rpc.grpc_client import ClientCall, GrpcClient, Metadata
from supervisor.edges.rpc.statuses import CallError, Status

NEXT_AFTER_S = 0.25  # without an answer of one member, the next one is asked for a connection, too
SLOW_S = 0.5  # a call that was given up after that counts against its member
CANNOT_SERVE = (Status.UNAVAILABLE, Status.DEADLINE_EXCEEDED, Status.RESOURCE_EXHAUSTED)  # this member; another may
NO_WAY = (errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # to an IPv6 address, say; the name has others
LOOK_UP_AGAIN_S = 10.0
LOOK_UP_S = 0.5  # if addresses are known already: less than a renewal of the lead has (lead_renewal.py)


class EtcdChannel:
    """The members of one etcd. Use it in one event loop only."""

    def __init__(self, endpoints: Sequence[Endpoint], tls: ssl.SSLContext | None) -> None:
        self._endpoints = endpoints
        self._tls = tls
        self._members: list[Member] = []  # the one to be asked first
        self._looking_up = anyio.Lock()
        self._is_outdated = True  # the list of members
        self._looked_up_at_s = -math.inf

    async def unary(self, method: str, request: bytes, *, timeout_s: float, metadata: Metadata = ()) -> bytes:
        """Returns the one answer. Raises CallError."""
        member = None
        try:
            with anyio.fail_after(timeout_s):
                member, client = await self._connected()
                with self._judging(member):
                    return await client.unary(method, request, timeout_s=timeout_s, metadata=metadata)
        except TimeoutError:
            raise CallError(Status.DEADLINE_EXCEEDED, _late(member, timeout_s)) from None

    @asynccontextmanager
    async def call(self, method: str, *, connect_s: float, metadata: Metadata = ()) -> AsyncGenerator[ClientCall]:
        """Begins a call without a deadline, and gives it up at the end of the block. Raises CallError."""
        try:
            with anyio.fail_after(connect_s):
                member, client = await self._connected()
        except TimeoutError:
            raise CallError(Status.UNAVAILABLE, _late(None, connect_s)) from None
        try:
            with client.call(method, metadata=metadata) as call:
                yield call
        except CallError as error:
            self._judge(member, error)
            raise

    def move_to(self, endpoints: Sequence[Endpoint]) -> None:
        """Makes these the members. A connection to one that stays goes on."""
        if list(endpoints) != list(self._endpoints):
            self._endpoints = tuple(endpoints)
            self._is_outdated, self._looked_up_at_s = True, -math.inf

    def avoid_first(self) -> None:
        """Asks the others first: the member that has answered is not one of those that are meant."""
        if self._members:
            self._ask_later(self._members[0])

    @property
    def is_refused(self) -> bool:
        """Whether the hosts answered the last call that nobody listens there. A silent host says nothing."""
        errors = [each.error for each in self._members]
        told = [each for each in errors if each is None or each.errno not in NO_WAY]
        return told != [] and all(isinstance(each, ConnectionRefusedError) for each in told)

    def close(self) -> None:
        """Closes all connections. No call may be in progress."""
        for member in self._members:
            member.close()

    # --- which member ----------------------------------------------------------------------------------------------

    async def _connected(self) -> tuple[Member, GrpcClient]:
        """Returns the first member that answers. Raises CallError."""
        if self._is_outdated:
            await self._look_up()
        first = self._members[0]
        if (ready := first.ready) is not None:
            return first, ready
        found: list[tuple[Member, GrpcClient]] = []
        errors: list[str] = []
        try:
            async with anyio.create_task_group() as tasks:

                async def connect(member: Member, over: anyio.Event) -> None:
                    try:
                        found.append((member, await member.connected()))
                        tasks.cancel_scope.cancel()
                    except CallError as error:
                        errors.append(str(error))
                    over.set()

                for member in tuple(self._members):
                    over = anyio.Event()
                    tasks.start_soon(connect, member, over)
                    with anyio.move_on_after(NEXT_AFTER_S):
                        await over.wait()
        finally:
            self._is_outdated |= not found  # Also if the call was given up: they may have other addresses by now.
        if not found:
            raise CallError(Status.UNAVAILABLE, "; ".join(errors))
        self._members.sort(key=lambda each: each is not found[0][0])
        return found[0]

    @contextmanager
    def _judging(self, member: Member) -> Generator[None]:
        begun_s = anyio.current_time()
        try:
            yield
        except CallError as error:
            self._judge(member, error)
            raise
        except BaseException:  # given up: raised again
            if anyio.current_time() - begun_s >= SLOW_S:
                self._ask_later(member)
            raise

    def _judge(self, member: Member, error: CallError) -> None:
        if error.status in CANNOT_SERVE:
            self._ask_later(member)

    def _ask_later(self, member: Member) -> None:
        self._members.sort(key=lambda each: each is member)

    # --- addresses -------------------------------------------------------------------------------------------------

    async def _look_up(self) -> None:
        """Looks the endpoints up. One that can't be looked up keeps its known addresses. Raises CallError."""
        async with self._looking_up:
            now_s = anyio.current_time()
            if not self._is_outdated or (self._members and now_s < self._looked_up_at_s + LOOK_UP_AGAIN_S):
                return
            of_endpoint: dict[Endpoint, list[Member]] = {}
            errors: list[str] = []
            endpoints = self._endpoints

            async def find(endpoint: Endpoint) -> None:
                known = of_endpoint[endpoint]
                try:
                    with anyio.move_on_after(LOOK_UP_S if known else math.inf):
                        found = await look_up(endpoint.host, endpoint.port, kind=SOCK_STREAM)
                        of_endpoint[endpoint] = [self._member(endpoint, each, known) for each in found]
                except OSError as error:
                    errors.append(f"cannot look up {endpoint.host}: {error.strerror or error}")

            async with anyio.create_task_group() as tasks:
                for endpoint in endpoints:
                    of_endpoint[endpoint] = [each for each in self._members if each.endpoint == endpoint]
                    tasks.start_soon(find, endpoint)
            members = [each for endpoint in endpoints for each in of_endpoint[endpoint]]
            for each in self._members:
                if each not in members:
                    await each.drop()
            asked_first = self._members[:1]
            self._members = sorted(members, key=lambda each: each not in asked_first)
            if not members:
                raise CallError(Status.UNAVAILABLE, "; ".join(errors))
            if endpoints is self._endpoints:
                self._is_outdated, self._looked_up_at_s = False, now_s

    def _member(self, endpoint: Endpoint, found: Found, known: Sequence[Member]) -> Member:
        same = (each for each in known if each.found[-1] == found[-1])
        return next(same, None) or Member(endpoint, found, self._tls)


def _late(member: Member | None, timeout_s: float) -> str:
    has_not = f"{member.name} has not" if member is not None else "no member has"
    return f"{has_not} answered within {timeout_s:g} s"
