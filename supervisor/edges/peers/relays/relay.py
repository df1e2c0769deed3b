"""How does a node forward other nodes' messages to the leader of their job, which then needs fewer connections?

It does not read them. It handles the nodes' handshakes and heartbeats itself: it answers a node's heartbeat once the
leader knows that the node was heard. If the relay ends or loses the leader, its nodes connect elsewhere.
"""

from __future__ import annotations

import logging
import socket
from functools import partial

import anyio
from anyio.abc import TaskGroup

from supervisor.core.election import link_silence
from supervisor.edges.peers.codec.cluster_frames import ClusterProtocolError
from supervisor.edges.peers.handshake import hello_exchange
from supervisor.edges.peers.handshake.acceptor import Acceptor
from supervisor.edges.peers.handshake.hello_exchange import Who
from supervisor.edges.peers.relays.multiplexer import Kind, Multiplexer
from supervisor.edges.peers.relays.relay_downstream import TICK
from supervisor.edges.peers.transport import cluster_link, leader_listener
from supervisor.edges.peers.transport.cluster_line import INTRODUCTION_BYTES_MAX, Line, LinkLostError
from supervisor.edges.peers.transport.cluster_session import SessionError
from supervisor.edges.peers.transport.cluster_tls import LeadersTls, Tls, token_of
from supervisor.ports.timed_waits import pause

TICK_S = 0.5  # between two reports to the leader about the nodes heard
UNSENT_BYTES_MAX = 4 * 1024 * 1024  # waiting for a node that does not read; more, and its connection ends

_log = logging.getLogger("holdfast.cluster")


class Relay:
    def __init__(self, who: Who, *, tls: Tls | None, preamble_key: bytes) -> None:
        """`preamble_key`: the leader's."""
        self._who = who
        self._tls = LeadersTls(tls)
        self._children: dict[int, Multiplexer] = {}
        self._beats: dict[int, bytes] = {}  # the newest of each node, not reported to the leader yet
        self._told: dict[int, dict[int, bytes]] = {}  # by tick: reported, but not answered yet
        self._tick = 0
        self._last = 0  # channel
        self._upstream: Multiplexer | None = None
        self._acceptor = Acceptor(
            self._serve, preamble_key=preamble_key, has_token=bool(token_of(tls)), has_certificates=tls is not None
        )
        self._tasks: TaskGroup | None = None

    async def run(self, upstream: Line, listeners: list[socket.socket]) -> None:
        """Runs until the leader is lost, or it is cancelled. Closes all connections."""
        try:
            self._upstream = Multiplexer(upstream, on_part=self._hear_leader, on_end=lambda _: None)
            async with anyio.create_task_group() as self._tasks:
                self._tasks.start_soon(self._acceptor.run, listeners)
                self._tasks.start_soon(self._tell, upstream)
                why = await upstream.until_ended()
                _log.info("this node is no longer a relay of job %s: %s", self._who.job_id, why)
                self._tasks.cancel_scope.cancel()
        finally:
            self._tls.close()
            upstream.end("the relay ends", says_all=True)
            for child in list(self._children.values()):
                child.line.end("the relay has lost the leader", says_all=True)

    # --- the leader ------------------------------------------------------------------------------------------------

    async def _tell(self, upstream: Line) -> None:
        assert self._upstream is not None
        while True:
            await pause(TICK_S, why="what all nodes have said since then is told at once")
            heard_at_s, now_s = upstream.heard_at_s, anyio.current_time()
            if link_silence.death(heard_at_s=heard_at_s + TICK_S, waits_since_s=None, now_s=now_s):
                upstream.end(link_silence.silence(heard_at_s, now_s))
                return
            self._tick += 1
            beats, self._beats = self._beats, {}
            self._told[self._tick] = beats
            told = b"".join([TICK.pack(self._tick), *(TICK.pack(channel) for channel in beats)])
            self._upstream.put(Kind.BEAT, 0, told)

    def _hear_leader(self, kind: Kind, channel: int, data: bytes) -> None:
        if kind is Kind.BEAT:
            self._pass_answer(data)
            return
        child = self._children.get(channel)
        if child is None:
            return
        if kind is Kind.CLOSE:
            child.line.end("the leader has ended it", says_all=True)
        elif child.line.unsent_bytes > UNSENT_BYTES_MAX:
            child.line.end("it reads nothing")
        else:
            child.put(kind, 0, data)

    def _pass_answer(self, data: bytes) -> None:
        if len(data) != TICK.size:
            raise ClusterProtocolError("cannot read a heartbeat of the leader")
        (answered,) = TICK.unpack(data)
        for tick in [each for each in self._told if each <= answered]:
            for channel, beat in self._told.pop(tick).items():
                child = self._children.get(channel)
                if child is not None:
                    child.put(Kind.BEAT, 0, beat)

    # --- nodes -----------------------------------------------------------------------------------------------------

    async def _serve(self, accepted: socket.socket) -> bool:
        line = Line(pipe=self._tls.pipe(), greeting=hello_exchange.greeting(), frame_bytes_max=INTRODUCTION_BYTES_MAX)
        why, is_held = "the relay ends", False
        try:
            with anyio.fail_after(cluster_link.HANDSHAKE_S):
                await leader_listener.hold_accepted(line, accepted)
                hello = hello_exchange.read(line, await line.receive())
                if hello.job_id != self._who.job_id:
                    raise SessionError(f"it wants job {hello.job_id}")
                hello_exchange.welcome(line, hello, term=0)
            self._hold(line)
            is_held = True
        except (LinkLostError, SessionError, ClusterProtocolError, TimeoutError, OSError) as error:
            why = str(error)
            _log.debug("a connection to the relay of job %s has ended: %s", self._who.job_id, why)
            if line.distrust:
                await self._tls.read_again()
        except Exception:  # noqa: BLE001 - the bulkhead: an error of one connection leaves the others alone
            _log.warning("a connection to the relay of job %s has met a defect", self._who.job_id, exc_info=True)
        finally:
            if not is_held:
                line.end(why, says_all=True)
        return is_held

    def _hold(self, line: Line) -> None:
        assert self._upstream is not None
        self._last += 1
        channel = self._last
        self._upstream.put(Kind.OPEN, channel)
        multiplexer = Multiplexer(line, on_part=partial(self._hear_node, channel), on_end=partial(self._lose, channel))
        if not line.ended:
            self._children[channel] = multiplexer

    def _hear_node(self, channel: int, kind: Kind, _: int, data: bytes) -> None:
        assert self._upstream is not None
        if kind is Kind.BEAT:
            self._beats[channel] = data
        elif kind is Kind.DATA:
            self._upstream.put(Kind.DATA, channel, data)
        elif kind is Kind.CLOSE and channel in self._children:
            self._children[channel].line.end("the node has ended it")

    def _lose(self, channel: int, why: str) -> None:
        del why
        assert self._upstream is not None
        self._beats.pop(channel, None)
        self._children.pop(channel, None)
        self._upstream.put(Kind.CLOSE, channel)
