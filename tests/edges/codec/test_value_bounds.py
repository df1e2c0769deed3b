"""Are the bounds of a field those that its wire names, and else those of its type?"""

from __future__ import annotations

import math

from google.protobuf.descriptor import FieldDescriptor

from supervisor.edges.codec.value_bounds import COUNT_MAX, SECONDS_MAX, Bounds

WIRE = Bounds(error=ValueError, whole_numbers={"port": (0, 65535), "shift": (-3, 3)}, never_zero=frozenset({"limit_s"}))


def test_a_named_number_stays_within_its_type_too():
    assert WIRE.whole("port", FieldDescriptor.TYPE_UINT32) == (0, 65535)
    assert WIRE.whole("shift", FieldDescriptor.TYPE_INT32) == (-3, 3)
    assert WIRE.whole("shift", FieldDescriptor.TYPE_UINT32) == (0, 3)


def test_a_number_without_a_name_has_the_bounds_of_its_type():
    assert WIRE.whole("pids", FieldDescriptor.TYPE_UINT32) == (0, COUNT_MAX)
    assert WIRE.whole("pids", FieldDescriptor.TYPE_INT64) == (-(2**63), 2**63 - 1)


def test_durations_are_not_negative_and_some_never_zero():
    assert WIRE.seconds("took_s") == (0.0, SECONDS_MAX)
    assert WIRE.seconds("limit_s") == (math.ulp(0.0), SECONDS_MAX)
