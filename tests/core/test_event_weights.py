"""Which events do people see at once?"""

import pytest

from supervisor.core.event_weights import Weight, addition, told_after, weight


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("workers_started", Weight.ROUTINE),
        ("running_again", Weight.NEWS),
        ("worker_failed", Weight.FAULT),
        ("job_failed", Weight.LOSS),
        ("job_succeeded", Weight.ROUTINE),
        ("stacks_collected", Weight.ROUTINE),  # hang_explained reports the same
        ("a_kind_of_later_days", Weight.NEWS),
    ],
)
def test_the_weight_of_an_event(kind: str, expected: Weight) -> None:
    assert weight(kind) is expected


def test_what_was_just_told_is_not_told_again() -> None:
    assert addition("rank 1 failed; restarting at once", "rank 1 failed") == "restarting at once"
    assert addition("rank 1 failed; restarting at once", "rank 2 failed") == "rank 1 failed; restarting at once"
    assert addition("rank 1 failed", "rank 1 failed") == "rank 1 failed"
    assert addition("; x", "") == "; x"


def test_the_end_of_a_job_does_not_repeat_the_failure_that_was_just_told() -> None:
    ended = "rank 1 failed; restarts used 0 of 0"
    assert told_after(ended, "rank 1 failed", is_loss=True) == "the job ends: restarts used 0 of 0"
    assert told_after(ended, "rank 2 failed", is_loss=True) == ended
    assert told_after("rank 1 failed; restarting at once", "rank 1 failed", is_loss=False) == "restarting at once"


def test_a_line_that_begins_with_the_program_s_name_does_not_repeat_it() -> None:
    asked = "holdfast stop by kim: rank 0 has 30 s to end"
    assert told_after(asked, "", is_loss=False) == "stop by kim: rank 0 has 30 s to end"
    assert told_after(f"{asked}; rank 1, too", asked, is_loss=False) == "rank 1, too"
