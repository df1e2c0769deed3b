"""Which pages are signed in, from which address were they opened, and for how long?

A page exchanges the token for a session and keeps only that: it is random, ends with this process, and the token cannot
be computed from it. It counts only at the host and port at which the page was opened.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable

import msgspec

SESSIONS_MAX = 64  # of more, the one that was unused for longest ends
UNUSED_S = 24 * 3600.0


class _Session(msgspec.Struct):
    host: str
    used_at_s: float


class Sessions:
    """The sessions of one process."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._open: OrderedDict[bytes, _Session] = OrderedDict()  # by digest; the one unused for longest first

    def begin(self, host: str) -> str:
        """Returns the secret of a new session. `host`: as the page's requests name it."""
        secret = secrets.token_urlsafe(32)
        self._open[_digest(secret)] = _Session(host, self._now_s())
        if len(self._open) > SESSIONS_MAX:
            self._open.popitem(last=False)
        return secret

    def is_open(self, secret: str, host: str) -> bool:
        """Returns whether it counts at this host. A session that is used stays open."""
        digest = _digest(secret)
        session = self._open.get(digest)
        if session is None or session.host != host:
            return False
        if self._now_s() - session.used_at_s > UNUSED_S:
            del self._open[digest]
            return False
        session.used_at_s = self._now_s()
        self._open.move_to_end(digest)
        return True


def _digest(secret: str) -> bytes:
    """Returns the key of a session: how long a look for it takes tells nothing about the secrets of others."""
    return hashlib.sha256(secret.encode()).digest()
