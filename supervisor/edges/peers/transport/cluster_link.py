"""How do messages go both ways between a node and the leader over successive connections?

The node sends heartbeats, and the leader answers (core/election/link_silence.py). The next message back confirms
received messages, at the latest after CONFIRM_S. Messages of one turn of the event loop go out at once, in one piece.
"""

from __future__ import annotations

import asyncio  # anyio has no callbacks, and thousands of tasks cost ten times as much
from collections import deque
from collections.abc import Callable

import anyio
import anyio.lowlevel
import msgspec

from supervisor.config.launch_values import join_endpoint
from supervisor.core.session_state import SessionState
from supervisor.edges.peers.codec import heartbeats
from supervisor.edges.peers.transport.cluster_line import UNSENT_BYTES_MAX, Line
from supervisor.edges.peers.transport.cluster_session import Arrivals, Outbox, numbered, read_numbered
from supervisor.edges.peers.transport.cooperative_batches import DelayedCalls

CONFIRM_S = 0.25
HANDSHAKE_S = 10.0  # from the connection to the last message of the handshake
ASIDES_BYTES_MAX = 8 * 1024 * 1024  # waiting to be sent; more is dropped

OnMessage = Callable[[bytes], None]


class Conversation:
    """The conversation of two processes."""

    __slots__ = (
        "_arrivals", "_asides", "_asides_bytes", "_confirm_later", "_confirmed", "_is_flush_due", "_is_held",
        "_is_parting", "_is_unkept", "_keep", "_kept_received", "_line", "_loop", "_on_beat",
        "_on_message", "_on_unkept", "_outbox", "_owes_confirmation", "_settled", "_told_received",
        "_waits_since_s", "heard_at_s",
    )  # fmt: skip

    def __init__(
        self,
        *,
        on_message: OnMessage,
        on_beat: OnMessage,
        confirm_later: DelayedCalls | None = None,
        keep: Callable[[], bool] | None = None,
        session: SessionState | None = None,
        on_unkept: Callable[[], object] | None = None,
    ) -> None:
        """Creates a conversation. `on_message` gets orders or reports, and asides; `on_beat` gets heartbeats.

        `confirm_later` may be shared. `keep` is called before anything goes out or is confirmed that is not kept for a
        returning supervisor (see session_store.py);
        `session`: what a predecessor left. `on_unkept` is called once `session_state` would return something else.
        """
        self._loop = asyncio.get_running_loop()
        session = session or SessionState()
        self._outbox = Outbox(session.said, session.unconfirmed)
        self._arrivals = Arrivals(session.received)
        self._keep, self._on_unkept = keep, on_unkept
        self._is_unkept = self._is_held = False
        self._kept_received = session.received  # arrivals that are kept
        self._asides: deque[bytes] | None = None
        self._asides_bytes = 0
        self._line: Line | None = None
        self._on_message = on_message
        self._on_beat = on_beat
        self._confirm_later = confirm_later or DelayedCalls(CONFIRM_S)
        self._is_flush_due = False
        self._owes_confirmation = False
        self._is_parting = False
        self._settled: anyio.Event | None = None  # belongs to the waiting caller
        self._confirmed = 0  # the newest of our messages that the other side confirmed
        self._told_received = session.received  # the newest arrival that we confirmed
        self._waits_since_s = 0.0  # waits for a confirmation, if one is due
        self.heard_at_s = self._loop.time()

    # --- one connection after the other ----------------------------------------------------------------------------

    @property
    def line(self) -> Line | None:
        """Returns the current connection."""
        return self._line

    @property
    def last_heard_s(self) -> float:
        """Returns `heard_at_s` or a later time: a relay reports only heartbeats."""
        return max(self.heard_at_s, self._line.heard_at_s) if self._line is not None else self.heard_at_s

    def hold(self, line: Line, *, on_end: Callable[[str], None]) -> None:
        """Uses this line from now on; ends the previous one, whose end was not noticed yet."""
        self.let_go("another connection has come in its place")
        self._line = line
        self.heard_at_s = line.heard_at_s
        self._outbox.begin_connection()
        self._waits_since_s = self._loop.time()

        def ended(why: str) -> None:
            if self._line is line:
                self.heard_at_s = self.last_heard_s
                self._line = None
                self._settle()
                on_end(why)

        line.listen(self._hear, ended, self.flush)
        if self._arrivals.received:
            self.beat()  # Earlier confirmations may be lost.
        self.flush()

    def let_go(self, why: str, *, says_all: bool = False) -> None:
        """Drops the connection. `says_all`: sent data still goes out."""
        line, self._line = self._line, None
        if line is not None:
            line.end(why, says_all=says_all)

    def end(self) -> None:
        """Gives up on the other side: nobody waits for it any more."""
        self.let_go("it is given up")
        self._outbox, self._confirmed = Outbox(), 0
        self._told_received = self._arrivals.received
        self._settle()

    @property
    def waits_since_s(self) -> float | None:
        """Returns since when the other side has confirmed nothing; None: it has confirmed everything."""
        return None if self._outbox.is_empty else self._waits_since_s

    # --- what is kept ----------------------------------------------------------------------------------------------

    def session_state(self) -> SessionState:
        """Returns what to keep for a returning supervisor; from now on all of it may go out and be confirmed."""
        self._is_unkept = False
        self._kept_received = self._arrivals.received
        if self._is_held:
            self._is_held = False
            self._loop.call_soon(self._go_on)
        return SessionState(self._outbox.last, self._outbox.unconfirmed, self._arrivals.received)

    def _is_kept(self) -> bool:
        """Makes sure that everything is kept. Returns False if that is not possible yet: then `session_state`
        continues."""
        if self._is_unkept and self._keep is not None:
            if not self._keep():
                self._is_held = True
                return False
            self._is_unkept = False  # Even if nothing was kept: then no supervisor returns.
            self._kept_received = self._arrivals.received
        return True

    def _note_unkept(self) -> None:
        if not self._is_unkept:
            self._is_unkept = True
            if self._on_unkept is not None:
                self._on_unkept()

    def _go_on(self) -> None:
        self.flush()
        self._confirm()

    # --- what is said ----------------------------------------------------------------------------------------------

    def say(self, payload: bytes) -> None:
        """Sends a message as soon as there is a connection. Never blocks. Raises SessionError if too much waits."""
        self.put(payload)
        self._flush_soon()

    def put(self, payload: bytes) -> None:
        """Queues a message like `say`; the caller calls `flush` later."""
        if self._outbox.is_empty:
            self._waits_since_s = self._loop.time()
        self._outbox.put(payload)
        self._note_unkept()

    def beat(self, heartbeat: bytes = b"") -> None:
        """Sends a heartbeat ahead of waiting data. An empty one only confirms messages and is not answered."""
        if self._line is not None:
            self._told_received = received = self._arrivals.received if self._keep is None else self._kept_received
            self._line.send(numbered(heartbeat, number=0, received=received))
            if self._settled is not None:
                self._settle()

    def say_aside(self, payload: bytes) -> bool:
        """Sends it once, when nothing else waits; it may be lost. Returns False if it can't go, or too much waits."""
        if self._line is None or self._asides_bytes + len(payload) > ASIDES_BYTES_MAX:
            return False
        if self._asides is None:
            self._asides = deque()
        self._asides.append(payload)
        self._asides_bytes += len(payload)
        self._flush_soon()
        return True

    async def until_all_is_heard(self) -> None:
        """Waits until the other side has confirmed everything and got our confirmations."""
        self.part()
        while not (self._outbox.is_empty and self._told_received == self._arrivals.received):
            self._settled = anyio.Event()
            await self._settled.wait()
        await anyio.lowlevel.checkpoint()  # Written data goes out at the end of the loop's turn.

    async def until_let_go(self) -> None:
        """Waits until there is no connection."""
        while self._line is not None:
            self._settled = anyio.Event()
            await self._settled.wait()

    def part(self) -> None:
        """Confirms messages at once from now on: the other side waits for nothing else."""
        self._is_parting = True
        self._confirm()

    def _flush_soon(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        self._is_flush_due = False
        line = self._line
        if line is None or not self._is_kept():
            return
        outbox = self._outbox
        while (outbox.has_unsent or self._asides) and line.is_writable:
            waiting = outbox.take_unsent(UNSENT_BYTES_MAX) or self._next_aside()
            self._told_received = received = self._arrivals.received
            line.send(*[numbered(payload, number=number, received=received) for number, payload in waiting])
        if self._settled is not None:
            self._settle()

    def _next_aside(self) -> list[tuple[int, bytes]]:
        assert self._asides
        payload = self._asides.popleft()
        if not self._asides:
            self._asides = None
        self._asides_bytes -= len(payload)
        return [(0, payload)]

    def _settle(self) -> None:
        if self._settled is not None:
            self._settled.set()

    # --- what is heard ---------------------------------------------------------------------------------------------

    def _hear(self, message: bytes) -> None:
        line = self._line
        assert line is not None
        payload, number, received = read_numbered(message)
        self.heard_at_s = line.heard_at_s
        if received != self._confirmed and self._outbox.confirm(received):
            self._confirmed = received
            self._waits_since_s = self.heard_at_s
            self._settle()
        if number:
            if self._arrivals.is_new(number):
                self._note_unkept()
                self._owe()
                self._on_message(payload)
        elif payload.startswith(heartbeats.FIRST):
            self._on_beat(payload)
        elif payload:
            self._on_message(payload)

    def _owe(self) -> None:
        if self._is_parting:
            self._loop.call_soon(self._confirm)
        elif not self._owes_confirmation:
            self._owes_confirmation = True
            self._confirm_later.call(self._confirm)

    def _confirm(self) -> None:
        self._owes_confirmation = False
        if self._told_received != self._arrivals.received and self._is_kept():
            self.beat()


class PeerAddress(msgspec.Struct, frozen=True):
    host: str
    port: int

    def __str__(self) -> str:
        return join_endpoint(self.host, self.port)
