"""A connection is dead after a silence, or if what was said is not confirmed; the reason tells how long it took."""

from __future__ import annotations

import pytest

from supervisor.core.election import link_silence
from supervisor.core.election.link_silence import SILENCE_S, UNCONFIRMED_S


@pytest.mark.parametrize(
    ("heard_at_s", "waits_since_s", "why"),
    [
        (100.0 - SILENCE_S + 0.01, None, ""),
        (100.0 - SILENCE_S, None, "nothing was heard for 2.5 s"),
        (95.1, None, "nothing was heard for 4.9 s"),
        (95.1, 10.0, "nothing was heard for 4.9 s"),
        (100.0, 100.0 - UNCONFIRMED_S, ""),
        (100.0, 37.7, "it has confirmed nothing for 62.3 s"),
    ],
)
def test_why_a_connection_is_dead(heard_at_s: float, waits_since_s: float | None, why: str) -> None:
    assert link_silence.death(heard_at_s=heard_at_s, waits_since_s=waits_since_s, now_s=100.0) == why


def test_a_live_connection_is_checked_again_when_it_may_be_dead() -> None:
    assert link_silence.check_at_s(heard_at_s=99.0, now_s=100.0) == 99.0 + SILENCE_S
    assert SILENCE_S > 2 * link_silence.ALIVE_S, "two heartbeats may be lost"
