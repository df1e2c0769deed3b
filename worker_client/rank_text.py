"""How are some of many ranks named in an error?"""

from __future__ import annotations

from collections.abc import Sequence


def named(ranks: Sequence[int], total: int) -> str:
    """Returns "rank 3" or "ranks 3, 7 and 41 more". `ranks`: those that are named, of `total`."""
    more = total - len(ranks)
    listed = ", ".join(map(str, ranks)) + (f" and {more} more" if more > 0 else "")
    return f"rank {listed}" if total == 1 else f"ranks {listed}"
