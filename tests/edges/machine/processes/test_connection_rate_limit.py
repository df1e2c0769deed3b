"""How many connections of one user are admitted, counted for each user separately?"""

from __future__ import annotations

from supervisor.edges.machine.processes.connection_rate_limit import BURST, PER_S, USERS_MAX, ConnectionRateLimit


def _entered(limit: ConnectionRateLimit, uid: int, tries: int, now_s: float) -> int:
    return sum(limit.allows(uid, now_s) for _ in range(tries))


def test_a_user_who_floods_the_socket_gets_in_at_a_rate_and_nobody_else_notices():
    limit = ConnectionRateLimit()
    assert _entered(limit, 1, 10_000, now_s=5.0) == BURST
    assert _entered(limit, 2, 10, now_s=5.0) == 10
    assert _entered(limit, 1, 10_000, now_s=6.0) == PER_S
    assert _entered(limit, 1, 10_000, now_s=1_000.0) == BURST


def test_what_is_remembered_is_bounded():
    limit = ConnectionRateLimit()
    assert all(limit.allows(uid, now_s=0.0) for uid in range(3 * USERS_MAX))
    _entered(limit, 7, 10_000, now_s=0.0)
    assert all(limit.allows(uid, now_s=0.5) for uid in range(100, 100 + 2 * USERS_MAX))
    assert len(limit._left) <= USERS_MAX  # pyright: ignore[reportPrivateUsage]


def test_each_kind_of_request_has_bounds_of_its_own():
    limit = ConnectionRateLimit(burst=2, per_s=0.5)
    assert _entered(limit, 1, 10, now_s=5.0) == 2
    assert _entered(limit, 1, 10, now_s=6.0) == 0
    assert _entered(limit, 1, 10, now_s=7.0) == 1
