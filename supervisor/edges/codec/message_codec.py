"""How does one of several records become the bytes of a message with a oneof, and back?"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import msgspec

from supervisor.edges.codec.record_codec import union_shape
from supervisor.edges.codec.value_bounds import Bounds

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor
    from google.protobuf.message import Message


class MessageCodec:
    """The codec of one kind of message. Made with the first one: protobuf takes 15 ms to load."""

    def __init__(self, kinds: tuple[type[msgspec.Struct], ...], message: type[Message], bounds: Bounds) -> None:
        """`kinds`: the records that it can carry."""
        from google.protobuf.message import DecodeError

        descriptor = cast("Descriptor", message.DESCRIPTOR)
        self._message, self._title = message, descriptor.name
        self._write, self._read = union_shape(kinds, descriptor, bounds)
        self._decode_errors = DecodeError, ValueError
        self._error = bounds.error

    def encode(self, record: msgspec.Struct) -> bytes:
        return self._message(**self._write(record)).SerializeToString()

    def decode(self, payload: bytes) -> object:
        """Returns the checked record. Raises the error of the bounds, and UnknownKindError for a newer version's."""
        message = self._message()
        try:
            message.ParseFromString(payload)
        except self._decode_errors as error:
            raise self._error(f"cannot read {self._title} of {len(payload)} bytes: {error}") from error
        return self._read(message)
