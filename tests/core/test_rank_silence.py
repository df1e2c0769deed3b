"""What is reported of a silence, and with which time?"""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.facts import CallWatch, Progress, WatchMode
from supervisor.core.rank_silence import Silence, read_moment_s, without_absences

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


def test_the_time_without_a_supervisor_is_in_no_silence():
    watch = CallWatch(WatchMode.ON, since_s=8.0, progressed_at_s=12.0, ping_at_s=40.0)
    progress = Progress(1.0, 9.0, 11.0, 5, (("step", 10.0),), read_at_s=50.0, call_watch=watch, executed_at_s=24.0)
    moved = without_absences(progress, [(10.0, 13.0), (20.0, 25.0)])
    assert (moved.initialised_at_s, moved.out_of_section_since_s) == (9.0, 17.0)
    assert moved.heartbeat_at_s == 13.0 + 5.0, "it came while nobody was there: its silence began with the return"
    assert moved.open_sections == (("step", 18.0),)
    assert moved.call_watch == CallWatch(WatchMode.ON, since_s=16.0, progressed_at_s=18.0, ping_at_s=40.0)
    assert (moved.read_at_s, moved.heartbeats, moved.executed_at_s) == (50.0, 5, 25.0)
    assert without_absences(progress, []) == progress
    assert without_absences(Progress(1.0, 1.0), [(0.0, 5.0)]).heartbeat_at_s is None


TIMES = st.lists(st.floats(0, 100, allow_nan=False), min_size=2, max_size=8, unique=True).map(sorted)


@given(times=TIMES, stamps=st.lists(st.floats(0, 100, allow_nan=False), min_size=2, max_size=6).map(sorted))
def test_a_silence_only_gets_shorter_and_a_later_stamp_stays_later(times: list[float], stamps: list[float]):
    absences = list(zip(times[::2], times[1::2], strict=False))
    moved = [without_absences(Progress(stamp, stamp), absences).initialised_at_s for stamp in stamps]
    assert all(after >= before for before, after in zip(stamps, moved, strict=True))
    assert all(second >= first - 1e-9 for first, second in pairwise(moved))
    away_s = sum(back_s - lost_s for lost_s, back_s in absences)
    assert all(after - before <= away_s + 1e-9 for before, after in zip(stamps, moved, strict=True))
