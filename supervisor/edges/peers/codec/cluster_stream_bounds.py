"""What are the bounds of each field of the cluster stream?"""

from __future__ import annotations

from holdfast_wire.call_bounds import EXCHANGE_VALUE_CHARACTERS_MAX
from holdfast_wire.framing import CLUSTER_FRAME_BYTES_MAX

from supervisor.core.elastic.elastic_messages import Refusal
from supervisor.core.facts import JobState, RestartPolicyName
from supervisor.core.process_facts import ProcessState
from supervisor.core.wrapped_calls.call_messages import Interruption, Leaving
from supervisor.edges.codec.value_bounds import COUNT_MAX, Bounds
from supervisor.edges.peers.codec.cluster_frames import ClusterProtocolError

NAME_CHARACTERS_MAX = 256

_NAMES = frozenset({"job_id", "node", "incarnation", "host"})

STREAM = Bounds(
    error=ClusterProtocolError,
    whole_numbers={
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
    },
    # A zero timeout would end a healthy rank.
    never_zero=frozenset({"soft_timeout_s", "hard_timeout_s", "barrier_timeout_s", "heartbeat_timeout_s"}),
    never_empty=_NAMES,
    never_cut=dict.fromkeys((*_NAMES, "name"), NAME_CHARACTERS_MAX)
    | {
        "value": EXCHANGE_VALUE_CHARACTERS_MAX,
        "stack": CLUSTER_FRAME_BYTES_MAX,
        "detail": CLUSTER_FRAME_BYTES_MAX,
    },
    bytes=dict.fromkeys(("question", "answer", "output"), CLUSTER_FRAME_BYTES_MAX),
    # Without these records, a fault, a refusal or an end would stay unknown. A record is skipped if nobody can guess
    # its word: a barrier, a stage of a call, a node's state.
    substitutes={
        "RankFault.interruption": Interruption.EXCEPTION,
        "Lost.interruption": Interruption.EXCEPTION,
        "FaultRecord.interruption": Interruption.EXCEPTION,
        "CallLeave.why": Leaving.FAULT,
        "Verdict.state": JobState.FAILED,
        "RefuseAgent.refusal": Refusal.STATE,
        "RestartRules.policy": RestartPolicyName.ANY_FAILED,  # A third one needs a value that equals none
        "ProcessFacts.state": ProcessState.UNKNOWN,
        "ChildProcess.state": ProcessState.UNKNOWN,
    },
)
