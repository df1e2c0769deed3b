"""How does a leaf or the root take connections from other nodes?

As a job's leader does: connections prove themselves by their first bytes, or wait outside
(edges/peers/handshake/acceptor.py).
"""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio

from supervisor.edges.peers.codec.cluster_frames import ClusterProtocolError
from supervisor.edges.peers.handshake.acceptor import Acceptor
from supervisor.edges.peers.transport import leader_listener
from supervisor.edges.peers.transport.cluster_line import INTRODUCTION_BYTES_MAX, Line, LinkLostError
from supervisor.edges.peers.transport.cluster_link import PeerAddress
from supervisor.edges.peers.transport.cluster_session import SessionError
from supervisor.edges.peers.transport.cluster_tls import LeadersTls, Tls, token_of
from supervisor.edges.peers.transport.preamble import key_of
from supervisor.errors import ConfigurationError
from supervisor.programs.log_service import log_hello_exchange
from supervisor.programs.log_service.log_receiving import LogReceiver

HANDSHAKE_S = 10.0
LOST_MS = 10_000  # a caller whose machine has confirmed nothing for so long is lost
PORTS_OF_ROOT = 1024

_log = logging.getLogger("holdfast.logs")


class TierListener:
    """Takes callers' connections and gives them to the receiver."""

    def __init__(self, job_id: str, tls: Tls | None, receiver: LogReceiver) -> None:
        self._job_id = job_id
        self._receiver = receiver
        self._tls = LeadersTls(tls)
        token = token_of(tls)
        self._acceptor = Acceptor(
            self._serve, preamble_key=key_of(token), has_token=bool(token), has_certificates=tls is not None
        )

    @asynccontextmanager
    async def serving(self, address: PeerAddress) -> AsyncGenerator[None]:
        """Serves within the block. Raises ConfigurationError if the address is not available."""
        listeners = await _listen(address)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._acceptor.run, listeners)
                tasks.start_soon(self._receiver.run)
                yield
                tasks.cancel_scope.cancel()
        finally:
            self._tls.close()

    async def _serve(self, accepted: socket.socket) -> bool:
        """Does the handshake, and returns whether it succeeded."""
        line = Line(
            pipe=self._tls.pipe(), greeting=log_hello_exchange.greeting(), frame_bytes_max=INTRODUCTION_BYTES_MAX
        )
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, LOST_MS)
        where, why, is_held = line, "the log server ends", False
        try:
            with anyio.fail_after(HANDSHAKE_S):
                await leader_listener.hold_accepted(line, accepted)
                where = line.address("peername")
                caller = await log_hello_exchange.admit(line, self._job_id)
            self._receiver.hold(line, caller)
            is_held = True
        except TimeoutError:
            why = "it did not identify itself in time"
        except (LinkLostError, SessionError, ClusterProtocolError, OSError) as error:
            why = str(error)
            if line.distrust:
                await self._tls.read_again()
        finally:
            if not is_held:
                _log.warning("a connection from %s is refused: %s", where, why)
                line.end(why, says_all=True)
        return is_held


async def _listen(address: PeerAddress) -> list[socket.socket]:
    try:
        listeners = await leader_listener.listen(address, everywhere=not address.host)
    except OSError as error:
        why = f"{(error.strerror or str(error)).lower()}; choose another --ft-log-server-port"
        if error.errno == errno.EACCES and address.port < PORTS_OF_ROOT:
            why = (
                f"ports below {PORTS_OF_ROOT} are only for root here, and this is uid {os.geteuid()}; choose a "
                f"--ft-log-server-port of {PORTS_OF_ROOT} or above"
            )
        raise ConfigurationError(f"cannot listen at {address}: {why}") from error
    if listeners is None:
        raise ConfigurationError(
            f"cannot listen at {address}: it is in use or not an address of this node; check --ft-log-server-port"
        )
    return listeners
