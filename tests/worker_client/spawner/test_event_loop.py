"""Does the spawner's loop call what is ready or due, once, and nothing that was forgotten?"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from worker_client.spawner.event_loop import READ, WRITE, Events


@pytest.fixture
def events() -> Iterator[Events]:
    made = Events()
    yield made
    made.close()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)
    os.close(writer)


def test_a_descriptor_is_called_each_time_it_is_ready(events: Events, pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    read: list[bytes] = []
    events.watch(reader, READ, lambda: read.append(os.read(reader, 1)))
    os.write(writer, b"ab")
    events.run_once()
    events.run_once()
    assert read == [b"a", b"b"]


def test_watching_again_replaces_both_the_mask_and_the_callback(events: Events, pipe: tuple[int, int]) -> None:
    _, writer = pipe
    called: list[str] = []
    events.watch(writer, READ, lambda: called.append("first"))
    events.watch(writer, WRITE, lambda: called.append("second"))
    events.run_once()
    assert called == ["second"]


def test_one_that_an_earlier_callback_forgets_is_not_called(events: Events, pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.write(writer, b".")
    called: list[int] = []

    def call(fd: int) -> None:
        called.append(fd)
        for each in (reader, writer):
            events.forget(each)

    events.watch(reader, READ, lambda: call(reader))
    events.watch(writer, WRITE, lambda: call(writer))
    events.run_once()
    assert len(called) == 1
    events.forget(reader)  # not watched any more: no error


def test_a_timer_is_called_once_and_not_before_its_time(events: Events) -> None:
    called: list[float] = []
    began_s = time.monotonic()
    events.set_timer("one", 0.05, lambda: called.append(time.monotonic() - began_s))
    events.set_timer("two", 0.1, lambda: None)
    while len(called) < 1:
        events.run_once()
    events.run_once()
    assert len(called) == 1
    assert called[0] >= 0.05


def test_a_timer_of_the_same_name_replaces_the_first_and_may_be_cancelled(events: Events) -> None:
    called: list[str] = []
    events.set_timer("a", 0.0, lambda: called.append("replaced"))
    events.set_timer("a", 0.0, lambda: called.append("a"))
    events.set_timer("b", 0.0, lambda: called.append("cancelled"))
    events.cancel_timer("b")
    events.cancel_timer("never set")
    events.run_once()
    assert called == ["a"]


def test_a_timer_that_a_callback_sets_again_waits_for_its_own_time(events: Events) -> None:
    called: list[str] = []

    def again() -> None:
        called.append("first")
        events.set_timer("it", 0.0, lambda: called.append("second"))

    events.set_timer("it", 0.0, again)
    events.run_once()
    assert called == ["first"]
    events.run_once()
    assert called == ["first", "second"]


def test_a_timer_that_another_one_of_the_same_turn_cancels_or_replaces_is_not_called(events: Events) -> None:
    called: list[str] = []

    def first() -> None:
        called.append("first")
        events.cancel_timer("cancelled")
        events.set_timer("replaced", 60.0, lambda: called.append("its successor"))

    events.set_timer("first", 0.0, first)
    events.set_timer("cancelled", 0.0, lambda: called.append("cancelled"))
    events.set_timer("replaced", 0.0, lambda: called.append("replaced"))
    events.run_once()
    assert called == ["first"]


def test_what_falls_due_during_a_callback_waits_for_what_has_come_meanwhile(
    events: Events, pipe: tuple[int, int]
) -> None:
    reader, writer = pipe
    called: list[str] = []

    def read() -> None:
        if os.read(reader, 1) == b"a":
            os.write(writer, b"b")
            while time.monotonic() < due_s:
                time.sleep(0.01)
        else:
            events.cancel_timer("it")

    events.watch(reader, READ, read)
    os.write(writer, b"a")
    due_s = time.monotonic() + 0.2
    events.set_timer("it", 0.2, lambda: called.append("it"))
    events.set_timer("another", 0.2, lambda: called.append("another"))
    while not called:
        events.run_once()
    assert called == ["another"]
