"""How is a field that is neither a message nor a list written and read? Every read checks the value's bounds."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from supervisor.edges.codec.value_bounds import BYTES_MAX, INT64, INT64_BOUNDS, TEXT_CHARACTERS_MAX, Bounds

if TYPE_CHECKING:
    from google.protobuf.descriptor import FieldDescriptor

Write = Callable[[Any], Any]  # from a record to what a message's constructor takes; dicts are much faster than messages
Read = Callable[[Any], Any]  # from a message's attribute to a checked value


class Shape(NamedTuple):
    write: Write
    read: Read


class UnknownKindError(Exception):
    """Raised for a member of a union, or a word, that this version does not have."""


def as_it_is(value: object) -> object:
    """Returns the value unchanged: protobuf itself has checked it."""
    return value


def scalar_shape(hint: object, wire: FieldDescriptor, bounds: Bounds) -> Shape:
    name = wire.name
    assert isinstance(hint, type), f"{wire.full_name}: no codec for {hint}"
    if issubclass(hint, enum.Enum):
        return _choice(hint, wire, bounds)
    if hint is bool:
        return Shape(bool, as_it_is)
    if hint is int:
        return _number(name, wire.type, bounds)
    if hint is float:
        return _duration(name, bounds)
    if hint is bytes:
        return _bytes(name, bounds)
    assert hint is str, f"{wire.full_name}: no codec for {hint}"
    return _name(name, bounds) if name in bounds.never_cut else _text(name, bounds)


def _choice(kind: type[enum.Enum], wire: FieldDescriptor, bounds: Bounds) -> Shape:
    """Returns the shape of a word. One of a newer version has a substitute, or its record is skipped."""
    by_value = {each.value: each for each in kind}
    substitute = bounds.substitutes.get(f"{wire.containing_type.name}.{wire.name}") if wire.containing_type else None
    assert substitute is None or substitute in kind, f"{wire.full_name} takes no {substitute}"

    def read(told: object) -> enum.Enum:
        if told in by_value:
            return by_value[told]
        if substitute is not None:
            return substitute
        raise UnknownKindError(f"cannot take {str(told)[:64]!r} for {wire.name}: no {kind.__name__} is called that")

    return Shape(attrgetter("value"), read)


def _number(name: str, wire_type: int, bounds: Bounds) -> Shape:
    lowest, highest = bounds.whole(name, wire_type)

    def read(told: int) -> int:
        if lowest <= told <= highest:
            return told
        raise bounds.error(f"cannot take {told} for {name}: it must be from {lowest} to {highest}")

    def cut(number: int) -> int:
        return min(max(number, lowest), highest)

    # A long one may come from a user's file; a short one that does not fit is our own mistake.
    if wire_type == INT64:
        return Shape(cut, read if (lowest, highest) != INT64_BOUNDS else as_it_is)
    return Shape(int, read)


def _duration(name: str, bounds: Bounds) -> Shape:
    lowest, highest = bounds.seconds(name)

    def read(told: float) -> float:
        if lowest <= told <= highest:  # false for NaN
            return told
        if highest < told < math.inf:  # a user may have meant "never"
            return highest
        raise bounds.error(f"cannot take {told} for {name}: it must be from {lowest} to {highest}")

    def cut(of: float) -> float:
        return max(lowest, min(of, highest))  # NaN, too: it may come from a user's file

    return Shape(cut, read)


def _bytes(name: str, bounds: Bounds) -> Shape:
    longest = bounds.bytes.get(name, BYTES_MAX)

    def read(told: bytes) -> bytes:
        if len(told) <= longest:
            return told
        raise bounds.error(f"cannot take {name} of {len(told)} bytes: the limit is {longest}")

    return Shape(bytes, read)


def _name(name: str, bounds: Bounds) -> Shape:
    longest = bounds.never_cut[name]
    shortest = 1 if name in bounds.never_empty else 0

    def read(told: str) -> str:
        if shortest <= len(told) <= longest:
            return told
        raise bounds.error(f"cannot take {name} of {len(told)} characters: it must be from {shortest} to {longest}")

    return Shape(_sendable, read)


def _text(name: str, bounds: Bounds) -> Shape:
    longest = bounds.cut.get(name, TEXT_CHARACTERS_MAX)

    def cut(text: str) -> str:
        return _sendable(text[:longest])

    return Shape(cut, cut)


def _sendable(text: str) -> str:
    """Replaces lone surrogates, which a file name may contain and no peer could decode."""
    return text if text.isascii() else text.encode(errors="replace").decode()
