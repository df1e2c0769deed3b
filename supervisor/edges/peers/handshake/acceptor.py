"""How does a connection get from a listening socket to its handshake with a leader or relay while others connect?

All connections are accepted at once, and wait here: for their first bytes, which show whether they may come in at all,
then for a place (core/cluster/handshake_admission.py). In a job with a token, they must prove that they know it. In a
job without token and certificates, the kernel must say that the same user, or root, has the other end. With
certificates alone, a node that was admitted once proves that.
"""

from __future__ import annotations

import asyncio  # anyio has no callbacks
import errno
import ipaddress
import itertools
import logging
import resource
import socket
from collections.abc import Awaitable, Callable, Sequence

import anyio
import anyio.lowlevel
import msgspec
from anyio.abc import TaskGroup

from supervisor.core.cluster.handshake_admission import Admission
from supervisor.edges.machine.processes.tcp_peer_user import refusal_of_user, stranger_at
from supervisor.edges.peers.handshake.hello_exchange import STRANGER
from supervisor.edges.peers.transport import preamble
from supervisor.edges.peers.transport.preamble import MAY_BE_REDIRECTED, Place, Proofs
from supervisor.ports.timed_waits import pause

TAKEN_MAX = 32  # connections that are accepted before others have their turn
ACCEPT_AGAIN_S = 0.2
WAITING_MAX = 2048  # connections without a place
WAITING_SHARE = 0.25  # of the descriptors of this process that they may take
SILENT_S = 10.0  # a connection whose first bytes have not come by then is closed
FAILED_S = 1.0  # a place stays taken after a handshake that failed, so that failing ones cost little
TOLD_AGAIN_S = 10.0  # between two warnings of refused connections
NETWORK_BITS = 64  # of an IPv6 address: its owner has all of its network

_log = logging.getLogger("holdfast.cluster")

Serve = Callable[[socket.socket], Awaitable[bool]]


class _Waiting(msgspec.Struct):
    sock: socket.socket
    source: str
    first: bytearray = msgspec.field(default_factory=bytearray)
    until: asyncio.TimerHandle | None = None  # while the loop watches for its first bytes


class Acceptor:
    """Accepts connections of one job. Call its methods only in the event loop's thread."""

    def __init__(
        self,
        serve: Serve,
        *,
        preamble_key: bytes,
        has_token: bool,
        has_certificates: bool,
        choose: Callable[[], Place | None] | None = None,
    ) -> None:
        """`serve` does the handshake, and returns whether it succeeded. `preamble_key`: see preamble.key_of. `choose`
        returns where a node is redirected, if at all; None: never redirect."""
        self._serve = serve
        self._proofs = Proofs(preamble_key)
        self._needs_proof = has_token
        self._has_certificates = has_certificates
        self._choose = choose
        self._loop = asyncio.get_running_loop()
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._admission = Admission(waiting_max=min(WAITING_MAX, int(soft * WAITING_SHARE)))
        self._keys = itertools.count()
        self._waiting: dict[int, _Waiting] = {}
        self._told_at_s = -TOLD_AGAIN_S
        self._has_room: anyio.Event | None = None  # belongs to the waiting listeners
        self._tasks: TaskGroup | None = None

    async def run(self, listeners: Sequence[socket.socket]) -> None:
        """Runs until cancelled; then closes the listeners and all connections that wait."""
        try:
            async with anyio.create_task_group() as self._tasks:
                for listener in listeners:
                    self._tasks.start_soon(self._accept, listener)
        finally:
            for listener in listeners:
                listener.close()
            for waiting in self._waiting.values():
                self._unwatch(waiting)
                waiting.sock.close()

    # --- accepting -------------------------------------------------------------------------------------------------

    async def _accept(self, listener: socket.socket) -> None:
        """Takes all connections that already wait: a turn of the event loop for each would cost as much."""
        for taken in itertools.count(1):
            while not self._admission.has_room:  # All that wait are members, whose turn comes.
                self._has_room = self._has_room or anyio.Event()
                await self._has_room.wait()
            try:
                sock = _accept_now(listener) or (await self._loop.sock_accept(listener))[0]
                self._arrive(sock)
            except OSError as error:
                _log.warning("cannot take a node's connection: %s; the node tries again", error.strerror)
                if error.errno in (errno.EMFILE, errno.ENFILE) and (key := self._admission.least()) is not None:
                    self._drop(key)
                await pause(ACCEPT_AGAIN_S, why="nothing tells when there are descriptors again")
            if taken % TAKEN_MAX == 0:
                await anyio.lowlevel.checkpoint()

    def _arrive(self, sock: socket.socket) -> None:
        key = next(self._keys)
        try:
            source = source_of(str(sock.getpeername()[0]))
        except OSError:
            sock.close()  # It is gone already.
            return
        self._waiting[key] = _Waiting(sock, source)
        self._admission.arrive(key, source)
        self._read(key)
        self._close_surplus()

    def _close_surplus(self) -> None:
        while (key := self._admission.surplus()) is not None:
            self._drop(key)

    # --- the first bytes -------------------------------------------------------------------------------------------

    def _read(self, key: int) -> None:
        """Reads the first bytes, as far as they have come."""
        waiting = self._waiting[key]
        try:
            has_all = preamble.read_first(waiting.sock, waiting.first)
        except OSError:
            self._drop(key)
            return
        if has_all:
            self._unwatch(waiting)
            self._judge(key, waiting)
        elif waiting.until is None:
            waiting.until = self._loop.call_later(SILENT_S, self._drop, key)
            self._loop.add_reader(waiting.sock, self._read, key)

    def _judge(self, key: int, waiting: _Waiting) -> None:
        kind = preamble.kind_of(bytes(waiting.first))
        why, is_member = self._may_come_in(waiting) if kind else ("it is not a node", False)
        place = self._choose() if kind == MAY_BE_REDIRECTED and not why and self._choose is not None else None
        if why or place is not None:
            if why:
                self._tell_refusal(waiting.source, why)
                preamble.refuse(waiting.sock, why)
            elif place is not None:
                preamble.redirect(waiting.sock, place)
            self._drop(key)
        else:
            self._admission.speak(key, is_member=is_member)
            self._admit()

    def _may_come_in(self, waiting: _Waiting) -> tuple[str, bool]:
        """Returns why not, or "", and whether it is a member of the job."""
        is_proven = self._proofs.hold(bytes(waiting.first))
        if self._needs_proof or self._has_certificates:
            return STRANGER if self._needs_proof and not is_proven else "", is_proven
        try:
            whose = stranger_at(waiting.sock.getpeername(), waiting.sock.getsockname())
        except OSError as error:
            return str(error), False
        return (refusal_of_user(whose) if whose else ""), True

    def _tell_refusal(self, source: str, why: str) -> None:
        """Warns now and then, since a refused node may try again as often as it likes."""
        now_s = self._loop.time()
        is_due = now_s >= self._told_at_s + TOLD_AGAIN_S
        self._told_at_s = now_s if is_due else self._told_at_s
        _log.log(logging.WARNING if is_due else logging.DEBUG, "a connection from %s is refused: %s", source, why)

    def _drop(self, key: int) -> None:
        """Closes a connection that has no place."""
        waiting = self._waiting.pop(key)
        self._unwatch(waiting)
        waiting.sock.close()
        self._admission.leave(key)
        self._tell_room()

    def _unwatch(self, waiting: _Waiting) -> None:
        if waiting.until is not None:
            waiting.until.cancel()
            waiting.until = None
            self._loop.remove_reader(waiting.sock)

    # --- places ----------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        assert self._tasks is not None
        while (key := self._admission.admit()) is not None:
            self._tasks.start_soon(self._serve_one, key, self._waiting.pop(key))
        self._tell_room()

    async def _serve_one(self, key: int, waiting: _Waiting) -> None:
        try:
            if not await self._serve(waiting.sock):
                await pause(FAILED_S, why="its address has its next handshake after that")
        finally:
            self._admission.leave(key)
        self._admit()

    def _tell_room(self) -> None:
        if self._has_room is not None and self._admission.has_room:
            self._has_room.set()
            self._has_room = None


def _accept_now(listener: socket.socket) -> socket.socket | None:
    try:
        accepted, _ = listener.accept()
    except BlockingIOError:
        return None
    accepted.setblocking(False)
    return accepted


def source_of(host: str) -> str:
    """Returns the address or the network that counts as one."""
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host.partition("%")[0])
    return str(ipaddress.IPv6Network((int(address), NETWORK_BITS), strict=False))
