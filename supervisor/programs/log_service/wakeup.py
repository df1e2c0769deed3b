"""How does one task signal to another that there is work?"""

from __future__ import annotations

import anyio


class Wakeup:
    """Any number of calls of `wake` ends one wait: the next one, or the one that is under way."""

    def __init__(self) -> None:
        self._woken = anyio.Event()

    def wake(self) -> None:
        self._woken.set()

    async def wait(self) -> None:
        await self._woken.wait()
        self._woken = anyio.Event()

    async def wait_for_s(self, longest_s: float) -> None:
        """Waits in the same way, at most this long."""
        with anyio.move_on_after(longest_s):
            await self.wait()
