"""What do a leaf and the sender of a node have in common? A queue between their callers and the next tier."""

from __future__ import annotations

from collections.abc import Callable

from holdfast_wire.log_pieces import Piece, Receipt

from supervisor.core.log_funnel.log_relay import Relay
from supervisor.edges.peers.transport.cluster_tls import Tls
from supervisor.programs.log_service.log_tier_settings import Settings
from supervisor.programs.log_service.replies_to_senders import Callers
from supervisor.programs.log_service.upstream import Upstream
from supervisor.programs.log_service.wakeup import Wakeup


class LogForwarder:
    """Passes pieces on; see log_receiving.Taker. `on_trouble` and `on_away`: see Upstream."""

    def __init__(
        self,
        settings: Settings,
        tls: Tls | None,
        *,
        bytes_max: int,
        pieces_max: int,
        callers: Callers,
        on_trouble: Callable[[str], None],
        on_away: Callable[[], None],
    ) -> None:
        self.relay = Relay(bytes_max=bytes_max, pieces_max=pieces_max)
        self._callers = callers
        self._room = Wakeup()
        self.upstream = Upstream(
            settings, tls, self.relay, on_receipt=self._on_receipt, on_trouble=on_trouble, on_away=on_away
        )

    @property
    def is_full(self) -> bool:
        return self.relay.is_full

    def take(self, link: int, piece: Piece) -> None:
        self.relay.take(link, piece)
        self.upstream.wake()

    def lose(self, link: int) -> None:
        self.relay.lose(link)

    async def until_room(self) -> None:
        while self.relay.is_full:
            await self._room.wait()

    def _on_receipt(self, link: int | None, receipt: Receipt) -> None:
        if link is not None:
            self._callers.send(link, receipt)
        self._room.wake()
        if self.relay.is_empty:
            self._callers.changed.wake()
