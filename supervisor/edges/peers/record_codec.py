"""How is a record of the core encoded as a protobuf message of the same shape, and decoded as a checked record?

A record's field is the message's field of the same name. A union of records is a message with a single oneof `body`,
whose members are named after the records. So a new order or report needs its record and its message, but no code here.
Values from a peer are checked for shape and for the bounds in field_bounds.py; decisions may rely on what passes.
"""

from __future__ import annotations

import enum
import re
import types
from collections.abc import Callable, Sized
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Union, cast, get_args, get_origin

import msgspec

from supervisor.edges.peers import field_bounds
from supervisor.edges.peers.cluster_frames import ClusterProtocolError

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from google.protobuf.message import Message

BODY = "body"

Write = Callable[[Any], Any]  # from a record to what a message's constructor takes; dicts are much faster than messages
Read = Callable[[Any], Any]  # from a message's attribute to a checked value
Get = Callable[["Message"], Any]  # the value of one field


class UnknownKindError(Exception):
    """Raised for a member of a union for which this version has no record."""


class Shape(NamedTuple):
    write: Write
    read: Read


# --- records and unions --------------------------------------------------------------------------------------------


def record_shape(kind: type[msgspec.Struct], message: Descriptor) -> Shape:
    fields = [_field(field, message.fields_by_name[field.name]) for field in msgspec.structs.fields(kind)]
    gets = tuple(get for _, _, get in fields)
    plain = tuple(name for name, write, _ in fields if write is int or write is bool)
    if len(plain) < 2:
        plain = ()
    writes = tuple((name, attrgetter(name), write) for name, write, _ in fields if name not in plain)
    get_plain = attrgetter(*plain) if plain else None  # all in one call: a leader encodes these for each of its nodes

    def write(record: object) -> dict[str, object]:
        written = {name: write(value(record)) for name, value, write in writes}
        if get_plain is not None:
            written.update(zip(plain, get_plain(record), strict=True))
        return written

    def read(message: Message) -> msgspec.Struct:
        return kind(*[get(message) for get in gets])

    return Shape(write, read)


def union_shape(kinds: tuple[type[msgspec.Struct], ...], message: Descriptor) -> Shape:
    """Returns the shape of those `kinds` that are sent: one without a member in the oneof is not."""
    by_name: dict[str, tuple[Callable[[Message], Message], Read]] = {}
    by_kind: dict[type, tuple[str, Write]] = {}
    for kind in kinds:
        name = member_name(kind)
        if name in message.fields_by_name:
            shape = record_shape(kind, _message_type(message.fields_by_name[name]))
            by_name[name], by_kind[kind] = (attrgetter(name), shape.read), (name, shape.write)
    title = message.name

    def write(record: object) -> dict[str, object]:
        if type(record) not in by_kind:
            raise ValueError(f"cannot send {type(record).__name__} in {title}: it never travels")
        name, write_body = by_kind[type(record)]
        return {name: write_body(record)}

    def read(message: Message) -> object:
        name = message.WhichOneof(BODY)
        if name in by_name:
            body, read_body = by_name[name]
            return read_body(body(message))
        if not message.ByteSize():
            raise ClusterProtocolError(f"cannot read {title}: it is empty")
        raise UnknownKindError

    return Shape(write, read)


def member_name(kind: type) -> str:
    """Returns the member's name: NodeJoined → node_joined."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


# --- fields --------------------------------------------------------------------------------------------------------


def _field(field: msgspec.structs.FieldInfo, wire: FieldDescriptor) -> tuple[str, Write, Get]:
    """Returns its name, how to encode its value, and how to decode it from a message."""
    hint = field.type
    name = wire.name
    if get_origin(hint) is tuple:
        shape = _list(hint, wire)
        return name, shape.write, _always(name, shape.read)
    if _is_optional(hint):
        shape = _one(_without_none(hint), wire)
        return name, _unless_none(shape.write), _if_present(wire, shape.read, absent=None)
    shape = _one(hint, wire)
    if _is_message(hint) and not wire.containing_oneof:
        return name, shape.write, _required(wire, shape.read)
    if _is_message(hint):
        assert field.default_factory is not msgspec.NODEFAULT, (
            f"{wire.full_name} is optional: its record needs a default"
        )
        return name, shape.write, _if_present(wire, shape.read, absent=field.default_factory())
    if wire.has_presence:
        assert field.default is not msgspec.NODEFAULT, f"{wire.full_name} is optional: its record needs a default"
        return name, shape.write, _if_present(wire, shape.read, absent=field.default)  # older peers do not send it
    return name, shape.write, _always(name, shape.read)


def _unless_none(write: Write) -> Write:
    return lambda value: None if value is None else write(value)


def _always(name: str, read: Read) -> Get:
    value = attrgetter(name)
    return lambda message: read(value(message))


def _if_present(wire: FieldDescriptor, read: Read, *, absent: object) -> Get:
    name, value = wire.name, attrgetter(wire.name)
    assert wire.has_presence, f"{wire.full_name} can't tell absent from zero: make it optional"
    return lambda message: read(value(message)) if message.HasField(name) else absent


def _required(wire: FieldDescriptor, read: Read) -> Get:
    name, value, title = wire.name, attrgetter(wire.name), wire.full_name

    def get(message: Message) -> object:
        if message.HasField(name):
            return read(value(message))
        raise ClusterProtocolError(f"cannot read a frame: {title} is missing")

    return get


def _one(hint: object, wire: FieldDescriptor) -> Shape:
    if _is_union(hint):
        return union_shape(get_args(hint), _message_type(wire))
    if _is_message(hint):
        return record_shape(cast("type[msgspec.Struct]", hint), _message_type(wire))
    return _scalar(hint, wire)


def _is_union(hint: object) -> bool:
    return get_origin(hint) in (Union, types.UnionType)


def _is_optional(hint: object) -> bool:
    return _is_union(hint) and type(None) in get_args(hint)


def _without_none(hint: object) -> object:
    (inner,) = (each for each in get_args(hint) if each is not type(None))
    return inner


def _is_message(hint: object) -> bool:
    return _is_union(hint) or (isinstance(hint, type) and issubclass(hint, msgspec.Struct))


def _message_type(wire: FieldDescriptor) -> Descriptor:
    assert wire.message_type is not None, f"{wire.full_name} is no message"
    return wire.message_type


# --- lists ---------------------------------------------------------------------------------------------------------


def _list(hint: object, wire: FieldDescriptor) -> Shape:
    """Returns the shape of a tuple of scalars, of records, or of pairs (a map, or messages of two fields)."""
    item = get_args(hint)[0]
    name = wire.name
    if get_origin(item) is tuple:
        return _map(item, wire) if _message_type(wire).GetOptions().map_entry else _pairs(item, wire)
    write_item, read_item = _one(item, wire)

    def write(items: tuple[object, ...]) -> list[object]:
        return [write_item(each) for each in items]

    def read(items: Any) -> tuple[object, ...]:  # noqa: ANN401 (a container of protobuf's)
        _check_count(items, name)
        read: list[object] = []
        for each in items:
            try:
                read.append(read_item(each))
            except UnknownKindError:
                continue  # one item of a newer version: the others still count
        return tuple(read)

    return Shape(write, read)


def _map(item: object, wire: FieldDescriptor) -> Shape:
    """Returns the shape of a map, in the order of its keys."""
    name = wire.name
    key, value = (_scalar(kind, field) for kind, field in zip(get_args(item), _message_type(wire).fields, strict=True))

    def write(pairs: tuple[tuple[object, object], ...]) -> dict[object, object]:
        return {key.write(each): value.write(of) for each, of in pairs}

    def read(entries: Any) -> tuple[object, ...]:  # noqa: ANN401 (a container of protobuf's)
        _check_count(entries, name)
        return tuple((key.read(each), value.read(of)) for each, of in sorted(entries.items()))

    return Shape(write, read)


def _pairs(item: object, wire: FieldDescriptor) -> Shape:
    """Returns the shape of pairs, whose second item may be None if its type allows it."""
    name = wire.name
    first_kind, second_kind = get_args(item)
    first_field, second_field = _message_type(wire).fields
    first, second = first_field.name, second_field.name
    may_be_none = _is_optional(second_kind)
    key = _scalar(first_kind, first_field)
    value = _scalar(_without_none(second_kind) if may_be_none else second_kind, second_field)
    write_second = _unless_none(value.write)
    get_first = _always(first, key.read)
    get_second = _if_present(second_field, value.read, absent=None) if may_be_none else _always(second, value.read)

    def write(pairs: tuple[tuple[object, object], ...]) -> list[dict[str, object]]:
        return [{first: key.write(each), second: write_second(of)} for each, of in pairs]

    def read(items: Any) -> tuple[object, ...]:  # noqa: ANN401 (a container of protobuf's)
        _check_count(items, name)
        return tuple((get_first(each), get_second(each)) for each in items)

    return Shape(write, read)


def _check_count(items: Sized, name: str) -> None:
    if len(items) > field_bounds.ITEMS_MAX:
        raise ClusterProtocolError(f"cannot take {len(items)} {name}: the limit is {field_bounds.ITEMS_MAX}")


# --- scalars -------------------------------------------------------------------------------------------------------


def _scalar(hint: object, wire: FieldDescriptor) -> Shape:
    name = wire.name
    assert isinstance(hint, type), f"{wire.full_name}: no codec for {hint}"
    if issubclass(hint, enum.Enum):
        return _choice(hint, name)
    if hint is bool:
        return Shape(bool, bool)
    if hint is int:
        return _number(name, wire.type)
    if hint is float:
        return _duration(name)
    if hint is bytes:
        return _bytes(name)
    assert hint is str, f"{wire.full_name}: no codec for {hint}"
    return _name(name) if name in field_bounds.NEVER_CUT else _TEXT


def _choice(kind: type[enum.Enum], name: str) -> Shape:
    by_value = {each.value: each for each in kind}

    def read(told: object) -> enum.Enum:
        if told in by_value:
            return by_value[told]
        raise ClusterProtocolError(f"cannot take {str(told)[:64]!r} for {name}: no {kind.__name__} is called that")

    return Shape(attrgetter("value"), read)


def _number(name: str, wire_type: int) -> Shape:
    lowest, highest = field_bounds.whole(name, wire_type)

    def read(told: int) -> int:
        if lowest <= told <= highest:
            return told
        raise ClusterProtocolError(f"cannot take {told} for {name}: it must be from {lowest} to {highest}")

    def cut(number: int) -> int:
        return min(max(number, lowest), highest)

    # A long one may come from a user's file; a short one that does not fit is our own mistake.
    return Shape(cut if wire_type == field_bounds.INT64 else int, read)


def _duration(name: str) -> Shape:
    lowest, highest = field_bounds.seconds(name)

    def read(told: float) -> float:
        if lowest <= told <= highest:  # false for NaN
            return told
        raise ClusterProtocolError(f"cannot take {told} for {name}: it must be from {lowest} to {highest}")

    def cut(of: float) -> float:
        return max(lowest, min(of, highest))  # NaN, too: it may come from a user's file

    return Shape(cut, read)


def _bytes(name: str) -> Shape:
    longest = field_bounds.bytes_max(name)

    def read(told: bytes) -> bytes:
        if len(told) <= longest:
            return told
        raise ClusterProtocolError(f"cannot take {name} of {len(told)} bytes: the limit is {longest}")

    return Shape(bytes, read)


def _name(name: str) -> Shape:
    longest = field_bounds.NEVER_CUT[name]
    shortest = 1 if name in field_bounds.NEVER_EMPTY else 0

    def read(told: str) -> str:
        if shortest <= len(told) <= longest:
            return told
        raise ClusterProtocolError(
            f"cannot take {name} of {len(told)} characters: it must be from {shortest} to {longest}"
        )

    return Shape(_sendable, read)


def _sendable(text: str) -> str:
    """Replaces lone surrogates, which a file name may contain and no peer could decode."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def _cut(text: str) -> str:
    return _sendable(text[: field_bounds.TEXT_CHARACTERS_MAX])


_TEXT = Shape(_cut, _cut)
