"""Are a field's bounds those of its name, within those of its type in protobuf?"""

from __future__ import annotations

import pytest
from google.protobuf.descriptor import FieldDescriptor

from supervisor.edges.codec.value_bounds import SECONDS_MAX
from supervisor.edges.peers.codec.cluster_stream_bounds import STREAM


@pytest.mark.parametrize(
    ("name", "wire_type", "bounds"),
    [
        ("cycle", FieldDescriptor.TYPE_INT32, (-1, 2**31 - 1)),
        ("rank", FieldDescriptor.TYPE_INT32, (-1, 2**31 - 1)),
        ("rank", FieldDescriptor.TYPE_UINT32, (0, 2**31 - 1)),
        ("port", FieldDescriptor.TYPE_UINT32, (0, 65535)),
        ("world_size", FieldDescriptor.TYPE_UINT32, (0, 2**31 - 1)),
        ("exit_code", FieldDescriptor.TYPE_INT32, (-(2**31), 2**31 - 1)),
        ("term", FieldDescriptor.TYPE_UINT64, (0, 2**63 - 1)),
        ("training_iteration", FieldDescriptor.TYPE_INT64, (-(2**63), 2**63 - 1)),
    ],
)
def test_whole_numbers(name: str, wire_type: int, bounds: tuple[int, int]):
    assert STREAM.whole(name, wire_type) == bounds


def test_seconds():
    assert STREAM.seconds("budget_s") == (0.0, SECONDS_MAX)
    assert STREAM.seconds("hard_timeout_s")[0] > 0
