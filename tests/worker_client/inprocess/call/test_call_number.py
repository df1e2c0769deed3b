"""Calls are counted, one at a time, on the main thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from worker_client.inprocess.call import call_number


@pytest.fixture(autouse=True)
def _no_call() -> Iterator[None]:
    yield
    call_number.end()


def test_calls_are_counted():
    first = call_number.begin()
    call_number.end()
    assert call_number.begin() == first + 1


def test_no_call_begins_within_another():
    call_number.check_may_begin()
    call_number.begin()
    with pytest.raises(ValueError, match="another one is running in this process"):
        call_number.check_may_begin()
    call_number.end()
    call_number.check_may_begin()


def test_a_call_begins_on_the_main_thread():
    told: list[str] = []

    def begin() -> None:
        try:
            call_number.check_may_begin()
        except ValueError as error:
            told.append(str(error))

    thread = threading.Thread(target=begin)
    thread.start()
    thread.join()
    assert told == ["cannot call the wrapped function: this is not the main thread; call it on the main thread"]
