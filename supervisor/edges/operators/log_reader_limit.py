"""How many people on other nodes may watch what this node's ranks print, at the same time?"""

from __future__ import annotations

from supervisor.errors import ExhaustedError

READERS_MAX = 16  # each needs one inotify instance of the user's 128


def check_another_may_read(readers: int) -> None:
    """Raises ExhaustedError if so many readers are open that no other one may be."""
    if readers >= READERS_MAX:
        raise ExhaustedError(
            f"cannot show output: {READERS_MAX} readers of other nodes are open already; end one of them"
        )
