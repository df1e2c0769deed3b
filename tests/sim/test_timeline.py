"""Simulated time: what is planned happens in order, however far ahead it was planned."""

from __future__ import annotations

import random
from functools import partial

from supervisor.programs.simulation.simulated_timeline import AHEAD_S, Alarm, Timeline


def test_all_happens_in_the_order_of_its_moments_and_then_of_planning():
    draw = random.Random(1)
    timeline = Timeline()
    planned: list[tuple[float, int]] = []
    happened: list[tuple[float, int]] = []

    def plan() -> None:
        delay_s = draw.choice([0.0, 0.5, draw.uniform(0, 5), AHEAD_S, draw.uniform(0, 20 * AHEAD_S)])
        planned.append((timeline.now_s + delay_s, len(planned)))
        timeline.after(delay_s, partial(happen, len(planned) - 1))

    def happen(number: int) -> None:
        happened.append((timeline.now_s, number))
        for _ in range(draw.choice([0, 1, 2]) if len(planned) < 3000 else 0):
            plan()

    for _ in range(1000):
        plan()
    while timeline.next_s is not None:
        assert timeline.happen()
    assert not timeline.happen()
    assert len(planned) >= 3000
    assert happened == sorted(planned)
    assert timeline.happened == len(planned)


def test_the_past_is_now_and_what_never_comes_is_the_last():
    timeline = Timeline()
    told: list[str] = []
    timeline.at(float("inf"), partial(told.append, "never"))
    timeline.at(2 * AHEAD_S, partial(told.append, "later"))
    assert timeline.happen()
    timeline.at(1.0, partial(told.append, "past"))
    assert timeline.happen()
    assert (timeline.now_s, told) == (2 * AHEAD_S, ["later", "past"])
    assert timeline.happen()
    assert (timeline.next_s, told) == (None, ["later", "past", "never"])


def test_an_alarm_wakes_at_the_deadline_however_far_it_has_moved():
    timeline = Timeline()
    deadlines_s = [3 * AHEAD_S, 5 * AHEAD_S, 7.0]
    rang_at_s: list[float] = []

    def ring() -> None:
        rang_at_s.append(timeline.now_s)
        deadlines_s.pop()

    alarm = Alarm(timeline, lambda: deadlines_s[-1] if deadlines_s else None, ring)
    alarm.reset()
    while timeline.happen():
        pass
    assert rang_at_s == [7.0, 5 * AHEAD_S, 5 * AHEAD_S]
