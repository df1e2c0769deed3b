"""Does a composition run from the last to the first, and belong only to the family of its parts?"""

from __future__ import annotations

import copy
import functools
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import cast

import pytest

from worker_client.inprocess import Compose
from worker_client.inprocess.compose import fresh
from worker_client.inprocess.rank_assignment import (
    ActivateAllRanks,
    FilterCountGroupedByKey,
    MaxActiveWorldSize,
    RankAssignment,
    RankFilter,
    ShiftRanks,
)


class Step(ABC):
    @abstractmethod
    def __call__(self, value: object) -> object: ...


class Named(Step):
    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, value: object) -> object:
        return f"{self.name}({value})"


class Other(ABC):  # noqa: B024  # a family of which every member happens to be whole
    def __call__(self, value: object) -> object:
        return value


class Returning(Step):
    def __init__(self, result: object) -> None:
        self.result = result

    def __call__(self, *values: object) -> object:
        return self.result


def calls(composed: object, *args: object) -> object:
    return cast("Callable[..., object]", composed)(*args)


def test_the_last_one_runs_first():
    assert calls(Compose(Named("a"), Named("b"), Named("c")), "x") == "a(b(c(x)))"


@pytest.mark.parametrize(
    "composed",
    [
        Compose(Named("a"), Compose(Named("b"), Named("c"))),
        Compose(Compose(Named("a"), Named("b")), Named("c")),
        Compose(Compose(Named("a"), Named("b")), Compose(Named("c"))),
        Compose(Compose(Compose(Named("a"), Named("b"), Named("c")))),
    ],
)
def test_nested_compositions(composed: object):
    assert calls(composed, "x") == "a(b(c(x)))"
    assert isinstance(composed, Step)
    assert isinstance(composed, Compose)


class Mute(Step):
    """Takes no argument."""

    def __init__(self, result: object) -> None:
        self.result = result

    def __call__(self) -> object:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.result


def test_what_takes_nothing_may_return_something():
    assert calls(Compose(Mute(3))) == 3
    assert calls(Compose(Mute(None))) is None
    assert calls(Compose(Named("a"), Mute(3))) == "a(3)"
    assert calls(Compose(Named("a"), Mute(3)), "x") == "a(3)"
    assert calls(Compose(Named("a"), Mute(None)), "x") == "a(x)"
    assert calls(Compose(Mute(4), Mute(3))) == 4


def test_instances_are_kept_as_listed():
    parts = (Named("a"), Named("b"))
    composed = cast("Compose", Compose(*parts))
    assert composed.instances == parts


def test_the_family_is_the_nearest_class_in_common():
    filters = Compose(ActivateAllRanks())
    both = Compose(MaxActiveWorldSize(3), MaxActiveWorldSize(2))
    mixed = Compose(MaxActiveWorldSize(3), ShiftRanks(), FilterCountGroupedByKey("", bool))
    assert isinstance(filters, RankFilter)
    assert isinstance(both, RankFilter)
    assert isinstance(mixed, RankAssignment)
    assert not isinstance(mixed, RankFilter)
    assert isinstance(Compose(mixed), RankAssignment)


def test_different_families_have_no_family():
    for composed in (Compose(Named("a"), Other()), Compose(Other(), Named("a"))):
        assert isinstance(composed, ABC)
        assert not isinstance(composed, Step | Other)
    assert calls(Compose(Named("a"), Other()), "x") == "a(x)"


def test_callables_without_any_family():
    class Lone:
        def __call__(self, value: str) -> str:
            return value + "!"

    class Lonely:
        def __call__(self, value: str) -> str:
            return value + "?"

    assert calls(Compose(Lone(), Lonely()), "x") == "x?!"


def function(value: object) -> object:
    return value


UNFIT: list[list[object]] = [
    [],
    [function],
    [lambda: None],
    [Named("a"), function],
    [print],
    [Named],
    [Named("a").__call__],
    ["text"],
    [None],
    [Named("a"), functools.partial],
]


@pytest.mark.parametrize("given", UNFIT)
def test_what_cannot_be_composed(given: list[object]):
    with pytest.raises(TypeError, match="cannot compose"):
        Compose(*given)


def test_a_tuple_is_handed_on_as_arguments():
    class Sum(Step):
        def __call__(self, *values: int) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
            return sum(values)

    assert calls(Compose(Sum(), Returning((1, 2, 3))), "x") == 6
    assert calls(Compose(Sum()), 1, 2) == 3


def test_a_callable_without_parameters_is_run_for_its_effect():
    ran: list[str] = []

    class Effect(Step):
        def __call__(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
            ran.append("ran")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert calls(Compose(Named("a"), Effect(), Named("b")), "x") == "a(b(x))"
        assert calls(Compose(Effect())) is None
    assert ran == ["ran", "ran"]


def test_a_forgotten_return_is_warned_about():
    with pytest.warns(UserWarning, match=r"was given 'a\(x\)' and returned None"):
        assert calls(Compose(Returning(None), Named("a")), "x") is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert calls(Compose(Returning(None)), None) is None


def test_errors_go_through():
    class Fails(Step):
        def __call__(self, value: object) -> object:
            raise KeyError(value)

    with pytest.raises(KeyError, match="x"):
        calls(Compose(Named("never"), Fails()), "x")


def test_a_composition_can_be_copied():
    composed = Compose(Named("a"), Named("b"))
    for copied in (copy.copy(composed), copy.deepcopy(composed)):
        assert isinstance(copied, Step)
        assert calls(copied, "x") == "a(b(x))"


def test_fresh_renews_the_instances_that_can_be():
    class Counting(Step):
        def __init__(self) -> None:
            self.count = 0

        def __call__(self, value: object) -> object:
            self.count += 1
            return self.count

        def fresh(self) -> Counting:
            return Counting()

    composed = Compose(Counting(), Compose(Named("a")))
    assert [calls(composed, "x"), calls(composed, "x")] == [1, 2]
    renewed = fresh(composed)
    assert isinstance(renewed, Step)
    assert calls(renewed, "x") == 1
    assert calls(composed, "x") == 3
