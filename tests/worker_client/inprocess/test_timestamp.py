"""Is a timestamp expired when either of its signs is?"""

from __future__ import annotations

from datetime import timedelta
from time import monotonic

import pytest

from worker_client.inprocess.progress_watchdog import Timestamp

AGE_S = 1000.0


@pytest.mark.parametrize(
    ("auto_age_s", "manual_age_s", "is_timed_out"),
    [(0, 0, False), (0, None, False), (AGE_S, None, True), (0, AGE_S, True), (AGE_S, 0, True), (None, None, False)],
)
def test_either_sign_that_is_too_old(auto_age_s: float | None, manual_age_s: float | None, is_timed_out: bool):
    now_s = monotonic()
    stamps = [None if age_s is None else now_s - age_s for age_s in (auto_age_s, manual_age_s)]
    assert Timestamp(*stamps).is_timed_out(timedelta(seconds=AGE_S / 2)) is is_timed_out
    assert Timestamp(*stamps).is_timed_out(timedelta(seconds=2 * AGE_S)) is False
