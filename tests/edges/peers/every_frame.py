"""Which values may any record have that travels between nodes? Drawn from the records' own types.

So an order, a report or a field that the wire does not support yet fails the tests without any change here.
"""

from __future__ import annotations

import enum
import types
from typing import Union, get_args, get_origin

import msgspec
from hypothesis import strategies as st

from supervisor.core.cluster import cluster_messages
from supervisor.core.cluster.cluster_messages import Reported
from supervisor.core.node.node_messages import Ordered
from supervisor.core.orders import Introduce, Order, Resign, StandBack, TellMembers
from supervisor.core.wrapped_calls.call_messages import ToRank, Word
from supervisor.edges.peers.codec.cluster_frames import Frame, Unknown

Kind = type[msgspec.Struct]

HANDSHAKE: tuple[Kind, ...] = tuple(each for each in get_args(Frame) if each not in (Unknown, Ordered, Reported))
# Orders of a node's own side, when its connection to the leader or its own lead changes.
OWN_ORDERS: tuple[Kind, ...] = (Introduce, Resign, StandBack)
ORDERS: tuple[Kind, ...] = tuple(each for each in get_args(Order) if each not in OWN_ORDERS)
# The coordinator's own clock, and observations of its own node's server.
NEVER_TRAVEL: tuple[Kind, ...] = (
    cluster_messages.DeadlineReached,
    cluster_messages.NodeHeard,
    cluster_messages.NodeLost,
    cluster_messages.NodeSilent,
    cluster_messages.JobForbidden,
)
REPORTS: tuple[Kind, ...] = tuple(each for each in get_args(cluster_messages.Event) if each not in NEVER_TRAVEL)
TO_RANK: tuple[Kind, ...] = get_args(ToRank)
WORDS: tuple[Kind, ...] = get_args(Word)

COUNTS = st.integers(0, 2**31 - 1) | st.integers(0, 9)
SECONDS = st.floats(0.001, 3e8) | st.sampled_from([0.25, 15.0])
NAMES = st.text(min_size=1, max_size=20)
SPECIAL: dict[str, st.SearchStrategy[object]] = {
    "cycle": st.integers(-1, 2**31 - 1),
    "call": st.integers(1, 2**31 - 1),
    "local_world_size": st.integers(1, 128),
    "max_nodes": st.integers(1, 2**31 - 1),
    "segment": st.none() | st.integers(1, 2**31 - 1),
    "replacement_group_size": st.none() | st.integers(1, 2**31 - 1),
    "port": st.integers(0, 65535),
    "relay_port": st.integers(0, 65535),
    "signal": st.integers(0, 64),
    "rank_termination_signal": st.integers(0, 64),
    "training_iteration": st.none() | st.integers(-(2**63), 2**63 - 1),
    "warm_up_steps": st.integers(-(2**31), 2**31 - 1),
    "max_no_progress_cycles": st.integers(-(2**31), 2**31 - 1),
    "exit_code": st.integers(-255, 255),
    "job_id": NAMES,
    "node": NAMES,
    "host": NAMES,
    "incarnation": NAMES,
    "values": st.dictionaries(COUNTS, st.text(max_size=9), max_size=4).map(lambda each: tuple(sorted(each.items()))),
}


def records(kind: Kind) -> st.SearchStrategy[msgspec.Struct]:
    values = {
        field.name: SPECIAL[field.name] if field.name in SPECIAL and not _is_record(field.type) else _values(field.type)
        for field in msgspec.structs.fields(kind)
    }
    return st.builds(kind, **values)


def _is_record(hint: object) -> bool:
    return isinstance(hint, type) and issubclass(hint, msgspec.Struct)


def orders(kind: Kind) -> st.SearchStrategy[Ordered]:
    return st.builds(Ordered, NAMES, records(kind))


def orders_to_rank(kind: Kind) -> st.SearchStrategy[Ordered]:
    tell = st.builds(TellMembers, COUNTS, st.lists(COUNTS, max_size=4).map(tuple), records(kind))
    return st.builds(Ordered, NAMES, tell)


def reports(kind: Kind) -> st.SearchStrategy[Reported]:
    return st.builds(Reported, NAMES, records(kind))


def words(kind: Kind) -> st.SearchStrategy[Reported]:
    told = st.builds(cluster_messages.Told, COUNTS, records(kind))
    report = st.builds(cluster_messages.CallReport, NAMES, COUNTS, st.lists(told, max_size=3).map(tuple))
    return st.builds(Reported, NAMES, report)


def _values(hint: object) -> st.SearchStrategy[object]:
    if get_origin(hint) in (Union, types.UnionType):
        return st.one_of([_values(each) for each in get_args(hint)])
    if get_origin(hint) is tuple:
        item, rest = get_args(hint)
        if rest is Ellipsis:
            return st.lists(_values(item), max_size=4).map(tuple)
        return st.tuples(_values(item), _values(rest))
    assert isinstance(hint, type), f"no values known for {hint}"
    if hint is type(None):
        return st.none()
    if issubclass(hint, msgspec.Struct):
        return records(hint)
    if issubclass(hint, enum.Enum):
        return st.sampled_from(hint)
    scalars: dict[type, st.SearchStrategy[object]] = {
        bool: st.booleans(),
        int: COUNTS,
        float: SECONDS,
        str: st.text(max_size=40),
        bytes: st.binary(max_size=64),
    }
    return scalars[hint]


ALL = [
    *((kind, records(kind)) for kind in HANDSHAKE),
    *((kind, orders(kind)) for kind in ORDERS),
    *((kind, orders_to_rank(kind)) for kind in TO_RANK),
    *((kind, reports(kind)) for kind in REPORTS),
    *((kind, words(kind)) for kind in WORDS),
]
FRAMES: st.SearchStrategy[object] = st.one_of([strategy for _, strategy in ALL])
