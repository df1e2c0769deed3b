"""Only the rank that is refused is told, with the sentence to raise."""

from __future__ import annotations

from supervisor.core.wrapped_calls.call_actions import Tell, refuse
from supervisor.core.wrapped_calls.call_messages import CallRefused


def test_a_refusal_is_for_the_rank_that_asked_and_for_its_call():
    assert refuse(3, 7, "cannot enter: the call is over") == [
        Tell((3,), CallRefused(7, "cannot enter: the call is over"))
    ]
