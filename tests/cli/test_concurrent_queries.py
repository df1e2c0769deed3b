"""Does a supervisor that does not answer hold up nobody else's answer?"""

from __future__ import annotations

import threading

from supervisor.cli.concurrent_queries import ask_all
from supervisor.errors import ExhaustedError, NotNowError


def test_answers_come_in_order_and_refusals_in_their_places():
    def refuse() -> int:
        raise NotNowError("not now")

    first, second, third = ask_all([lambda: 1, refuse, lambda: 3], within_s=30)
    assert (first, third) == (1, 3)
    assert isinstance(second, NotNowError)


def test_they_are_asked_at_the_same_time():
    meeting = threading.Barrier(20)
    assert len(ask_all([lambda: meeting.wait(30)] * 20, within_s=30)) == 20
    assert not meeting.broken


def test_one_that_never_answers_is_left():
    over = threading.Event()
    answered, left = ask_all([lambda: True, lambda: over.wait(30)], within_s=0.2)
    over.set()
    assert answered is True
    assert isinstance(left, ExhaustedError)


def test_without_a_limit_all_are_waited_for():
    meeting = threading.Barrier(2)
    assert sorted(map(str, ask_all([lambda: meeting.wait(30)] * 2, within_s=None))) == ["0", "1"]
