"""How is a record of the core encoded as a protobuf message of the same shape, and decoded as a checked record?

A record's field is the message's field of the same name. A union of records is a message with a single oneof `body`,
whose members are named after the records. So a new order or report needs its record and its message, but no code here.
Values from the other side are checked for shape and for the bounds of their wire; decisions may rely on what passes.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Sized
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Union, cast, get_args, get_origin

import msgspec

from supervisor.edges.codec.scalars import Read, Shape, UnknownKindError, Write, as_it_is, scalar_shape
from supervisor.edges.codec.value_bounds import ITEMS_MAX, Bounds

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from google.protobuf.message import Message

BODY = "body"

Present = Callable[["Message", Any], Any]  # from a message and its attribute, which counts if it is present


# --- records and unions --------------------------------------------------------------------------------------------


class _Field(NamedTuple):
    """`read`: how to check a value that every message has; `present`: how to read one that may be absent."""

    name: str
    write: Write
    read: Read | None = None  # None: whatever protobuf returns will do
    present: Present | None = None


def record_shape(kind: type[msgspec.Struct], message: Descriptor, bounds: Bounds) -> Shape:
    fields = [_field(field, message.fields_by_name[field.name], bounds) for field in msgspec.structs.fields(kind)]
    return Shape(_record_write(fields), _record_read(kind, fields))


def _record_write(fields: list[_Field]) -> Write:
    plain = tuple(field.name for field in fields if field.write is int or field.write is bool)
    if len(plain) < 2:
        plain = ()
    writes = tuple((field.name, attrgetter(field.name), field.write) for field in fields if field.name not in plain)
    get_plain = attrgetter(*plain) if plain else None  # all in one call: a leader encodes these for each of its nodes

    def write(record: object) -> dict[str, object]:
        written = {name: write(value(record)) for name, value, write in writes}
        if get_plain is not None:
            written.update(zip(plain, get_plain(record), strict=True))
        return written

    return write


def _record_read(kind: type[msgspec.Struct], fields: list[_Field]) -> Read:
    """Returns how to read all fields in one call, then to check each that needs it."""
    if not fields:
        return lambda message: kind()
    checks = tuple((place, field.read) for place, field in enumerate(fields) if field.read is not None)
    presents = tuple((place, field.present) for place, field in enumerate(fields) if field.present is not None)
    get = attrgetter(*[field.name for field in fields])
    is_alone = len(fields) == 1

    def read(message: Message) -> msgspec.Struct:
        values = [get(message)] if is_alone else list(get(message))
        for place, check in checks:
            values[place] = check(values[place])
        for place, present in presents:
            values[place] = present(message, values[place])
        return kind(*values)

    return read


def union_shape(kinds: tuple[type[msgspec.Struct], ...], message: Descriptor, bounds: Bounds) -> Shape:
    """Returns the shape of those `kinds` that are sent: one without a member in the oneof is not."""
    by_name: dict[str, tuple[Callable[[Message], Message], Read]] = {}
    by_kind: dict[type, tuple[str, Write]] = {}
    for kind in kinds:
        name = member_name(kind)
        if name in message.fields_by_name:
            shape = record_shape(kind, _message_type(message.fields_by_name[name]), bounds)
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
            raise bounds.error(f"cannot read {title}: it is empty")
        raise UnknownKindError(f"cannot read {title}: this version has none of that kind")

    return Shape(write, read)


def member_name(kind: type) -> str:
    """Returns the member's name: NodeJoined → node_joined."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


# --- fields --------------------------------------------------------------------------------------------------------


def _field(field: msgspec.structs.FieldInfo, wire: FieldDescriptor, bounds: Bounds) -> _Field:
    hint = field.type
    name = wire.name
    if get_origin(hint) is tuple:
        shape = _list(hint, wire, bounds)
        return _Field(name, shape.write, shape.read)
    if _is_optional(hint):
        shape = _one(_without_none(hint), wire, bounds)
        return _Field(name, _unless_none(shape.write), present=_if_present(wire, shape.read, absent=None))
    shape = _one(hint, wire, bounds)
    if _is_message(hint) and not wire.containing_oneof:
        return _Field(name, shape.write, present=_required(wire, shape.read, bounds))
    if _is_message(hint):
        assert field.default_factory is not msgspec.NODEFAULT, (
            f"{wire.full_name} is optional: its record needs a default"
        )
        absent = field.default_factory()
        return _Field(name, shape.write, present=_if_present(wire, shape.read, absent=absent))
    if wire.has_presence:
        assert field.default is not msgspec.NODEFAULT, f"{wire.full_name} is optional: its record needs a default"
        absent = field.default  # older peers do not send it
        return _Field(name, shape.write, present=_if_present(wire, shape.read, absent=absent))
    return _Field(name, shape.write, None if shape.read is as_it_is else shape.read)


def _unless_none(write: Write) -> Write:
    return lambda value: None if value is None else write(value)


def _if_present(wire: FieldDescriptor, read: Read, *, absent: object) -> Present:
    name = wire.name
    assert wire.has_presence, f"{wire.full_name} can't tell absent from zero: make it optional"
    if read is as_it_is:
        return lambda message, value: value if message.HasField(name) else absent
    return lambda message, value: read(value) if message.HasField(name) else absent


def _required(wire: FieldDescriptor, read: Read, bounds: Bounds) -> Present:
    name, title = wire.name, wire.full_name

    def present(message: Message, value: object) -> object:
        if message.HasField(name):
            return read(value)
        raise bounds.error(f"cannot read a frame: {title} is missing")

    return present


def _one(hint: object, wire: FieldDescriptor, bounds: Bounds) -> Shape:
    if _is_union(hint):
        return union_shape(get_args(hint), _message_type(wire), bounds)
    if _is_message(hint):
        return record_shape(cast("type[msgspec.Struct]", hint), _message_type(wire), bounds)
    return scalar_shape(hint, wire, bounds)


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
    assert wire.message_type is not None, f"{wire.full_name} is not a message"
    return wire.message_type


# --- lists ---------------------------------------------------------------------------------------------------------


def _list(hint: object, wire: FieldDescriptor, bounds: Bounds) -> Shape:
    """Returns the shape of a tuple of scalars, of records, or of pairs (a map, or messages of two fields)."""
    item = get_args(hint)[0]
    name = wire.name
    if get_origin(item) is tuple:
        pairs = _map if _message_type(wire).GetOptions().map_entry else _pairs
        return pairs(item, wire, bounds)
    write_item, read_item = _one(item, wire, bounds)
    check_count = _count_check(name, bounds)

    def write(items: tuple[object, ...]) -> list[object]:
        return [write_item(each) for each in items]

    def read(items: Any) -> tuple[object, ...]:  # noqa: ANN401 (a container of protobuf's)
        check_count(items)
        read: list[object] = []
        for each in items:
            try:
                read.append(read_item(each))
            except UnknownKindError:
                continue  # one item of a newer version: the others still count
        return tuple(read)

    return Shape(write, read)


def _map(item: object, wire: FieldDescriptor, bounds: Bounds) -> Shape:
    """Returns the shape of a map, in the order of its keys."""
    kinds = zip(get_args(item), _message_type(wire).fields, strict=True)
    key, value = (scalar_shape(kind, field, bounds) for kind, field in kinds)
    check_count = _count_check(wire.name, bounds)

    assert key.write is int, f"{wire.full_name}: no codec for these keys"
    write_value = value.write

    def write(pairs: tuple[tuple[object, object], ...]) -> dict[object, object]:
        return {each: write_value(of) for each, of in pairs}

    def read(entries: Any) -> tuple[object, ...]:  # noqa: ANN401 (a container of protobuf's)
        check_count(entries)
        return tuple((key.read(each), value.read(of)) for each, of in sorted(entries.items()))

    return Shape(write, read)


def _pairs(item: object, wire: FieldDescriptor, bounds: Bounds) -> Shape:
    """Returns the shape of pairs, whose second item may be None if its type allows it."""
    check_count = _count_check(wire.name, bounds)
    first_kind, second_kind = get_args(item)
    first_field, second_field = _message_type(wire).fields
    first, second = first_field.name, second_field.name
    may_be_none = _is_optional(second_kind)
    key = scalar_shape(first_kind, first_field, bounds)
    value = scalar_shape(_without_none(second_kind) if may_be_none else second_kind, second_field, bounds)
    write_second = _unless_none(value.write)
    get_both = attrgetter(first, second)
    present = _if_present(second_field, value.read, absent=None) if may_be_none else None

    def write(pairs: tuple[tuple[object, object], ...]) -> list[dict[str, object]]:
        return [{first: key.write(each), second: write_second(of)} for each, of in pairs]

    def read(items: Any) -> tuple[object, ...]:  # noqa: ANN401 (a container of protobuf's)
        check_count(items)
        read: list[tuple[object, object]] = []
        for each in items:
            one, other = get_both(each)
            read.append((key.read(one), value.read(other) if present is None else present(each, other)))
        return tuple(read)

    return Shape(write, read)


def _count_check(name: str, bounds: Bounds) -> Callable[[Sized], None]:
    most = bounds.items.get(name, ITEMS_MAX)

    def check(items: Sized) -> None:
        if len(items) > most:
            raise bounds.error(f"cannot take {len(items)} {name}: the limit is {most}")

    return check
