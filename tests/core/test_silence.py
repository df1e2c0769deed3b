"""What is reported of a silence, and with which time?"""

from __future__ import annotations

from supervisor.core.facts import Progress
from supervisor.core.silence import Silence, read_moment_s

TEXT = "sent nothing for {age} (limit {limit})"


def test_a_silence_is_due_one_limit_after_its_beginning():
    assert Silence(10.0, 2.5, TEXT).due_at_s == 12.5


def test_the_age_is_told_and_never_below_the_limit():
    assert Silence(10.0, 2.5, TEXT).reason(14.0) == "sent nothing for 4.0 s (limit 2.5 s)"
    assert Silence(10.0, 0.25, TEXT).reason(10.2499) == "sent nothing for 0.25 s (limit 0.25 s)"


def test_a_page_tells_of_the_moment_at_which_it_was_read():
    progress = Progress(0.0, 0.0, read_at_s=3.0)
    assert read_moment_s(progress, 5.0) == 3.0
    assert read_moment_s(progress, 2.0) == 2.0, "never in the future"
    assert read_moment_s(Progress(0.0, 0.0), 5.0) == 5.0
