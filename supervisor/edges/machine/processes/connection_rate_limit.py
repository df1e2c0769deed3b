"""How often may one user ask for something that costs others time, so that other users are served, too?

Handing a connection over costs the dispatcher a thousand times as much as closing it at once.
"""

from __future__ import annotations

BURST = 200.0  # connections that a user may open at once
PER_S = 25.0  # and then this many per second
USERS_MAX = 1_024  # users who are counted; any other user counts as new


class ConnectionRateLimit:
    """One allowance for each user, which refills with time."""

    def __init__(self, burst: float = BURST, per_s: float = PER_S) -> None:
        self._burst = burst
        self._per_s = per_s
        self._left: dict[int | str, tuple[float, float]] = {}  # user id, or its name → times left, and since when

    def allows(self, whose: int | str, now_s: float) -> bool:
        left, at_s = self._left.get(whose, (self._burst, now_s))
        left = min(self._burst, left + (now_s - at_s) * self._per_s)
        if left < 1:
            return False
        if len(self._left) >= USERS_MAX:
            self._forget(now_s)
        self._left[whose] = (left - 1, now_s)
        return True

    def _forget(self, now_s: float) -> None:
        """Forgets users with a full allowance; all, if so many users have just come."""
        counted = {
            whose: each for whose, each in self._left.items() if each[0] + (now_s - each[1]) * self._per_s < self._burst
        }
        self._left = counted if len(counted) < USERS_MAX else {}
