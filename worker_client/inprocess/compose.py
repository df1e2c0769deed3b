"""How do several callbacks of one family become one?"""

from __future__ import annotations

import inspect
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

_T = TypeVar("_T")

# Plain callables, without a base class of ours: a composition of them would belong to no family.
_PLAIN = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, type)


class Compose:
    """Composes callbacks: `Compose(a, b, c)(x)` is `a(b(c(x)))`, so the last one listed runs first.

    If an instance takes no parameters and returns nothing, the next one gets the value that it did not take. The result
    is an instance of the nearest class that all `instances` share, so a composition of aborts is an `Abort`. A family
    may refuse a composition in its class method `check_composition`, which gets the instances with nested compositions
    flattened. Raises TypeError for instances that can't be composed.
    """

    instances: tuple[Callable[..., Any], ...]  # as listed

    def __new__(cls, *instances: _T) -> _T:
        if not instances:
            raise TypeError("cannot compose callbacks: there are none; give at least one")
        for instance in instances:
            if isinstance(instance, _PLAIN) or not callable(instance):
                raise TypeError(
                    f"cannot compose {instance!r}: it is not a callback; give an instance of one of their classes"
                )
        family = _family(instances)
        check: Callable[[tuple[object, ...]], None] | None = getattr(family, "check_composition", None)
        if check is not None:
            check(tuple(flattened(instances)))
        bases = (Compose,) if family is object else (Compose, family)
        try:
            kind = cast("type[object]", types.new_class(Compose.__name__, bases, exec_body=_as_this_module))
            composed: object = object.__new__(kind)
        except TypeError as error:
            raise TypeError(
                f"cannot compose instances of {family.__name__}: {error}; give that class no slots and no metaclass"
            ) from None
        return cast(_T, composed)

    def __init__(self, *instances: Callable[..., Any]) -> None:
        self.instances = instances
        self._take_arguments = tuple(map(_takes_arguments, instances))

    def __call__(self, *args: Any) -> Any:  # noqa: ANN401  # each family decides what its callbacks take and return
        result: Any = args if len(args) != 1 else args[0]
        for instance, takes_arguments in zip(reversed(self.instances), reversed(self._take_arguments), strict=True):
            given = result
            if not takes_arguments:
                returned = instance()
                result = given if returned is None and given != () else returned
                continue
            result = instance(*cast("tuple[Any, ...]", given)) if isinstance(given, tuple) else instance(given)
            if result is None and given is not None and given != ():
                warnings.warn(f"{instance!r} was given {given!r} and returned None", UserWarning, stacklevel=2)
        return result

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return Compose, self.instances  # so that copy.copy() and copy.deepcopy() create the family's class

    def __repr__(self) -> str:
        return f"Compose({', '.join(map(repr, self.instances))})"

    def fresh(self) -> Compose:
        """Returns the same composition without its instances' memory of earlier calls of the function."""
        return cast("Compose", Compose(*(fresh(instance) for instance in self.instances)))

    def kept(self) -> Compose:
        """Returns the same composition with a copy of its instances' memory."""
        return cast("Compose", Compose(*(kept(instance) for instance in self.instances)))


def fresh(instance: _T) -> _T:
    """Returns `instance.fresh()` if its class has that method, else the instance itself."""
    renew: Callable[[], _T] | None = getattr(instance, "fresh", None)
    return instance if renew is None else renew()


def kept(instance: _T) -> _T:
    """Returns `instance.kept()` if its class has that method, a copy with the same memory, else the instance itself."""
    copied: Callable[[], _T] | None = getattr(instance, "kept", None)
    return instance if copied is None else copied()


def flattened(instances: tuple[object, ...]) -> Iterator[object]:
    """Yields all callbacks in the order listed, with nested compositions flattened."""
    for instance in instances:
        if isinstance(instance, Compose):
            yield from flattened(instance.instances)
        else:
            yield instance


def _family(instances: tuple[object, ...]) -> type:
    """Returns the first base class of the first instance that all others share. A composition counts by its family."""
    candidates: tuple[type[object], ...] = type(instances[0]).__mro__
    for candidate in candidates:
        if issubclass(candidate, Compose):
            continue
        if all(isinstance(instance, candidate) for instance in instances):
            return candidate
    return object


def _as_this_module(namespace: dict[str, Any]) -> None:
    namespace["__module__"] = __name__


def _takes_arguments(instance: Callable[..., Any]) -> bool:
    try:
        return bool(inspect.signature(instance).parameters)
    except ValueError:  # written in C, without a signature
        return True
