"""Where must the code wait for time to pass? Each pause says why no event can be awaited instead."""

from __future__ import annotations

import anyio


async def pause(duration_s: float, *, why: str) -> None:
    """Waits for `duration_s`, or until cancelled. `why` is for the reader of the code."""
    del why
    with anyio.move_on_after(duration_s):
        await anyio.Event().wait()
