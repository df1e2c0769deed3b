"""Which version of the cluster stream do a node and its leader speak?

Each says the newest and the oldest that it speaks; the newest that both do is spoken. Within one version, what one side
does not know is skipped: a field, a frame, an order, a report, or one word of several (record_codec.py).
"""

from __future__ import annotations

NEWEST = 1
OLDEST = 1  # one older than the newest, as soon as there is one
FIRST = 1  # spoken by who names none


def common(newest: int, oldest: int) -> int | None:
    """`newest` and `oldest` (0: the same) are the other side's. None: there is no version that both speak."""
    version = min(newest, NEWEST)
    return version if version >= max(oldest or newest, OLDEST) else None


def refusal(newest: int, oldest: int) -> str:
    """Why the other side can't be understood; "" if it can."""
    if common(newest, oldest) is not None:
        return ""
    theirs, ours = spoken(newest, oldest), spoken(NEWEST, OLDEST)
    return f"it speaks {theirs} of the protocol, the leader {ours}; install versions of Holdfast that are closer"


def is_spoken(version: int) -> bool:
    """Whether this side speaks what the other has chosen; 0 is the first."""
    return OLDEST <= (version or FIRST) <= NEWEST


def spoken(newest: int, oldest: int) -> str:
    """For people."""
    return f"version {newest}" if oldest in (0, newest) else f"versions {oldest} to {newest}"
