"""Which limit of the monitoring would end the cycle before a wrapped call can restart?"""

from __future__ import annotations

import pytest

from supervisor.core.calls.timeout_clash import clash
from supervisor.core.calls.words import CallSettings
from supervisor.core.facts import HangLimits

SETTINGS = CallSettings(hard_timeout_s=90.0, termination_grace_s=5.0)


@pytest.mark.parametrize(
    ("limits", "sends_heartbeats", "fits"),
    [
        (HangLimits(), True, True),
        (HangLimits(heartbeat_s=95.0), False, False),
        (HangLimits(heartbeat_s=95.1), True, True),
        (HangLimits(heartbeat_s=None, out_of_section_s=10.0), False, False),
        (HangLimits(sections=(("step", None), ("eval", 100.0))), False, True),
        (HangLimits(sections=(("step", 94.0), ("eval", 100.0))), False, False),
    ],
)
def test_the_hard_timeout_and_its_grace_are_below_every_limit(
    limits: HangLimits, sends_heartbeats: bool, fits: bool
) -> None:
    assert (clash(SETTINGS, limits, sends_heartbeats=sends_heartbeats) is None) == fits


def test_the_default_limit_counts_only_where_heartbeats_are_sent() -> None:
    slow = CallSettings(hard_timeout_s=3000.0)
    assert clash(slow, HangLimits(), sends_heartbeats=False) is None
    assert clash(slow, HangLimits(), sends_heartbeats=True) is not None


def test_the_shortest_limit_is_named_with_both_values() -> None:
    text = clash(SETTINGS, HangLimits(initial_heartbeat_s=60.0, out_of_section_s=30.0), sends_heartbeats=False)
    assert text is not None
    assert text.startswith("hard_timeout 90.0 s and termination_grace_time 5.0 s are not below the limit outside of")
    assert "30.0 s, which would end the whole cycle first" in text
