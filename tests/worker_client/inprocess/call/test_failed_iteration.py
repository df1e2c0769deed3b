"""What is reported of a failed iteration, and what is released?"""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from worker_client.inprocess import Compose
from worker_client.inprocess.call import failed_iteration
from worker_client.inprocess.call.failed_iteration import (
    TRACEBACK_CHARACTERS_MAX,
    CycleCollection,
    forget,
    in_a_line,
    traceback_text,
)  # fmt: skip


class _Model:
    pass


def _raised(message: str) -> tuple[RuntimeError, weakref.ref[_Model]]:
    def fail() -> None:
        model = _Model()
        models.append(weakref.ref(model))
        raise RuntimeError(message)

    models: list[weakref.ref[_Model]] = []
    try:
        fail()
    except RuntimeError as error:
        return error, models[0]
    raise AssertionError("unreachable")


def test_what_the_frames_of_an_error_held_is_gone_and_its_story_stays():
    error, model = _raised("loss is nan")
    assert model() is not None
    forget(error)
    assert model() is None
    assert "in fail" in traceback_text(error)
    assert traceback_text(error).endswith("RuntimeError: loss is nan\n")


def test_a_very_long_story_is_told_in_part():
    """A pipe holds 64 KiB: a restart must not wait for a reader of its messages."""
    told = traceback_text(_raised("x" * 1_000_000)[0])
    assert len(told) < TRACEBACK_CHARACTERS_MAX + 100
    assert "in fail" in told
    assert "characters are left out" in told


class _Failing:
    def __call__(self) -> None:
        raise RuntimeError("loss is nan")


def test_a_story_begins_at_the_function_of_the_user_and_not_in_the_wrapper():
    with pytest.raises(RuntimeError) as raised:
        Compose(_Failing())()
    trace = raised.value.__traceback__
    assert trace is not None
    assert "compose.py" in traceback_text(raised.value)
    told = traceback_text(raised.value.with_traceback(trace.tb_next))  # without the frame of this test
    assert "compose.py" not in told
    assert "in __call__" in told
    with pytest.raises(TypeError) as own:
        Compose()
    trace = own.value.__traceback__
    assert trace is not None
    assert "compose.py" in traceback_text(own.value.with_traceback(trace.tb_next))  # nothing else would be left


def test_an_error_is_told_in_a_line():
    assert in_a_line(_raised("two\nlines")[0]) == "RuntimeError: two lines"


def _old_model_in_a_cycle(size_bytes: int) -> weakref.ref[_Model]:
    model: Any = _Model()
    model.itself, model.weights = model, b"x" * size_bytes
    gc.collect()
    return weakref.ref(model)


def test_a_failed_model_in_an_old_cycle_is_released_once_the_process_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed_iteration, "GROWN_LEAST_BYTES", 16 * 1024**2)
    monkeypatch.setattr(failed_iteration, "GROWN_FACTOR", 1.0)
    cycles = CycleCollection()
    for _ in range(2):
        small = _old_model_in_a_cycle(1024**2)
        cycles.collect()
        assert small() is not None, "all objects were searched for little"
        large = _old_model_in_a_cycle(32 * 1024**2)
        cycles.collect()
        assert large() is None
        assert small() is None


def test_a_process_that_stays_as_large_as_it_was_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    resident = iter([1000, 500, 900, 900, 0, 1000, 1300, 1290])
    monkeypatch.setattr(failed_iteration, "GROWN_LEAST_BYTES", 256)
    monkeypatch.setattr(failed_iteration, "_resident_bytes", lambda: next(resident))
    collected: list[object] = []

    def collect(*generations: int) -> None:
        collected.append(generations)

    monkeypatch.setattr(failed_iteration.gc, "collect", collect)
    cycles = CycleCollection()
    for _ in range(5):
        collected.append("restart")
        cycles.collect()
    young, full = (failed_iteration.YOUNG_GENERATION,), ()
    assert collected == [
        "restart", young, "restart", young, full, "restart", young, "restart", young, "restart", young, full,
    ]  # fmt: skip
