"""How long does a leader answer, and when may a new one replace nodes? tests/sim plays what follows from it."""

from __future__ import annotations

from supervisor.core import fence_times


def test_a_leader_answers_beyond_its_lead_only_while_it_hears_all_witnesses():
    assert fence_times.answers_until_s(9.0, 2.0, []) == 10.0
    assert fence_times.answers_until_s(9.0, 2.0, [20.0, None]) == 10.0
    assert fence_times.answers_until_s(9.0, 2.0, [20.0, 19.0]) == 19.0 + fence_times.HEARD_S
    assert fence_times.answers_until_s(9.0, 2.0, [1.0, 19.0]) == 10.0


def test_a_new_leader_waits_for_one_witness_and_for_what_it_left():
    assert fence_times.replaces_from_s(10.0, [], {}) == 10.0
    assert fence_times.replaces_from_s(10.0, ["a", "b"], {"c": 0.0}) is None
    assert fence_times.replaces_from_s(10.0, ["a", "b"], {"b": 0.0, "c": 9.0}) == 10.0
    assert fence_times.replaces_from_s(10.0, ["a", "b"], {"a": 9.0, "b": 8.0}) == 8.0 + fence_times.LEFT_S


def test_the_own_workers_of_a_leader_get_no_time_beyond_what_it_heard_itself():
    assert fence_times.leads_at_s(9.0, []) == 9.0
    assert fence_times.leads_at_s(9.0, [20.0, None]) == 9.0
    assert fence_times.leads_at_s(9.0, [20.0, 19.0]) == 19.0
    assert fence_times.leads_at_s(9.0, [1.0, 19.0]) == 9.0


def test_it_waits_less_for_a_witness_whose_leader_alone_is_missing():
    assert (
        fence_times.replaces_from_s(10.0, ["a", "b"], {"a": 9.0, "b": 8.0}, left_alone=["b"])
        == 8.0 + fence_times.ALONE_S
    )
    assert (
        fence_times.replaces_from_s(10.0, ["a", "b"], {"a": 6.0, "b": 9.0}, left_alone=["b"])
        == 6.0 + fence_times.LEFT_S
    )
