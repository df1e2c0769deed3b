"""How do records of core and engine become text, and records again, perhaps in another version?

Each record carries its tag (record_tags.py) and the names of its fields. A reader ignores unknown fields and uses
defaults for missing ones. A record whose tag it does not know is left out: the field that holds it gets its default, a
field in the class's MAY_LACK loses that item, and otherwise the record that holds it can't be read, either. Only our
own records are ever constructed.
"""

from __future__ import annotations

import enum
import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, cast

import msgspec

from supervisor.engine.recovery.earlier_record_tags import EARLIER
from supervisor.engine.recovery.record_tags import KINDS, TAGS

TAG = "="  # the key, in JSON objects that are not plain, for the tag

_log = logging.getLogger("holdfast")


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
        found = _value(json.loads(text))
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
        raise UnreadableError(f"cannot read a record: {type(error).__name__}: {error}") from error
    if isinstance(found, _Unknown):
        raise UnreadableError(f"cannot read a record: this version knows no {found.what!r}")
    return found


# --- to text -------------------------------------------------------------------------------------------------------


def _plain(value: object) -> object:
    kind = type(value)
    if kind in (str, int, bool, type(None)):
        return value
    if kind is float:
        number = cast("float", value)
        return number if math.isfinite(number) else {TAG: "float", "v": repr(number)}
    if kind is tuple:
        return [_plain(each) for each in cast("tuple[object, ...]", value)]
    if isinstance(value, msgspec.Struct):
        return _plain_record(value)
    if isinstance(value, enum.Enum):
        return {TAG: _tag_of(kind), "v": value.value}
    write_as = _COLLECTIONS.get(kind)
    if write_as is None:
        raise TypeError(f"cannot write a {kind.__module__}.{kind.__qualname__}")
    return {TAG: kind.__name__, "v": write_as(value)}


def _plain_record(record: msgspec.Struct) -> dict[str, object]:
    name, fields = _layout(type(record))
    body: dict[str, object] = {TAG: name}
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
    return _tag_of(kind), tuple((field.name, field.default) for field in msgspec.structs.fields(kind))


def _tag_of(kind: type) -> str:
    tag = TAGS.get(kind)
    if tag is None:
        raise TypeError(f"cannot write a {kind.__module__}.{kind.__qualname__}")
    return tag


# --- from text -----------------------------------------------------------------------------------------------------


class _Unknown(msgspec.Struct, frozen=True):
    """Stands for a record of another version that this one does not know."""

    what: str


def _value(plain: object) -> object:
    if isinstance(plain, list):
        return _tuple(_value(each) for each in cast("list[object]", plain))
    if not isinstance(plain, dict):
        return plain
    body = cast("dict[str, Any]", plain)
    tag = body[TAG]
    if tag in _MAKERS:
        return _MAKERS[tag](body["v"])
    kind = KINDS.get(EARLIER.get(tag, tag))
    if kind is None:
        return _Unknown(tag)
    if issubclass(kind, enum.Enum):
        return kind(body["v"]) if body["v"] in _values_of(kind) else _Unknown(f"{tag} {body['v']}")
    return _record(kind, body)


def _record(kind: type[msgspec.Struct], body: Mapping[str, Any]) -> object:
    fields: dict[str, object] = {}
    required = _fields_of(kind)
    for name, plain in body.items():
        if name not in required:
            continue
        value = _without_unknown(plain) if name in getattr(kind, "MAY_LACK", ()) else _value(plain)
        if not isinstance(value, _Unknown):
            fields[name] = value
        elif required[name]:
            return value
        else:
            _log.warning("%s has its default: this version knows no %r", name, value.what)
    return kind(**fields)


def _without_unknown(plain: object) -> object:
    kept: list[object] = []
    for each in cast("list[object]", plain):
        value = _value(each)
        if isinstance(value, _Unknown):
            _log.warning("a message of another version is left out: this version knows no %r", value.what)
        else:
            kept.append(value)
    return tuple(kept)


def _tuple(values: Iterable[object]) -> tuple[object, ...] | _Unknown:
    found = tuple(values)
    return next((each for each in found if isinstance(each, _Unknown)), found)


def _collected(make: Callable[[tuple[object, ...]], object]) -> Callable[[Any], object]:
    def collect(items: list[object]) -> object:
        found = _tuple(_value(each) for each in items)
        return found if isinstance(found, _Unknown) else make(found)

    return collect


_MAKERS: Mapping[str, Callable[[Any], object]] = {
    "float": float,
    "dict": _collected(lambda pairs: dict(cast("Iterable[tuple[object, object]]", pairs))),
    "list": _collected(list),
    "frozenset": _collected(frozenset),
    "set": _collected(set),
    "bytes": bytes.fromhex,
}


@cache
def _fields_of(kind: type[msgspec.Struct]) -> Mapping[str, bool]:
    """Returns the names of the fields, and whether a record must have each."""
    return {field.name: field.required for field in msgspec.structs.fields(kind)}


@cache
def _values_of(kind: type[enum.Enum]) -> frozenset[object]:
    return frozenset(each.value for each in kind)
