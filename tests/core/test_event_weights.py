"""Which events do people see at once?"""

import pytest

from supervisor.core.event_weights import Weight, weight


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
