"""What are the bounds of each field of the cluster stream?"""

from __future__ import annotations

import math

from holdfast_wire.call_bounds import EXCHANGE_VALUE_CHARACTERS_MAX
from holdfast_wire.framing import CLUSTER_FRAME_BYTES_MAX

COUNT_MAX = 2**31 - 1
ITEMS_MAX = 2**17  # for the ranks of a job, and lists with an item for each
SECONDS_MAX = 10 * 365 * 24 * 3600.0
UNIX_SECONDS_MAX = 1e12
BYTES_MAX = 256  # a proof
NAME_CHARACTERS_MAX = 256
TEXT_CHARACTERS_MAX = 8192  # for a sentence; longer text is cut

NEVER_EMPTY = frozenset({"job_id", "node", "incarnation", "host"})
# Refused above this: a part would mean something else than the whole.
NEVER_CUT = dict.fromkeys((*NEVER_EMPTY, "name"), NAME_CHARACTERS_MAX) | {
    "value": EXCHANGE_VALUE_CHARACTERS_MAX,
    "stack": CLUSTER_FRAME_BYTES_MAX,
    "detail": CLUSTER_FRAME_BYTES_MAX,
}

_BYTES = {"question": CLUSTER_FRAME_BYTES_MAX, "answer": CLUSTER_FRAME_BYTES_MAX, "output": CLUSTER_FRAME_BYTES_MAX}

_WHOLE = {
    "cycle": (-1, COUNT_MAX),  # -1: before the first cycle
    "next_cycle": (0, COUNT_MAX),
    "rank": (-1, COUNT_MAX),  # -1: known only to its supervisor
    "call": (1, COUNT_MAX),
    "local_world_size": (1, COUNT_MAX),
    "max_nodes": (1, COUNT_MAX),
    "segment": (1, COUNT_MAX),
    "replacement_group_size": (1, COUNT_MAX),
    "port": (0, 65535),
    "relay_port": (0, 65535),
    "signal": (0, 64),
    "rank_termination_signal": (0, 64),
}
# A zero timeout would end a healthy rank.
_NEVER_ZERO = frozenset({"soft_timeout_s", "hard_timeout_s", "barrier_timeout_s", "heartbeat_timeout_s"})

# FieldDescriptor's TYPE_…: a number that can be negative has such a type.
INT64, _UINT64, _INT32 = 3, 4, 5
_BY_TYPE = {INT64: (-(2**63), 2**63 - 1), _UINT64: (0, 2**63 - 1), _INT32: (-(2**31), COUNT_MAX)}


def whole(name: str, wire_type: int) -> tuple[int, int]:
    """Returns the lowest and highest value of a whole number."""
    lowest, highest = _WHOLE.get(name, (-(2**63), 2**63 - 1))
    lowest_of_type, highest_of_type = _BY_TYPE.get(wire_type, (0, COUNT_MAX))
    return max(lowest, lowest_of_type), min(highest, highest_of_type)


def bytes_max(name: str) -> int:
    return _BYTES.get(name, BYTES_MAX)


def seconds(name: str) -> tuple[float, float]:
    """Returns the lowest and highest value of a duration, or of a wall-clock moment (`…_unix_s`)."""
    if name.endswith("_unix_s"):
        return -UNIX_SECONDS_MAX, UNIX_SECONDS_MAX
    return math.ulp(0.0) if name in _NEVER_ZERO else 0.0, SECONDS_MAX
