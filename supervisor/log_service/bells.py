"""How does one task tell another that there is something to do?"""

from __future__ import annotations

import anyio


class Bell:
    """Rung as often as one likes; a wait ends at the first ring since the last wait."""

    def __init__(self) -> None:
        self._rung = anyio.Event()

    def ring(self) -> None:
        self._rung.set()

    async def wait(self) -> None:
        await self._rung.wait()
        self._rung = anyio.Event()

    async def wait_for_s(self, longest_s: float) -> None:
        """Likewise, and at the latest after so long."""
        with anyio.move_on_after(longest_s):
            await self.wait()
