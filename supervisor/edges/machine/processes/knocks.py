"""How often may one user connect, so that other users get in, too?

Handing a connection over costs the door a thousand times as much as closing it at once.
"""

from __future__ import annotations

BURST = 200.0  # connections that a user may open at once
PER_S = 25.0  # and then this many per second
USERS_MAX = 1_024  # users who are counted; any other user counts as new


class Knocks:
    """One allowance for each user, which refills with time."""

    def __init__(self) -> None:
        self._left: dict[int, tuple[float, float]] = {}  # user id → connections left, and since when

    def may_enter(self, uid: int, now_s: float) -> bool:
        left, at_s = self._left.get(uid, (BURST, now_s))
        left = min(BURST, left + (now_s - at_s) * PER_S)
        if left < 1:
            return False
        if len(self._left) >= USERS_MAX:
            self._forget(now_s)
        self._left[uid] = (left - 1, now_s)
        return True

    def _forget(self, now_s: float) -> None:
        """Forgets users with a full allowance; all, if so many users have just connected."""
        counted = {uid: each for uid, each in self._left.items() if each[0] + (now_s - each[1]) * PER_S < BURST}
        self._left = counted if len(counted) < USERS_MAX else {}
