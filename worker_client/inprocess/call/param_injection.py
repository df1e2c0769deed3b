"""Which parameters of the wrapped function get the CallWrapper?

These are parameters whose annotation admits one: the class itself, a base class, or a union that contains one of them.
Annotations may be strings, even with names that exist only for type checkers.
"""

from __future__ import annotations

import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_NOT_INJECTED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def inject(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], instance: object
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments for a call of `fn`, with `instance` replacing the caller's value of such a parameter.

    Raises TypeError if `fn` can't be called with the result.
    """
    try:
        signature = inspect.signature(fn)
    except ValueError:  # written in C, without a signature
        return tuple(args), dict(kwargs)
    bound = signature.bind_partial(*args, **kwargs)
    for name in _matching(fn, signature, type(instance)):
        bound.arguments[name] = instance
    signature.bind(*bound.args, **bound.kwargs)
    return bound.args, bound.kwargs


def _matching(fn: Callable[..., Any], signature: inspect.Signature, wanted: type) -> list[str]:
    hints: dict[str, Any] | None = None
    names: list[str] = []
    for name, parameter in signature.parameters.items():
        annotation: Any = parameter.annotation
        if annotation is inspect.Parameter.empty or parameter.kind in _NOT_INJECTED:
            continue
        if isinstance(annotation, str):
            hints = _hints(fn) if hints is None else hints
            annotation = hints.get(name, annotation)
        if _admits(annotation, wanted):
            names.append(name)
    return names


def _admits(annotation: Any, wanted: type) -> bool:  # noqa: ANN401  # an annotation may be anything
    if isinstance(annotation, typing.ForwardRef):
        annotation = annotation.__forward_arg__
    if isinstance(annotation, str):
        # A name that exists only for type checkers.
        return re.search(rf"(?<![\w]){wanted.__name__}(?!\w)", annotation) is not None and "[" not in _bare(annotation)
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _admits(typing.get_args(annotation)[0], wanted)
    if origin is typing.Union or origin is types.UnionType:
        return any(_admits(each, wanted) for each in typing.get_args(annotation))
    return isinstance(annotation, type) and annotation in wanted.__mro__  # issubclass() would ask the annotation itself


def _bare(annotation: str) -> str:
    """Strips unions: what is left of `Optional[CallWrapper]` has no brackets, what is left of `list[…]` has."""
    return re.sub(r"(?:\w+\.)*(?:Optional|Union|Annotated)\[([^\[\]]*)\]", r"\1", annotation)


def _hints(fn: Callable[..., Any]) -> dict[str, Any]:
    """Returns the resolved annotations; nothing if one of them can't be resolved."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = inspect.unwrap(fn)
    has_code = inspect.isfunction(fn) or inspect.ismethod(fn)
    try:
        return typing.get_type_hints(fn if has_code or isinstance(fn, type) else type(fn).__call__, include_extras=True)
    except Exception:  # noqa: BLE001  # an annotation may raise anything; its text is used instead
        return {}
