"""Which values may a field of one wire have? A field has the same bounds in all messages of the wire."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping

import msgspec

COUNT_MAX = 2**31 - 1
ITEMS_MAX = 2**17  # for the ranks of a job, and lists with an item for each
SECONDS_MAX = 10 * 365 * 24 * 3600.0
BYTES_MAX = 256  # a proof
TEXT_CHARACTERS_MAX = 8192  # for a sentence

# FieldDescriptor's TYPE_…: a number that can be negative has such a type.
INT64, _UINT64, _INT32 = 3, 4, 5
INT64_BOUNDS = (-(2**63), 2**63 - 1)
_BY_TYPE = {INT64: INT64_BOUNDS, _UINT64: (0, 2**63 - 1), _INT32: (-(2**31), COUNT_MAX)}

NONE: Mapping[str, int] = {}


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of a wire's fields, by name. A value outside raises `error`; text and durations are cut."""

    error: type[ValueError]
    whole_numbers: Mapping[str, tuple[int, int]]  # the others: what their type holds, COUNT_MAX at most
    never_zero: frozenset[str] = frozenset()  # durations
    never_empty: frozenset[str] = frozenset()  # among `never_cut`
    never_cut: Mapping[str, int] = NONE  # characters; longer text is refused, since a part would mean something else
    cut: Mapping[str, int] = NONE  # characters of other text, if not TEXT_CHARACTERS_MAX
    bytes: Mapping[str, int] = NONE  # if not BYTES_MAX
    items: Mapping[str, int] = NONE  # if not ITEMS_MAX
    # What a word that only a newer version knows is taken for, by Message.field. Without one, its record is skipped.
    substitutes: Mapping[str, enum.Enum] = msgspec.field(default_factory=dict[str, enum.Enum])

    def whole(self, name: str, wire_type: int) -> tuple[int, int]:
        """Returns the lowest and highest value of a whole number."""
        lowest, highest = self.whole_numbers.get(name, INT64_BOUNDS)
        lowest_of_type, highest_of_type = _BY_TYPE.get(wire_type, (0, COUNT_MAX))
        return max(lowest, lowest_of_type), min(highest, highest_of_type)

    def seconds(self, name: str) -> tuple[float, float]:
        """Returns the lowest and highest value of a duration."""
        return math.ulp(0.0) if name in self.never_zero else 0.0, SECONDS_MAX
