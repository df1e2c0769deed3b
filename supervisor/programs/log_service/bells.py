"""How does one task signal to another that there is work?"""

from __future__ import annotations

import anyio


class Bell:
    """A bell may ring any number of times; a wait ends at the first ring since the last wait."""

    def __init__(self) -> None:
        self._rung = anyio.Event()

    def ring(self) -> None:
        self._rung.set()

    async def wait(self) -> None:
        await self._rung.wait()
        self._rung = anyio.Event()

    async def wait_for_s(self, longest_s: float) -> None:
        """Waits in the same way, at most this long."""
        with anyio.move_on_after(longest_s):
            await self.wait()
