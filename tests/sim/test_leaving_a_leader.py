"""Do the workers of a leader that nobody follows any more end before the next leader begins?"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from supervisor.core import fence_times
from supervisor.core.facts import JobState
from tests.sim.faults import Fault, Kind
from tests.sim.playing import play
from tests.sim.setup import JOB
from tests.sim.test_draining_during_a_stall import two_and_a_spare
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


def test_a_node_without_ranks_that_meets_a_defect_ends_no_job_although_it_leads():
    has_led = False
    for seed in range(12):
        setup = two_and_a_spare(seed, is_elected=True)
        for name in setup.names:
            world = play(setup, (Fault(LOST_AT_S, Kind.DEFECT, name),))
            assert not world.complaints
            if world.hosts[name].state.jobs[JOB].job.assignment is None:
                verdicts = {host.verdict for host in world.hosts.values() if host.name != name}
                assert {each.state for each in verdicts if each is not None} == {JobState.SUCCEEDED}, f"{seed}, {name}"
                has_led |= "leader_resigned" in {event.kind for _, _, event in world.event_log}
    assert has_led
