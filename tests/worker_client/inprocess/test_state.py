"""Is a rank's state the same for us, for the function and for callbacks?"""

from __future__ import annotations

import dataclasses
import os

import pytest

from worker_client.inprocess import FrozenState, Mode, State


class Uncopyable(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} {second}")

    def __deepcopy__(self, memo: object) -> object:
        raise TypeError("not to be copied")


def test_initial_numbers_default_to_the_current_ones():
    assert State(3, 8) == State(3, 8, None, None, 3, 8, 0, Mode.INITIALIZED, None)
    assert (State(3, 8, initial_rank=0, initial_world_size=0).initial_rank) == 0


def test_order_of_the_positional_parameters():
    state = State(1, 2, 3, 4, 5, 6, 7, Mode.ACTIVE, None)
    assert dataclasses.astuple(state) == (1, 2, 3, 4, 5, 6, 7, Mode.ACTIVE, None)
    assert dataclasses.astuple(state.freeze()) == dataclasses.astuple(state)


@pytest.mark.parametrize(("environment", "expected"), [({}, (0, 1)), ({"RANK": "3", "WORLD_SIZE": "8"}, (3, 8))])
def test_from_env(environment: dict[str, str], expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    state = State.from_env()
    assert (state.rank, state.world_size) == (state.initial_rank, state.initial_world_size) == expected
    assert (state.active_rank, state.mode) == (None, Mode.INITIALIZED)


@pytest.mark.parametrize(("active_rank", "expected"), [(2, "2"), (None, "None")])
def test_the_function_s_environment(active_rank: int | None, expected: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setenv("WORLD_SIZE", "8")
    State(7, 8, active_rank=active_rank, active_world_size=4).set_distributed_vars()
    assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == (expected, "4")


def test_advance_forgets_the_exception():
    state = State(0, 1, iteration=2, fn_exception=ValueError())
    state.advance()
    assert (state.iteration, state.fn_exception) == (3, None)


def test_a_frozen_state_holds_the_very_exception_and_cannot_change():
    error = Uncopyable(1, 2)
    state = State(0, 1, fn_exception=error)
    frozen = state.freeze()
    assert frozen.fn_exception is error
    with pytest.raises(dataclasses.FrozenInstanceError):
        frozen.rank = 1  # pyright: ignore[reportAttributeAccessIssue]
    state.rank = 5
    assert frozen.rank == 0
    assert not isinstance(frozen, State)
    assert {field.name for field in dataclasses.fields(State)} == {
        field.name for field in dataclasses.fields(FrozenState)
    }


def test_copy_from_takes_all_or_what_is_named():
    source = State(4, 5, 2, 3, 6, 7, 8, Mode.INACTIVE, ValueError())
    target = State(0, 1)
    target.copy_from(source, fields=["rank", "mode"])
    assert target == State(4, 1, initial_rank=0, initial_world_size=1, mode=Mode.INACTIVE)
    target.copy_from(source.freeze())
    assert target == source
