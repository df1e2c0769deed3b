"""Which version of the cluster stream do a node and its leader speak?

Each names the newest and the oldest version that it speaks; they use the newest common one. Within one version, each
side skips what it does not know: a field, a frame, an order, a report, or one item of a list (edges/codec).
"""

from __future__ import annotations

NEWEST = 2
OLDEST = 2  # one less than the newest, as soon as there are two that fit; 1 had no TLS by token
FIRST = 1  # used with a peer that names none


def common(newest: int, oldest: int) -> int | None:
    """Returns the common version; None if there is none. `newest`, `oldest` (0: the same): the other side's."""
    version = min(newest, NEWEST)
    return version if version >= max(oldest or newest, OLDEST) else None


def refusal(newest: int, oldest: int) -> str:
    """Returns why the versions do not fit; "" if they do."""
    if common(newest, oldest) is not None:
        return ""
    theirs, ours = spoken(newest, oldest), spoken(NEWEST, OLDEST)
    return f"it speaks {theirs} of the protocol, the leader {ours}; install versions of Holdfast that are closer"


def is_spoken(version: int) -> bool:
    """Returns whether this side speaks the version that the other chose; 0 is the first."""
    return OLDEST <= (version or FIRST) <= NEWEST


def spoken(newest: int, oldest: int) -> str:
    """Formats the versions for people."""
    return f"version {newest}" if oldest in (0, newest) else f"versions {oldest} to {newest}"
