"""How do pieces get from this process to the next tier, over successive connections?

The data that the relay keeps is sent again over each new connection. Receipts come back in any order.
"""

from __future__ import annotations

import asyncio  # the clock of lines
import logging
import ssl
from collections.abc import Callable

import anyio
from holdfast_wire import log_frames
from holdfast_wire.log_frames import LogFrameError, Parting, Terms, Trouble
from holdfast_wire.log_pieces import Piece, Receipt

from supervisor.core.log_funnel.log_relay import Relay
from supervisor.edges.peers.transport import cluster_connect, cluster_tls
from supervisor.edges.peers.transport.cluster_line import INTRODUCTION_BYTES_MAX, Line, LinkLostError
from supervisor.edges.peers.transport.cluster_link import PeerAddress
from supervisor.edges.peers.transport.cluster_session import SessionError
from supervisor.edges.peers.transport.cluster_tls import Pipe, Tls, token_of
from supervisor.edges.peers.transport.preamble import CONNECTS_HERE, Preamble, key_of
from supervisor.ports.timed_waits import pause
from supervisor.programs.log_service import log_hello_exchange
from supervisor.programs.log_service.log_tier_settings import Settings
from supervisor.programs.log_service.replies_to_senders import ALIVE_S
from supervisor.programs.log_service.wakeup import Wakeup

HANDSHAKE_S = 10.0
SILENCE_S = 2 * ALIVE_S  # a server that has said nothing for so long is stalled, or its machine is gone
AGAIN_FIRST_S, AGAIN_MOST_S = 0.05, 1.0
BATCH_BYTES = 512 * 1024
UNSENT_BYTES_MAX = 2 * 1024 * 1024  # nothing is urgent here, and the next tier may have to wait for its turn
JOINED_BYTES_MAX = log_frames.LINES_BYTES_MAX // 2  # of one piece that was several
EAGER_BYTES = 32 * 1024  # this much waiting data ends a pause
SILENT = "it does not answer"

_log = logging.getLogger("holdfast.logs")


class Upstream:
    """Sends pieces. `on_receipt` gets the receipt's link; None: it has ended. `on_trouble`: why no receipts come.

    `on_away` is called while the next tier can't be reached.
    """

    def __init__(
        self,
        settings: Settings,
        tls: Tls | None,
        relay: Relay,
        *,
        on_receipt: Callable[[int | None, Receipt], None],
        on_trouble: Callable[[str], None],
        on_away: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._tls = tls
        self._preamble_key = key_of(token_of(tls))
        self._session: ssl.SSLSession | None = None  # of the last connection
        self._is_careful = False  # the last connection went silent: large packets may be lost
        self._relay = relay
        self._on_receipt = on_receipt
        self._on_trouble = on_trouble
        self._on_away = on_away
        self._wakeup = Wakeup()
        self._is_connected = False
        self._parting = False
        self._has_parted = False  # sent; then the other side ends the connection
        self._parted = anyio.Event()
        self._pause_s = 0.0
        self._moved = Wakeup()
        self.address: PeerAddress | None = None  # of the next tier; None: unknown yet

    def wake(self) -> None:
        """Notes that there is data to send."""
        self._wakeup.wake()

    def move(self, address: PeerAddress) -> None:
        """Changes the address of the next tier."""
        if address != self.address:
            _log.info("the next tier is at %s", address)
            self.address = address
            self._moved.wake()

    async def part(self) -> None:
        """Tells the next tier that nothing more comes. The caller bounds the time."""
        self._parting = True
        self._wakeup.wake()
        if self._is_connected or not self._relay.is_empty:
            await self._parted.wait()

    async def run(self) -> None:
        """Runs until cancelled."""
        again_s = AGAIN_FIRST_S
        while True:
            if self.address is None:
                self._on_away()
                await self._moved.wait_for_s(AGAIN_MOST_S)
                continue
            address = self.address
            why, was_connected = "", False
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._cancel_if_moved, address, tasks.cancel_scope)
                why, was_connected = await self._connect(address)
                tasks.cancel_scope.cancel()
            self._is_connected = False
            if self._has_parted or (self._parting and self._relay.is_empty):
                self._parted.set()
                return
            self._is_careful = why == SILENT
            _log.warning("%s cannot be reached: %s", address, why)
            self._on_trouble(f"the log server at {address} cannot be reached: {why}")
            self._on_away()
            again_s = AGAIN_FIRST_S if was_connected else min(AGAIN_MOST_S, again_s * 2)
            await self._moved.wait_for_s(again_s)

    async def _cancel_if_moved(self, address: PeerAddress, scope: anyio.CancelScope) -> None:
        while address == self.address:
            await self._moved.wait()
        scope.cancel()

    async def _connect(self, address: PeerAddress) -> tuple[str, bool]:
        """Makes one connection; returns why it ended, and whether it had begun."""
        pipe = Pipe(self._tls, leads=False, session=self._session) if self._tls is not None else None
        preamble = Preamble(CONNECTS_HERE, self._preamble_key)
        line = Line(
            pipe=pipe, preamble=preamble, frame_bytes_max=INTRODUCTION_BYTES_MAX, unsent_bytes_max=UNSENT_BYTES_MAX
        )
        try:
            with anyio.fail_after(HANDSHAKE_S):
                await cluster_connect.connect(lambda: line, address.host, address.port, is_careful=self._is_careful)
                await log_hello_exchange.introduce(
                    line, self._settings.job_id, self._settings.name, has_secrets=self._tls is not None
                )
            self._session = pipe.session if pipe is not None else None
            return await self._converse(line), True
        except TimeoutError:
            return SILENT, False
        except OSError as error:
            return cluster_connect.reason_of(error), False
        except (LinkLostError, SessionError) as error:
            if line.distrust:
                await cluster_tls.read_again(self._tls)
            return str(error), False
        finally:
            line.end("this process has nothing more to send", says_all=True)

    async def _converse(self, line: Line) -> str:
        """Sends and receives; returns why the connection ended."""
        self._on_trouble("")
        self._relay.begin_again()
        self._is_connected = True
        line.listen(self._hear, lambda _: None, self._wakeup.wake)
        self._wakeup.wake()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._speak, line)
            tasks.start_soon(self._watch, line)
            why = await line.until_ended()
            tasks.cancel_scope.cancel()
            return why
        raise AssertionError

    async def _watch(self, line: Line) -> None:
        loop = asyncio.get_running_loop()
        while (left_s := line.heard_at_s + SILENCE_S - loop.time()) > 0.0:
            await pause(left_s, why="silence makes no event")
        line.end(SILENT)

    def _hear(self, payload: bytes) -> None:
        try:
            message = log_frames.decode(payload)
        except LogFrameError as error:
            raise SessionError(str(error)) from error
        match message:
            case Receipt() as receipt:
                self._on_receipt(self._relay.receive(receipt), receipt)
                self._wakeup.wake()
            case Terms(window_bytes, pause_ms):
                self._relay.window_bytes, self._pause_s = window_bytes, pause_ms / 1000
                self._wakeup.wake()
            case Trouble(reason):
                self._on_trouble(reason)
            case _:
                pass

    async def _speak(self, line: Line) -> None:
        while True:
            await self._wakeup.wait()
            while line.is_writable and (pieces := self._relay.next(BATCH_BYTES)):
                line.send(*map(log_frames.encode, _joined(pieces)))
                if self._pause_s and self._relay.unsent_bytes < EAGER_BYTES:
                    await pause(
                        self._pause_s, why="with many nodes, few long messages are cheaper than many short ones"
                    )
            if self._parting and self._relay.is_empty:
                line.send(log_frames.encode(Parting()))
                self._has_parted = True
                return


def _joined(pieces: list[Piece]) -> list[Piece]:
    """Joins neighbouring pieces of one stream, so that the next tier handles fewer."""
    joined: list[Piece] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if (
            last is not None
            and last.stream == piece.stream
            and last.end == piece.position
            and not last.ends
            and len(last.lines) + len(piece.lines) <= JOINED_BYTES_MAX
        ):
            joined[-1] = Piece(last.stream, last.file, last.base, last.position, last.lines + piece.lines, piece.ends)
        else:
            joined.append(piece)
    return joined
