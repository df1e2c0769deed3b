"""After iterations without progress, the next one begins at once, then later and later, and at last none does."""

from __future__ import annotations

import pytest

from supervisor.core.cluster import wrapped_call
from supervisor.core.wrapped_calls import retry_backoff
from supervisor.core.wrapped_calls.call_actions import EndCall
from supervisor.core.wrapped_calls.call_messages import BeginIteration, CallRefused, FaultsReported
from supervisor.core.wrapped_calls.call_state import Resting
from tests.core.cluster.test_wrapped_call import LOST, SETTINGS, Calls


def failed(calls: Calls, member: int = 1) -> Calls:
    """Fails an iteration on this member, and brings all to the barrier."""
    calls.begin().fault(member)
    for each in (0, 1, 2):
        if each != member:
            calls.say((each, FaultsReported(*calls.state.position)))
    return calls.arrive(0, 1, 2)


def test_a_rank_that_fails_at_once_each_time_is_waited_for_longer_and_longer_until_the_call_is_given_up() -> None:
    calls = Calls(3).enter()
    for _ in range(retry_backoff.AT_ONCE_MAX):
        assert failed(calls).said() == ["iteration_restarted"]
    waited: list[float] = []
    for _ in range(retry_backoff.IN_A_ROW_MAX - retry_backoff.AT_ONCE_MAX - 1):
        assert failed(calls).said() == ["iteration_delayed"]
        until_s = wrapped_call.next_deadline_s(calls.state)
        assert until_s is not None
        waited.append(until_s - calls.now_s)
        assert calls.pass_to(calls.now_s + waited[-1] / 2).orders == ()
        assert calls.pass_to(until_s).said() == ["iteration_restarted"]
    assert waited[:3] == pytest.approx([0.1, 0.2, 0.4])
    assert waited[-1] == SETTINGS.barrier_timeout_s / 4
    failed(calls)
    (refused,) = calls.told(CallRefused)
    assert refused.members == (0, 1, 2)
    assert isinstance(refused.order, CallRefused)
    assert refused.order.given_up
    why = "rank 1 has failed within 5 s in 30 iterations in a row; last: rank 1 failed: ValueError: bad loss"
    assert why in refused.order.reason
    assert [each.stands for each in calls.of(EndCall) if isinstance(each, EndCall)] == [False]
    calls.enter(call=2)
    assert calls.state.fruitless.in_a_row == 0  # It does not affect another call.


def test_a_fault_after_progress_restarts_at_once_however_many_were_before() -> None:
    calls = Calls(3).enter()
    for _ in range(retry_backoff.AT_ONCE_MAX):
        failed(calls)
    calls.now_s += retry_backoff.PROGRESS_S
    for _ in range(retry_backoff.AT_ONCE_MAX):
        assert failed(calls).said() == ["iteration_restarted"]


def test_what_comes_while_all_rest_is_heard() -> None:
    calls = Calls(3).enter()
    for _ in range(retry_backoff.AT_ONCE_MAX + 1):
        failed(calls)
    assert isinstance(calls.state.phase, Resting)
    calls.say((2, LOST))
    assert isinstance(calls.state.phase, Resting)
    until_s = wrapped_call.next_deadline_s(calls.state)
    assert until_s is not None
    calls.pass_to(until_s)
    assert [each.order for each in calls.told(BeginIteration)] == [
        BeginIteration(1, retry_backoff.AT_ONCE_MAX + 1, 3, (2,))
    ]
