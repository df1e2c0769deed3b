"""Waiting data is bounded, and losses are never silent."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from worker_client.outbox import CALL_FRAMES_MAX, CONTROL_REQUESTS_MAX, Outbox, OverfullError, Watch
from worker_client.timeouts import Limits
from worker_client.workload_control import WorkloadAction, WorkloadControlRequest

REQUEST = WorkloadControlRequest(action=WorkloadAction.ShutdownWorkload, description="enough")


@pytest.fixture
def woken() -> list[int]:
    return []


@pytest.fixture
def outbox(woken: list[int]) -> Outbox:
    return Outbox(lambda: woken.append(1))


def test_notes_are_taken_in_the_order_that_a_judge_needs(outbox: Outbox, woken: list[int]):
    outbox.request(REQUEST)
    outbox.tell_limits(Limits(heartbeat_s=1))
    outbox.say(b"one")
    outbox.say(b"two")
    outbox.tell_watch()
    assert len(woken) == 5
    assert [outbox.take() for _ in range(6)] == [
        Watch.CHANGED, b"one", b"two", Limits(heartbeat_s=1), (1, REQUEST), None,
    ]  # fmt: skip


def test_the_newest_limits_stand_for_all_before_them(outbox: Outbox):
    for limit_s in range(1, 1000):
        outbox.tell_limits(Limits(heartbeat_s=limit_s))
    assert outbox.take() == Limits(heartbeat_s=999)
    assert outbox.take() is None


def test_more_frames_than_can_wait_end_the_connection_and_the_next_begins_without_them(outbox: Outbox):
    for number in range(CALL_FRAMES_MAX):
        outbox.say(b"%d" % number)
    assert outbox.take() == b"0"
    outbox.say(b"last")
    outbox.say(b"too many")
    with pytest.raises(OverfullError, match=f"more than {CALL_FRAMES_MAX} frames"):
        outbox.take()
    outbox.start_over()
    assert outbox.take() is None
    outbox.say(b"again")
    assert outbox.take() == b"again"


def test_a_request_is_made_again_on_each_connection_until_it_is_accepted(outbox: Outbox):
    first, second = outbox.request(REQUEST), outbox.request(REQUEST)
    assert first is not None
    assert second is not None
    assert outbox.has_requests
    assert outbox.take() == (1, REQUEST)
    outbox.answered(1)
    assert first.is_set()
    outbox.start_over()
    assert [outbox.take(), outbox.take()] == [(2, REQUEST), None]
    outbox.answered(2)
    outbox.answered(2)
    assert second.is_set()
    assert not outbox.has_requests


def test_too_many_requests_are_refused_at_once(outbox: Outbox):
    assert all(outbox.request(REQUEST) for _ in range(CONTROL_REQUESTS_MAX))
    assert outbox.request(REQUEST) is None


def test_all_is_sent_once_the_kernel_has_it_and_not_after_a_loss(outbox: Outbox):
    outbox.say(b"leave")
    outbox.taken()  # what was sent before
    assert not outbox.wait_sent(0)
    outbox.take()
    assert not outbox.wait_sent(0)
    outbox.start_over()
    assert not outbox.wait_sent(0)
    outbox.say(b"leave")
    outbox.take()
    outbox.taken()
    assert outbox.wait_sent(0)
    outbox.start_over()
    assert not outbox.wait_sent(0)
    outbox.give_up()
    assert outbox.wait_sent(0)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("busy", ["say", "withdraw"])
def test_a_signal_handler_may_request_in_the_middle_of_a_call(outbox: Outbox, busy: str):
    """It runs in the thread that holds the lock."""
    handled = 0

    def handle(*_: object) -> None:
        nonlocal handled
        handled += 1
        outbox.request(REQUEST)

    before = signal.signal(signal.SIGVTALRM, handle)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.001, 0.001)
    try:
        while handled < 200:
            if busy == "say":
                outbox.say(b"frame")
                outbox.take()
            outbox.withdraw(REQUEST)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def test_a_wait_ends_once_all_frames_are_sent_or_nothing_more_is(outbox: Outbox):
    outbox.say(b"frame")
    assert not outbox.wait_sent(0.01)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(outbox.wait_sent, 10)
        assert outbox.take() == b"frame"
        outbox.taken()
        assert waiting.result()
        assert outbox.wait_sent(0)
        outbox.say(b"another")
        waiting = threads.submit(outbox.wait_sent, 10)
        outbox.give_up()
        assert waiting.result()
