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
    assert fence_times.leads_at_s(9.0, [], None) == 9.0
    assert fence_times.leads_at_s(9.0, [20.0, None], None) == 9.0
    assert fence_times.leads_at_s(9.0, [20.0, 19.0], None) == 19.0
    assert fence_times.leads_at_s(9.0, [1.0, 19.0], None) == 9.0


def test_the_own_workers_of_a_leader_that_no_node_confirms_end_soon_after_its_last_renewal():
    assert fence_times.leads_at_s(9.0, [20.0, 19.0], 18.0) == 18.0
    assert fence_times.leads_at_s(9.0, [1.0, 19.0], 18.0) == 9.0
    assert fence_times.leads_at_s(19.0, [20.0, 20.0], 8.0) + fence_times.FENCE_S == 19.0 + fence_times.UNCONFIRMED_S


def test_the_first_nodes_of_the_cycle_confirm_without_the_leader():
    assert fence_times.confirmers(("a", "b", "c"), "b") == ("a", "c")
    assert fence_times.confirmers(("a", "b", "c"), "b", vacant=("c",)) == ("a",)
    assert fence_times.confirmers(("a",), "a") == ()
    assert fence_times.confirmers(("a", "b"), "spare") == ()  # it has no workers that could be replaced
    many = tuple(f"n{number}" for number in range(20))
    assert fence_times.confirmers(many, "n1") == ("n0", *many[2 : fence_times.CONFIRMERS_MAX + 1])


def test_it_waits_less_for_a_witness_whose_leader_alone_is_missing():
    assert (
        fence_times.replaces_from_s(10.0, ["a", "b"], {"a": 9.0, "b": 8.0}, left_alone=["b"])
        == 8.0 + fence_times.ALONE_S
    )
    assert (
        fence_times.replaces_from_s(10.0, ["a", "b"], {"a": 6.0, "b": 9.0}, left_alone=["b"])
        == 6.0 + fence_times.LEFT_S
    )
