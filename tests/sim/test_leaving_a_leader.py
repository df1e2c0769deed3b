"""Do the workers of a leader that nobody follows any more end before the next leader begins?"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from supervisor.core import fence_times
from tests.sim.faults import Fault, Kind
from tests.sim.playing import play
from tests.sim.test_histories import elected

LOST_AT_S = 12.0


def complaints() -> list[str]:
    """The backend ends the lead early, and the leader does not reach it: its nodes leave it, and it goes on."""
    return [
        complaint
        for seed in range(6)
        for name in ("n0000", "n0001", "n0002")
        for complaint in play(
            elected(1000 * seed),
            (
                Fault(LOST_AT_S, Kind.BACKEND_CUT, name, 0, 30.0),
                Fault(LOST_AT_S + 0.1, Kind.LEASES_REVOKED, name),
            ),
        ).complaints
    ]


def test_the_workers_of_a_leader_that_was_left_end_before_the_next_leader_begins():
    assert not complaints()


def test_a_leader_that_gives_its_own_workers_what_it_gives_its_followers_is_found(monkeypatch: pytest.MonkeyPatch):
    def as_followers(renewed_at_s: float, heard_at_s: Sequence[float | None], confirmed_at_s: float | None) -> float:
        del confirmed_at_s
        return fence_times.answers_until_s(renewed_at_s, 2.0, heard_at_s)

    monkeypatch.setattr(fence_times, "leads_at_s", as_followers)
    assert any(each.startswith("Exclusivity:") for each in complaints())


def of_an_unheard_leader() -> list[str]:
    """No node hears the leader any more; it renews its lead until that is ended early."""
    return [
        complaint
        for seed in range(6)
        for name in ("n0000", "n0001", "n0002")
        for complaint in play(
            elected(1000 * seed),
            (
                Fault(LOST_AT_S + 10.0, Kind.PEERS_CUT, name, 0, 30.0),
                Fault(LOST_AT_S + 13.5, Kind.BACKEND_CUT, name, 0, 30.0),
                Fault(LOST_AT_S + 13.6, Kind.LEASES_REVOKED, name),
            ),
        ).complaints
    ]


def test_the_workers_of_a_leader_that_nobody_hears_end_before_the_next_leader_begins():
    assert not of_an_unheard_leader()


def test_a_leader_that_needs_no_confirmation_is_found(monkeypatch: pytest.MonkeyPatch):
    leads_at_s = fence_times.leads_at_s
    monkeypatch.setattr(fence_times, "leads_at_s", lambda renewed, heard, _: leads_at_s(renewed, heard, None))  # pyright: ignore
    assert any(each.startswith("Exclusivity:") for each in of_an_unheard_leader())
