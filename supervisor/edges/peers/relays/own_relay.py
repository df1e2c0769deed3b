"""How does a node become a relay of its job, as the leader wants, and what if it cannot?"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import anyio

from supervisor.edges.peers.codec.cluster_frames import ClusterProtocolError
from supervisor.edges.peers.handshake import hello_exchange
from supervisor.edges.peers.handshake.hello_exchange import Who
from supervisor.edges.peers.relays.relay import Relay
from supervisor.edges.peers.transport import leader_listener
from supervisor.edges.peers.transport.cluster_line import Line, LinkLostError
from supervisor.edges.peers.transport.cluster_session import SessionError
from supervisor.edges.peers.transport.cluster_tls import Tls

INTRODUCED_S = 30.0  # from the connection to the last message of the handshake

_log = logging.getLogger("holdfast.cluster")


class OwnRelay:
    def __init__(self, who: Who, *, tls: Tls | None, preamble_key: bytes) -> None:
        self._who = who
        self._tls = tls
        self._preamble_key = preamble_key

    async def serve(self, line: Line, own_ip: str, connect: Callable[[Line], Awaitable[None]]) -> None:
        """Serves until the leader ends it. `connect` connects the line to the leader.

        If this node cannot be reached, other nodes find another way.
        """
        try:
            listener, port = leader_listener.listen_beside(own_ip)
            with listener:
                await connect(line)
                with anyio.fail_after(INTRODUCED_S):
                    first = await line.receive()
                    hello_exchange.check_user(line, has_secrets=self._tls is not None)
                    hello_exchange.check_greeting(first)
                    await hello_exchange.introduce(line, self._who, relay_port=port)
                await Relay(self._who, tls=self._tls, preamble_key=self._preamble_key).run(line, [listener])
        except (
            OSError, TimeoutError, LinkLostError, SessionError, ClusterProtocolError, hello_exchange.StrangerError,
            hello_exchange.RefusalError,
        ) as error:  # fmt: skip
            _log.warning("this node cannot be a relay of job %s: %s", self._who.job_id, error)
        finally:
            line.end("the relay ends", says_all=True)
