"""How often may one user come to the door, so that the others get in meanwhile?

A connection that is handed over costs the door a thousand times as much as one that is closed at once.
"""

from __future__ import annotations

BURST = 200.0  # connections that a user may open at once
PER_S = 25.0  # and then so many a second
USERS_MAX = 1_024  # whose knocks are counted; a user beyond them has knocked for the first time


class Knocks:
    """One count for each user, which grows again with time."""

    def __init__(self) -> None:
        self._left: dict[int, tuple[float, float]] = {}  # user id → connections left, and when that was so

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
        """Those who have all connections left again; all, where each of so many users has just knocked."""
        counted = {uid: each for uid, each in self._left.items() if each[0] + (now_s - each[1]) * PER_S < BURST}
        self._left = counted if len(counted) < USERS_MAX else {}
