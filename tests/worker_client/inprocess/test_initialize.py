"""When does RetryController end the call?"""

from __future__ import annotations

import pytest

from tests.worker_client.inprocess.states import frozen_state
from worker_client.inprocess.exception import RestartAbort
from worker_client.inprocess.initialize import RetryController
from worker_client.inprocess.state import FrozenState


@pytest.mark.parametrize("state", [frozen_state(), frozen_state(iteration=2), frozen_state(world_size=2, active=2)])
def test_retries_go_on_within_the_limits(state: FrozenState):
    assert RetryController(max_iterations=3, min_world_size=2, min_active_world_size=2)(state) is state


def test_no_limit_of_iterations_is_the_default():
    RetryController()(frozen_state(world_size=1, active=1, iteration=10**6))


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (frozen_state(iteration=3), "iteration=3"),
        (frozen_state(world_size=1, active=1), "world_size=1 "),
        (frozen_state(active=1), "active_world_size=1 "),
        (frozen_state(active=0), "active_world_size=0 "),
        (frozen_state(active=None), "active_world_size=0 "),
    ],
)
def test_beyond_a_limit_the_call_ends_for_good(state: FrozenState, said: str):
    with pytest.raises(RestartAbort, match=said) as raised:
        RetryController(max_iterations=3, min_world_size=2, min_active_world_size=2)(state)
    assert not isinstance(raised.value, Exception)
    for name in ("max_iterations=3", "min_world_size=2", "min_active_world_size=2", f"iteration={state.iteration}"):
        assert name in str(raised.value)
