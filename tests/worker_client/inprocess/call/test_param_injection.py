"""Which parameters get the CallWrapper?"""

from __future__ import annotations

import collections.abc
import functools
from collections.abc import Callable
from typing import Annotated, Any, Literal, Optional, Protocol, TypedDict, TypeVar, Union, runtime_checkable

import pytest

from worker_client.inprocess import CallWrapper
from worker_client.inprocess.call.param_injection import inject

_T = TypeVar("_T")


class Sub(CallWrapper): ...


class Plain(Protocol):
    def ping(self) -> None: ...


@runtime_checkable
class Checkable(Protocol):
    def ping(self) -> None: ...


class Options(TypedDict):
    lr: float


INSTANCE = object.__new__(CallWrapper)


def given(annotation: object) -> bool:
    """Returns whether a parameter with this annotation, as a string or an object, gets the instance."""

    def fn(a: int, each: Any = "default", *rest: CallWrapper, **more: CallWrapper) -> Any:  # noqa: ANN401
        return each

    fn.__annotations__["each"] = annotation
    args, kwargs = inject(fn, (1, "explicit"), {}, INSTANCE)
    value = fn(*args, **kwargs)
    assert value is INSTANCE or value == "explicit"
    return value is INSTANCE


@pytest.mark.parametrize("is_string", [False, True])
@pytest.mark.parametrize(
    ("annotation", "text", "expected"),
    [
        (CallWrapper, "CallWrapper", True),
        (Optional[CallWrapper], "Optional[CallWrapper]", True),  # noqa: UP045
        (Union[int, CallWrapper, None], "Union[int, CallWrapper, None]", True),  # noqa: UP007
        (CallWrapper | None, "CallWrapper | None", True),
        (int | CallWrapper, "int | CallWrapper", True),
        (Annotated[CallWrapper, "why not"], "Annotated[CallWrapper, 'why not']", True),
        (Annotated[CallWrapper | None, 1], "Annotated[CallWrapper | None, 1]", True),
        (object, "object", True),
        (Sub, "Sub", False),
        (Any, "Any", False),
        (bytes, "bytes", False),
        (None, "None", False),
        (int | None, "int | None", False),
        (list[int], "list[int]", False),
        (list[CallWrapper], "list[CallWrapper]", False),
        (list[CallWrapper] | None, "list[CallWrapper] | None", False),
        (Callable[[CallWrapper], int], "Callable[[CallWrapper], int]", False),
        (Literal["CallWrapper"], "Literal['CallWrapper']", False),
        (_T, "_T", False),
        (Callable, "Callable", False),
        (collections.abc.Hashable, "collections.abc.Hashable", False),
        (Plain, "Plain", False),
        (Checkable, "Checkable", False),
        (Checkable | None, "Checkable | None", False),
        (Options, "Options", False),
    ],
)
def test_the_annotation_decides(annotation: object, text: str, expected: bool, is_string: bool):
    assert given(text if is_string else annotation) == expected


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        ("absent.CallWrapper", True),
        ("Optional[absent.CallWrapper]", True),
        ("absent.CallWrapper | None", True),
        ("list[absent.CallWrapper]", False),
        ("absent.MyCallWrapper", False),
        ("absent.Other", False),
    ],
)
def test_names_for_type_checkers_only_count_by_their_text(annotation: str, expected: bool):
    assert given(annotation) == expected


def test_all_kinds_of_functions_and_parameters():
    class Trainer:
        def train(self, a: int, *, call: CallWrapper | None = None) -> object:
            return call

        def __call__(self, call: CallWrapper) -> object:
            return call

    def positional(call: CallWrapper, /, a: int = 0) -> object:
        return call

    def two(first: CallWrapper, a: int, second: CallWrapper | None = None) -> object:
        return first is second is INSTANCE

    for fn, args, expected in (
        (Trainer().train, (1,), INSTANCE),
        (Trainer(), (), INSTANCE),
        (functools.partial(Trainer().train, 1), (), INSTANCE),
        (positional, (), INSTANCE),
        (positional, ("explicit", 2), INSTANCE),
        (two, ("explicit", 1), True),
    ):
        new_args, new_kwargs = inject(fn, args, {}, INSTANCE)
        assert fn(*new_args, **new_kwargs) == expected


def test_what_is_not_annotated_is_left_alone():
    def fn(call, /, a=1, *args, b, **kwargs):  # pyright: ignore  # noqa: ANN001, ANN002, ANN003, ANN202
        return call, a, args, b, kwargs  # pyright: ignore

    assert inject(fn, (1, 2, 3), {"b": 4, "c": 5}, INSTANCE) == ((1, 2, 3), {"b": 4, "c": 5})  # pyright: ignore
    assert inject(min, (3, 4), {}, INSTANCE) == ((3, 4), {})


def test_a_call_that_can_not_be_made_is_a_type_error_at_once():
    def fn(a: int, call: CallWrapper) -> None: ...

    with pytest.raises(TypeError, match="missing a required argument: 'a'"):
        inject(fn, (), {}, INSTANCE)
    with pytest.raises(TypeError, match="unexpected"):
        inject(fn, (1,), {"b": 2}, INSTANCE)
