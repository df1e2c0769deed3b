"""Which records can a supervisor keep, and what does an example of each look like?"""

from __future__ import annotations

import enum
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Union, get_args, get_origin

import msgspec
from typing_extensions import TypeIs

from supervisor.config import JobSpec
from supervisor.core.session_state import JobSessions
from supervisor.engine.job_record import RecordedCycle
from supervisor.engine.recovery.record_tags import Kind
from supervisor.engine.recovery.state_snapshot import PartedStateSnapshot, StateSnapshot
from supervisor.ports.reports import RecordedEvent

ROOTS: tuple[object, ...] = (StateSnapshot, PartedStateSnapshot, JobSessions, JobSpec, RecordedCycle, RecordedEvent)
WHOLE_DEPTH = 2  # deeper records have only the fields that they must have

_PLAIN: dict[object, object] = {str: "a", int: 7, float: 1.5, bool: True, bytes: b"\xff", type(None): None, None: None}

_COLLECTIONS: dict[object, Callable[[list[object]], object]] = {list: list, set: set, frozenset: frozenset}


def kinds() -> list[Kind]:
    """Returns the classes of all records that the types of ROOTS allow, in a fixed order."""
    seen: dict[Kind, None] = {}
    waiting: list[object] = [*ROOTS]
    while waiting:
        kind = waiting.pop()
        if get_origin(kind) is not None:
            waiting += get_args(kind)
        elif is_record(kind) and kind not in seen:
            seen[kind] = None
            if issubclass(kind, msgspec.Struct):
                waiting += [field.type for field in msgspec.structs.fields(kind)]
    return sorted(seen, key=lambda each: (each.__module__, each.__qualname__))


def sample(kind: Kind) -> object:
    """Returns the same example of a record each time, with a value in each field."""
    return _value(kind, 0)


def is_record(kind: object) -> TypeIs[Kind]:
    return inspect.isclass(kind) and get_origin(kind) is None and issubclass(kind, enum.Enum | msgspec.Struct)


def _value(kind: object, depth: int) -> object:
    if kind in _PLAIN:
        return _PLAIN[kind]
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _value(next(each for each in inner if each is not type(None)), depth)
    if origin is tuple:
        return tuple(_items(inner, depth))
    if origin is dict:
        return {_value(inner[0], depth): _value(inner[1], depth)}
    if origin in _COLLECTIONS:
        return _COLLECTIONS[origin]([_value(inner[0], depth)])
    assert is_record(kind), f"no example of {kind}"
    if issubclass(kind, enum.Enum):
        return [*kind][-1]
    fields = msgspec.structs.fields(kind)
    wanted = [field for field in fields if field.required or depth < WHOLE_DEPTH]
    return kind(**{field.name: _value(field.type, depth + 1) for field in wanted})


def _items(inner: tuple[object, ...], depth: int) -> Iterator[object]:
    for each in inner:
        if each is not Ellipsis:
            yield _value(each, depth)
