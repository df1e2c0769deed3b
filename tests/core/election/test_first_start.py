"""When does a first start wait for nodes that may train although the backend knows nothing of them?"""

from __future__ import annotations

from supervisor.core import fence_times
from supervisor.core.election import candidate, first_start


def test_only_a_backend_that_has_held_its_data_for_long_and_was_never_led_proves_that_none_trains():
    for held_for_s, may_train in ((0.0, True), (29.9, True), (30.0, False), (1e6, False)):
        assert first_start.may_train(held_for_s) is may_train


def test_by_then_each_node_that_trained_has_asked_for_the_lead_or_has_ended_its_workers():
    assert first_start.HELD_S > 2 * (candidate.STANDS_AGAIN_S + candidate.JITTER_S + candidate.AGAIN_S)
    assert first_start.HELD_S > 2 * (fence_times.TAKE_OVER_S + fence_times.LEFT_S)
