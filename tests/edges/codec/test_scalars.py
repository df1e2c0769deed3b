"""Is every scalar that was read within its bounds, and every one that was written sendable?"""

from __future__ import annotations

import math
from typing import cast

import msgspec
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from holdfast_wire.v1 import cluster_pb2, worker_pb2

from supervisor.core.wrapped_calls.call_messages import Interruption
from supervisor.edges.codec.scalars import Shape, UnknownKindError, as_it_is, scalar_shape
from supervisor.edges.codec.value_bounds import INT64_BOUNDS, SECONDS_MAX, Bounds


class WireError(ValueError):
    """The error of the wire under test."""


BOUNDS = Bounds(
    error=WireError,
    whole_numbers={"cycle": (-1, 9)},
    never_empty=frozenset({"node"}),
    never_cut={"node": 4},
    cut={"reason": 3},
    bytes={"proof": 2},
)


def field(message: object, name: str) -> FieldDescriptor:
    return cast("Descriptor", message).fields_by_name[name]


def shape(hint: type, message: object, name: str) -> Shape:
    return scalar_shape(hint, field(message, name), BOUNDS)


@pytest.mark.parametrize(
    ("of", "good", "bad", "reason"),
    [
        (shape(int, cluster_pb2.NodeJoined.DESCRIPTOR, "cycle"), -1, -2, "-2 for cycle: it must be from -1 to 9"),
        (shape(str, cluster_pb2.NodeJoined.DESCRIPTOR, "node"), "n", "", "node of 0 characters"),
        (shape(str, cluster_pb2.NodeJoined.DESCRIPTOR, "node"), "node", "nodes", "node of 5 characters"),
        (shape(bytes, cluster_pb2.Hello.DESCRIPTOR, "proof"), b"12", b"123", "proof of 3 bytes"),
        (shape(float, cluster_pb2.TakeStacks.DESCRIPTOR, "budget_s"), 0.0, math.nan, "nan for budget_s"),
    ],
)
def test_what_is_out_of_bounds_is_refused_with_its_value(of: Shape, good: object, bad: object, reason: str):
    assert of.read(good) == good
    with pytest.raises(WireError, match=reason):
        of.read(bad)


def test_text_is_cut_and_made_sendable_both_ways():
    reason = shape(str, worker_pb2.RankFault.DESCRIPTOR, "reason")
    assert (reason.write("a\udcffcd"), reason.read("abcd")) == ("a?c", "abc")


def test_what_a_file_said_is_brought_within_bounds_before_it_is_sent():
    assert shape(float, cluster_pb2.TakeStacks.DESCRIPTOR, "budget_s").write(1e300) == SECONDS_MAX
    iteration = shape(int, cluster_pb2.NodeFailed.DESCRIPTOR, "training_iteration")
    assert iteration.write(10**30) == INT64_BOUNDS[1]
    assert iteration.read is as_it_is


def test_a_choice_is_one_that_this_version_knows():
    interruption = shape(Interruption, worker_pb2.RankFault.DESCRIPTOR, "interruption")
    assert (interruption.write(Interruption.TERMINATED), interruption.read(4)) == (4, Interruption.TERMINATED)
    with pytest.raises(UnknownKindError, match="'99' for interruption: no Interruption is called that"):
        interruption.read(99)


def test_a_word_of_a_newer_version_is_its_substitute():
    bounds = msgspec.structs.replace(BOUNDS, substitutes={"RankFault.interruption": Interruption.EXCEPTION})
    of_fault, of_lost = (
        field(worker_pb2.RankFault.DESCRIPTOR, "interruption"),
        field(cluster_pb2.Lost.DESCRIPTOR, "interruption"),
    )
    assert scalar_shape(Interruption, of_fault, bounds).read(99) is Interruption.EXCEPTION
    with pytest.raises(UnknownKindError):
        scalar_shape(Interruption, of_lost, bounds).read(99)
