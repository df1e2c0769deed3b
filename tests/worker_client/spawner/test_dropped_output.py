"""Is dropped output reported although it is dropped again and again, seldom, and as a whole?"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from holdfast_wire.spawner_link import OutputDropped

from worker_client.spawner import dropped_output
from worker_client.spawner.dropped_output import DroppedOutput
from worker_client.spawner.event_loop import Events


@pytest.fixture
def events() -> Iterator[Events]:
    made = Events()
    yield made
    made.close()


def test_a_rank_that_prints_without_a_pause_does_not_put_off_the_report(
    events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dropped_output, "REPORT_INTERVAL_S", 0.05)
    sent: list[OutputDropped] = []
    dropped = DroppedOutput(events, "output", sent.append)
    turns, deadline_s = 0, time.monotonic() + 30
    while len(sent) < 3 and time.monotonic() < deadline_s:
        events.set_timer("the next piece", 0.001, lambda: None)
        dropped.add(0, 0, 10, "full")
        events.run_once()
        turns += 1
    assert len(sent) == 3
    assert sent[0] == OutputDropped(0, 10, "full", 0)
    assert sent[2].dropped_bytes <= turns * 10


def test_what_was_dropped_in_one_interval_is_one_report(events: Events) -> None:
    sent: list[OutputDropped] = []
    dropped = DroppedOutput(events, "output", sent.append)
    for _ in range(3):
        dropped.add(2, 0, 5, "full")
        dropped.add(2, 1, 7, "too large")
    events.run_once()
    assert sent == [OutputDropped(0, 15, "full", 2), OutputDropped(1, 21, "too large", 2)]


def test_the_rest_is_reported_once_when_asked_for(events: Events) -> None:
    sent: list[OutputDropped] = []
    dropped = DroppedOutput(events, "output", sent.append)
    dropped.add(2, 0, 5, "full")
    events.run_once()
    dropped.add(2, 0, 5, "still full")
    dropped.report()
    dropped.report()
    assert sent == [OutputDropped(0, 5, "full", 2), OutputDropped(0, 10, "still full", 2)]


def test_a_total_that_is_known_already_is_not_reported_again(events: Events) -> None:
    sent: list[OutputDropped] = []
    dropped = DroppedOutput(events, "log", sent.append)
    for _ in range(2):
        dropped.set_total(0, -1, 30, "full")
        dropped.report()
    assert sent == [OutputDropped(-1, 30, "full", 0)]


def test_each_cycle_is_counted_from_nothing(events: Events) -> None:
    """The local rank may be another rank in the next one."""
    sent: list[OutputDropped] = []
    dropped = DroppedOutput(events, "output", sent.append)
    dropped.add(0, 1, 40, "full")
    dropped.add(1, 1, 5, "full")
    dropped.end(0)
    dropped.add(0, 1, 2, "a stray child, still full")
    dropped.add(1, 1, 5, "full")
    dropped.report()
    assert sent == [
        OutputDropped(1, 40, "full", 0), OutputDropped(1, 5, "full", 1),
        OutputDropped(1, 2, "a stray child, still full", 0), OutputDropped(1, 10, "full", 1),
    ]  # fmt: skip
