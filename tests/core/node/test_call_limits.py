"""Which armed limit interrupts a wrapped call, and what is said about it? The rest is in test_job_fold.py."""

from __future__ import annotations

import pytest

from supervisor.core.facts import HangLimits, Progress
from supervisor.core.node.call_limits import after_limit, sentence
from supervisor.core.wrapped_calls.call_messages import CallSettings

SETTINGS = CallSettings(soft_timeout_s=60.0, hard_timeout_s=90.0, termination_grace_s=5.0)
UNUSED = Progress(10.0, 10.0, read_at_s=10.0)  # a rank that only wraps: it has started no clock
STARTED = Progress(1.0, 1.0, read_at_s=10.0)
BEATS = Progress(1.0, 1.0, heartbeat_at_s=5.0, read_at_s=10.0)
IN_SECTIONS = Progress(1.0, 1.0, open_sections=(("step", 5.0),), read_at_s=10.0)
BETWEEN_SECTIONS = Progress(1.0, 6.0, read_at_s=10.0)
BOTH = HangLimits(initial_heartbeat_s=20.0, heartbeat_s=30.0)
SECTIONS = HangLimits(sections=(("step", 94.0), ("eval", 100.0)))


@pytest.mark.parametrize(
    ("limits", "progress", "told"),
    [
        (BOTH, UNUSED, ""),
        (BOTH, STARTED, "the limit to the first heartbeat (20.0 s)"),
        (BOTH, BEATS, "the limit between heartbeats (30.0 s)"),
        (HangLimits(heartbeat_s=95.0), BEATS, "the limit between heartbeats (95.0 s)"),
        (HangLimits(heartbeat_s=95.1), BEATS, ""),
        (HangLimits(), BEATS, ""),
        (SECTIONS, BEATS, ""),
        (SECTIONS, IN_SECTIONS, "the limit of section 'step' (94.0 s)"),
        (SECTIONS, BETWEEN_SECTIONS, "the limit of section 'step' (94.0 s)"),
        (HangLimits(out_of_section_s=9.0), BETWEEN_SECTIONS, "the limit outside of sections (9.0 s)"),
    ],
)
def test_only_an_armed_limit_that_leaves_no_room_is_told(limits: HangLimits, progress: Progress, told: str) -> None:
    text = sentence(SETTINGS, limits, progress)
    assert (text or "").startswith(told)
    assert (text is None) == (told == "")


def test_the_sentence_says_what_follows_and_after_how_long() -> None:
    assert sentence(SETTINGS, BOTH, BEATS) == (
        "the limit between heartbeats (30.0 s) runs out before hard_timeout (90.0 s) and termination_grace_time "
        "(5.0 s) of the wrapped call; if it does, all ranks first restart inside their processes, and a rank that "
        "stays silent for 60.0 s is ended"
    )


def test_the_hard_timeout_keeps_its_distance_from_the_soft_one_and_never_grows() -> None:
    assert after_limit(SETTINGS, 30.0).hard_timeout_s == 60.0
    assert after_limit(SETTINGS, 200.0) == SETTINGS
