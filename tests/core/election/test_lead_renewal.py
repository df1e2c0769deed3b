"""A lead is renewed in time, counts from the question, and is given up only once nothing can come of it."""

# pyright: reportUnusedExpression=false

from __future__ import annotations

import pytest

from supervisor.core import fence_times
from supervisor.core.election import lead_renewal
from supervisor.core.election.lead_renewal import (
    RENEW_AGAIN_S,
    RENEW_TIMEOUT,
    RENEWALS,
    DeadlineReached,
    EndLead,
    ExtendLead,
    NobodyElseLeads,
    NotRenewed,
    Renew,
    Renewed,
    State,
)
from tests.core.playbook import Playbook

TTL_S = 2.0
JOIN_S = 60.0


def lead(
    *,
    fence_until_s: float = 100.0,
    waits_since_s: float | None = None,
    heard_at_s: tuple[float | None, ...] = (),
    confirmed_at_s: float | None = None,
) -> Playbook[State]:
    return Playbook(
        lead_renewal.step,
        lead_renewal.initial_state(TTL_S, asked_at_s=-0.5, now_s=0.0),
        heard_at_s=heard_at_s,
        confirmed_at_s=confirmed_at_s,
        fence_until_s=fence_until_s,
        waits_since_s=waits_since_s,
        join_timeout_s=JOIN_S,
    )


def test_it_is_renewed_at_once_and_then_several_times_within_its_life() -> None:
    play = lead()
    play >> DeadlineReached() << Renew(TTL_S * RENEW_TIMEOUT)
    assert lead_renewal.next_deadline_s(play.state) is None
    play.at(0.2) >> Renewed() << (ExtendLead(TTL_S), NobodyElseLeads(0.0))
    assert lead_renewal.next_deadline_s(play.state) == 0.2 + TTL_S / RENEWALS
    play >> DeadlineReached() << ()


@pytest.mark.parametrize("ttl_s", [2.0, 8.0, 20.0, 3_600.0])
def test_however_long_a_lead_lives_the_fence_of_its_own_node_moves_before_it_passes(ttl_s: float) -> None:
    """Else a leader would end the healthy workers of its node, between two renewals."""
    state = lead_renewal.initial_state(ttl_s, asked_at_s=0.0, now_s=0.0)
    fence_until_s = fence_times.FENCE_S
    for _ in range(3):
        now_s = lead_renewal.next_deadline_s(state)
        assert now_s is not None
        assert now_s < fence_until_s
        for event in (DeadlineReached(), Renewed()):
            state, actions = lead_renewal.step(
                state,
                event,
                now_s=now_s,
                heard_at_s=(),
                confirmed_at_s=0.0,  # No node has confirmed what was sent since.
                fence_until_s=fence_until_s,
                waits_since_s=None,
                join_timeout_s=JOIN_S,
            )
        (known_at_s,) = [each.known_at_s for each in actions if isinstance(each, NobodyElseLeads)]
        fence_until_s = known_at_s + fence_times.FENCE_S


def test_a_backend_without_an_answer_is_asked_again_soon_and_the_lead_is_not_extended() -> None:
    play = lead()
    play >> DeadlineReached()
    play.at(1.0) >> NotRenewed() << NobodyElseLeads(-0.5)
    assert lead_renewal.next_deadline_s(play.state) == 1.0 + RENEW_AGAIN_S


def test_a_leader_that_no_node_confirms_is_sure_of_less() -> None:
    play = lead(confirmed_at_s=10.0)
    play.at(12.0) >> DeadlineReached() >> Renewed() << (ExtendLead(14.0), NobodyElseLeads(10.0))
    play.at(15.0) >> DeadlineReached() >> Renewed() << (ExtendLead(17.0), NobodyElseLeads(fence_times.led_at_s(15.0)))


def test_what_it_knows_of_other_leads_is_asked_between_two_renewals() -> None:
    play = lead()
    play.at(12.0) >> DeadlineReached() >> Renewed()
    known = lead_renewal.nobody_else_leads(play.state, now_s=12.4, heard_at_s=(), confirmed_at_s=None)
    unconfirmed = lead_renewal.nobody_else_leads(play.state, now_s=12.4, heard_at_s=(), confirmed_at_s=5.0)
    assert (known, unconfirmed) == (NobodyElseLeads(12.0), NobodyElseLeads(fence_times.led_at_s(12.0)))


def test_while_all_witnesses_are_heard_it_answers_beyond_its_lead() -> None:
    play = lead(heard_at_s=(29.0, 30.0))
    play.at(30.0) >> DeadlineReached() >> NotRenewed() << NobodyElseLeads(29.0)
    assert lead_renewal.answers_until_s(play.state, (29.0, 30.0)) == 29.0 + fence_times.HEARD_S
    assert lead_renewal.answers_until_s(play.state, (29.0, None)) == -0.5 + TTL_S / 2


def test_it_is_given_up_once_its_workers_have_ended_and_the_backend_stays_away() -> None:
    play = lead(fence_until_s=5.0)
    play.at(5.0 + JOIN_S) >> DeadlineReached() >> NotRenewed()
    play.lacks(EndLead)
    play.at(5.1 + JOIN_S) >> DeadlineReached() >> NotRenewed()
    play.has(EndLead("its workers have ended, and the backend does not come back"))


def test_it_is_given_up_if_nothing_it_decides_can_be_ordered() -> None:
    play = lead(fence_until_s=1000.0, waits_since_s=1.0)
    play.at(1.0 + JOIN_S) >> DeadlineReached() >> NotRenewed()
    play.lacks(EndLead)
    play.at(1.1 + JOIN_S) >> DeadlineReached() >> NotRenewed()
    play.has(EndLead("what it has decided can't be ordered, and the backend does not come back"))
