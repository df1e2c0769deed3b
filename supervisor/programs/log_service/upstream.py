"""How do pieces get from this process to the next tier, over successive connections?

The data that the relay keeps is sent again over each new connection. Receipts come back in any order.
"""

from __future__ import annotations

import asyncio  # grpc.aio raises its errors
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio

from supervisor.core.log_funnel.pieces import Piece, Receipt
from supervisor.core.log_funnel.relay import Relay
from supervisor.edges.peers.cluster_session import SessionError
from supervisor.ports.pauses import pause
from supervisor.programs.log_service import frames_codec, same_user, secrets
from supervisor.programs.log_service.bells import Bell
from supervisor.programs.log_service.frames_codec import Batch, Terms
from supervisor.programs.log_service.secrets import Secrets
from supervisor.programs.log_service.settings import Settings

HANDSHAKE_S = 10.0
AGAIN_FIRST_S, AGAIN_MOST_S = 0.05, 1.0
BATCH_BYTES = 512 * 1024
EAGER_BYTES = 32 * 1024  # this much waiting data ends a pause
ALIVE_MS = 5000
OPTIONS = (
    ("grpc.max_receive_message_length", frames_codec.MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", frames_codec.MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", ALIVE_MS),
    ("grpc.keepalive_timeout_ms", ALIVE_MS),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.use_local_subchannel_pool", 1),  # otherwise grpc's own back-off would outlive the channel
    ("grpc.enable_http_proxy", 0),
)

STRANGER = "it does not know the job's token; give all nodes the same token_file"
NOT_TRUSTED = "Tls handshake failed"  # gRPC's words

_log = logging.getLogger("holdfast.logs")


class Upstream:
    """Sends pieces. `on_receipt` gets the receipt's link, if it still exists. `on_trouble`: why no receipts come."""

    def __init__(
        self,
        settings: Settings,
        known: Secrets,
        relay: Relay,
        *,
        on_receipt: Callable[[int, Receipt], None],
        on_trouble: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._secrets = known
        self._relay = relay
        self._on_receipt = on_receipt
        self._on_trouble = on_trouble
        self._bell = Bell()
        self._is_connected = False
        self._parting = False
        self._has_parted = False  # sent; then the other side ends the connection
        self._parted = anyio.Event()
        self._pause_s = 0.0
        self._moved = Bell()
        self.on_received: Callable[[], None] = _nothing  # called after each receipt
        self.on_away: Callable[[], None] = _nothing
        self.address = ""  # of the next tier; "": unknown yet

    def ring(self) -> None:
        """Notes that there is data to send."""
        self._bell.ring()

    def move(self, address: str) -> None:
        """Changes the address of the next tier."""
        if address != self.address:
            _log.info("the next tier is at %s", address)
            self.address = address
            self._moved.ring()

    async def part(self) -> None:
        """Tells the next tier that nothing more comes. The caller bounds the time."""
        self._parting = True
        self._bell.ring()
        if self._is_connected or not self._relay.is_empty:
            await self._parted.wait()

    async def run(self) -> None:
        """Runs until cancelled."""
        again_s = AGAIN_FIRST_S
        while True:
            if not self.address:
                self.on_away()
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
            _log.warning("%s cannot be reached: %s", address, why)
            self._on_trouble(f"the log server at {address} cannot be reached: {why}")
            self.on_away()
            again_s = AGAIN_FIRST_S if was_connected else min(AGAIN_MOST_S, again_s * 2)
            await self._moved.wait_for_s(again_s)

    async def _cancel_if_moved(self, address: str, scope: anyio.CancelScope) -> None:
        while address == self.address:
            await self._moved.wait()
        scope.cancel()

    async def _connect(self, address: str) -> tuple[str, bool]:
        """Makes one connection; returns why it ended, and whether it had begun."""
        import grpc.aio

        has_secrets = bool(self._secrets.certificate)
        try:
            if not has_secrets:
                same_user.check_called(address)
            async with await self._channel(address) as channel:
                call = channel.stream_stream(frames_codec.METHOD)()
                with anyio.fail_after(HANDSHAKE_S):
                    await self._introduce(call)
                if not has_secrets:
                    same_user.check_called(address)  # Another process may have taken the port since.
                self._on_trouble("")
                self._relay.begin_again()
                self._bell.ring()
                self._is_connected = True
                return await self._converse(call), True
        except SessionError as error:
            return str(error), False
        except TimeoutError:
            return "it does not answer", False
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            return _in_words(error, is_from_token=self._secrets.is_from_token), False

    async def _converse(self, call: Any) -> str:  # noqa: ANN401 - grpc's own
        """Sends and receives; returns why the connection ended."""
        import grpc.aio

        why = "the connection has ended"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._speak, call)
            try:
                await self._listen(call)
            except SessionError as error:
                why = str(error)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
                why = _in_words(error, is_from_token=self._secrets.is_from_token)
            tasks.cancel_scope.cancel()
        return why

    async def _channel(self, address: str) -> Any:  # noqa: ANN401 - grpc's own
        import grpc.aio

        credentials = secrets.channel_credentials(self._secrets)
        if credentials is None:
            return grpc.aio.insecure_channel(address, options=OPTIONS)
        host, _, port = address.rpartition(":")
        name = await secrets.name_of(self._secrets, self._settings, host.strip("[]"), int(port))
        options = (*OPTIONS, ("grpc.ssl_target_name_override", name)) if name else OPTIONS
        return grpc.aio.secure_channel(address, credentials, options=options)

    async def _introduce(self, call: Any) -> None:  # noqa: ANN401 - grpc's own
        job_id, name, proofs = self._settings.job_id, self._settings.name, self._secrets.own_proofs
        await call.write(frames_codec.hello(job_id, name, proofs))
        frames_codec.check_welcome(await _read(call), job_id, name, proofs)

    async def _listen(self, call: Any) -> None:  # noqa: ANN401 - grpc's own
        while (data := await _read(call)) != b"":
            batch = frames_codec.decode(data)
            if batch.terms is not None:
                self._agree(batch.terms)
            for receipt in batch.receipts:
                link = self._relay.receive(receipt)
                if link is not None:
                    self._on_receipt(link, receipt)
            self._bell.ring()
            self.on_received()

    def _agree(self, terms: Terms) -> None:
        self._relay.window_bytes = terms.window_bytes
        self._pause_s = terms.pause_s
        self._on_trouble(terms.trouble)

    async def _speak(self, call: Any) -> None:  # noqa: ANN401 - grpc's own
        import grpc.aio

        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the reader learns the reason
            await self._say_all(call)

    async def _say_all(self, call: Any) -> None:  # noqa: ANN401 - grpc's own
        while True:
            await self._bell.wait()
            while pieces := self._relay.next(BATCH_BYTES):
                await call.write(frames_codec.encode(Batch(pieces=_joined(pieces))))
                if self._pause_s and self._relay.unsent_bytes < EAGER_BYTES:
                    await pause(
                        self._pause_s, why="with many nodes, few long messages are cheaper than many short ones"
                    )
            if self._parting and self._relay.is_empty:
                await call.write(frames_codec.encode(Batch(parts=True)))
                await call.done_writing()
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
            and len(last.lines) + len(piece.lines) <= frames_codec.LINES_BYTES_MAX // 2
        ):
            joined[-1] = Piece(last.stream, last.file, last.base, last.position, last.lines + piece.lines, piece.ends)
        else:
            joined.append(piece)
    return joined


async def _read(call: Any) -> bytes:  # noqa: ANN401 - grpc's own
    """Reads a message; b"" at the end."""
    data = await call.read()
    return data if isinstance(data, bytes) else b""


def _in_words(error: Exception, *, is_from_token: bool) -> str:
    import grpc.aio

    if isinstance(error, grpc.aio.AioRpcError):
        why = error.details() or error.code().name.lower()
        return f"{STRANGER}: {why}" if is_from_token and NOT_TRUSTED in why else why
    return "the connection was lost"


def _nothing() -> None:
    """Does nothing."""
