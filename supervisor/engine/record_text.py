"""How do records of core and engine become text, and records again, perhaps in another version?

Each record carries the names of its class and its fields. A reader ignores unknown fields and uses defaults for missing
ones; an unknown class can't be read. Only our own records are ever constructed.
"""

from __future__ import annotations

import enum
import importlib
import json
import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, cast

import msgspec

KIND = "="  # the key, in JSON objects that are not plain, for the class name
_ROOT = "supervisor."
_ROOMS = ("core.", "config.", "ports", "engine.job_book", "engine.keepsakes")


class UnreadableError(ValueError):
    """Raised for text with anything else, or with a record that this version does not know."""


def write(value: object) -> str:
    """Encodes a record. Raises TypeError for anything but records, numbers, text and collections of these."""
    plain = _plain(value)
    try:
        return msgspec.json.encode(plain).decode()
    except UnicodeEncodeError:  # bytes of a name that are not text, as Python represents them
        return json.dumps(plain, separators=(",", ":"))


def read(text: str) -> object:
    """Decodes a record. Raises UnreadableError."""
    try:
        return _value(json.loads(text))
    except (TypeError, ValueError, KeyError, AttributeError, ImportError) as error:
        raise UnreadableError(f"cannot read a record: {type(error).__name__}: {error}") from error


# --- to text -------------------------------------------------------------------------------------------------------


def _plain(value: object) -> object:
    kind = type(value)
    if kind in (str, int, bool, type(None)):
        return value
    if kind is float:
        number = cast("float", value)
        return number if math.isfinite(number) else {KIND: "float", "v": repr(number)}
    if kind is tuple:
        return [_plain(each) for each in cast("tuple[object, ...]", value)]
    if isinstance(value, msgspec.Struct):
        return _plain_record(value)
    if isinstance(value, enum.Enum):
        return {KIND: _name_of(kind), "v": value.value}
    write_as = _COLLECTIONS.get(kind)
    if write_as is None:
        raise TypeError(f"cannot write a {kind.__module__}.{kind.__qualname__}")
    return {KIND: kind.__name__, "v": write_as(value)}


def _plain_record(record: msgspec.Struct) -> dict[str, object]:
    name, fields = _layout(type(record))
    body: dict[str, object] = {KIND: name}
    for field, default in fields:
        value = getattr(record, field)
        if value is not default:  # skips defaults: small numbers, None, ""
            body[field] = _plain(value)
    return body


def _pairs(value: object) -> list[list[object]]:
    return [[_plain(key), _plain(each)] for key, each in cast("Mapping[object, object]", value).items()]


def _items(value: object) -> list[object]:
    return [_plain(each) for each in cast("list[object]", value)]


_COLLECTIONS: Mapping[type, Callable[[object], object]] = {
    dict: _pairs,
    list: _items,
    frozenset: _items,
    set: _items,
    bytes: lambda value: cast("bytes", value).hex(),
}


@cache
def _layout(kind: type[msgspec.Struct]) -> tuple[str, tuple[tuple[str, object], ...]]:
    """Returns the name of the class, and its fields with their defaults."""
    return _name_of(kind), tuple((field.name, field.default) for field in msgspec.structs.fields(kind))


@cache
def _name_of(kind: type) -> str:
    room = kind.__module__.removeprefix(_ROOT)
    if not room.startswith(_ROOMS):
        raise TypeError(f"cannot write a {kind.__module__}.{kind.__qualname__}")
    return f"{room}:{kind.__qualname__}"


# --- from text -----------------------------------------------------------------------------------------------------


def _value(plain: object) -> object:
    if isinstance(plain, list):
        return tuple(_value(each) for each in cast("list[object]", plain))
    if not isinstance(plain, dict):
        return plain
    body = cast("dict[str, Any]", plain)
    name = body[KIND]
    if name in _MAKERS:
        return _MAKERS[name](body["v"])
    kind = _class_of(name)
    if issubclass(kind, enum.Enum):
        return kind(body["v"])
    known = _fields_of(kind)
    return kind(**{field: _value(each) for field, each in body.items() if field in known})


_MAKERS: Mapping[str, Callable[[Any], object]] = {
    "float": float,
    "dict": lambda pairs: {_value(key): _value(each) for key, each in pairs},
    "list": lambda items: [_value(each) for each in items],
    "frozenset": lambda items: frozenset(_value(each) for each in items),
    "set": lambda items: {_value(each) for each in items},
    "bytes": bytes.fromhex,
}


@cache
def _class_of(name: str) -> type[enum.Enum] | type[msgspec.Struct]:
    room, _, path = name.partition(":")
    if not room.startswith(_ROOMS):
        raise UnreadableError(f"cannot read a {name}")
    found: object = importlib.import_module(f"{_ROOT}{room}")
    for part in path.split("."):
        found = getattr(found, part)
    is_record = isinstance(found, type) and issubclass(found, enum.Enum | msgspec.Struct)
    if is_record and found.__module__ == f"{_ROOT}{room}":
        return cast("type[enum.Enum] | type[msgspec.Struct]", found)
    raise UnreadableError(f"cannot read a {name}")


@cache
def _fields_of(kind: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(field.name for field in msgspec.structs.fields(kind))
