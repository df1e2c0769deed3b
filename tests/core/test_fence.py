"""How long does a leader answer, and when may a new one replace nodes? tests/sim plays what follows from it."""

from __future__ import annotations

from supervisor.core import fence


def test_a_leader_answers_beyond_its_lead_only_while_it_hears_all_witnesses():
    assert fence.answers_until_s(9.0, 2.0, []) == 10.0
    assert fence.answers_until_s(9.0, 2.0, [20.0, None]) == 10.0
    assert fence.answers_until_s(9.0, 2.0, [20.0, 19.0]) == 19.0 + fence.HEARD_S
    assert fence.answers_until_s(9.0, 2.0, [1.0, 19.0]) == 10.0


def test_a_new_leader_waits_for_one_witness_and_for_what_it_left():
    assert fence.replaces_from_s(10.0, [], {}) == 10.0
    assert fence.replaces_from_s(10.0, ["a", "b"], {"c": 0.0}) is None
    assert fence.replaces_from_s(10.0, ["a", "b"], {"b": 0.0, "c": 9.0}) == 10.0
    assert fence.replaces_from_s(10.0, ["a", "b"], {"a": 9.0, "b": 8.0}) == 8.0 + fence.LEFT_S
