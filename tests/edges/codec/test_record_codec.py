"""Do records and messages of the same shape convert to each other, even if one side's version is older?"""

from __future__ import annotations

from typing import cast

import msgspec
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from holdfast_wire.v1 import cluster_pb2

from supervisor.core.cluster.cluster_messages import NodeJoined
from supervisor.core.facts import JobRules, RendezvousRules
from supervisor.edges.codec.record_codec import member_name, record_shape
from supervisor.edges.peers.codec.cluster_stream_bounds import STREAM


class Grown(msgspec.Struct, frozen=True):
    """A record that has two more fields than in the previous version."""

    node: str
    retries: int = 3
    hint: str | None = None


def _described(*, optional: bool) -> Descriptor:
    file = descriptor_pb2.FileDescriptorProto(name=f"grown_{optional}.proto", package=f"g{optional}", syntax="proto3")
    message = file.message_type.add(name="Grown")
    for number, (name, kind) in enumerate((("node", 9), ("retries", 13), ("hint", 9)), 1):
        field = message.field.add(name=name, number=number, type=kind, label=1)  # pyright: ignore[reportArgumentType]
        if optional and number > 1:
            field.proto3_optional = True
            field.oneof_index = number - 2
            message.oneof_decl.add(name=f"_{name}")
    return descriptor_pool.DescriptorPool().AddSerializedFile(file.SerializeToString()).message_types_by_name["Grown"]


def _new(described: Descriptor, **values: object) -> Message:
    return message_factory.GetMessageClass(described)(**values)


def test_what_an_older_peer_does_not_say_is_the_default():
    described = _described(optional=True)
    write, read = record_shape(Grown, described, STREAM)
    assert read(_new(described, node="n")) == Grown("n")
    assert read(_new(described, node="n", retries=0, hint="")) == Grown("n", 0, "")
    for record in (Grown("n"), Grown("n", 0), Grown("n", 1, "h")):
        assert read(_new(described, **write(record))) == record


def test_a_message_that_can_not_tell_absent_from_zero_is_noticed_at_once():
    with pytest.raises(AssertionError, match="hint can't tell absent from zero: make it optional"):
        record_shape(Grown, _described(optional=False), STREAM)


def test_members_are_named_after_their_records():
    assert [member_name(kind) for kind in (NodeJoined, Grown)] == ["node_joined", "grown"]


def test_rules_that_an_older_node_does_not_know_are_the_defaults():
    kind = cluster_pb2.JobRules
    _, read = record_shape(JobRules, cast("Descriptor", kind.DESCRIPTOR), STREAM)
    older = kind(job_id="j", local_world_size=2, hang_limits={}, restart={"policy": "any-failed"})
    assert read(older).rendezvous == RendezvousRules()
