"""May a node take part in a job, and if not, which of its settings differs from the others'?

All nodes of a job must be started with the same settings: each node follows its own, and a new leader would bring its
own. A refusal names both values and affects only the newcomer.
"""

from __future__ import annotations

from typing import cast

import msgspec

from supervisor.core.cluster.node_states import Members
from supervisor.core.facts import JobRules

# These may differ: a node's facts about itself, and how it prepares.
OWN = frozenset({"facts", "prepares_ahead", "forks_ahead"})

FLAGS = {
    "job_id": "--job-id",
    "local_world_size": "--nproc-per-node",
    "workers_stop_timeout_s": "--workers-stop-timeout",
    "term_timeout_s": "--term-timeout",
    "rank_termination_signal": "--ft-rank-termination-signal",
    "evidence_budget_s": "--evidence-budget-s",
    "completion_grace_s": "--completion-grace-s",
    "auto_heartbeat_s": "--ft-auto-heartbeat-timeout",
    "hang_limits.initial_heartbeat_s": "--ft-initial-rank-heartbeat-timeout",
    "hang_limits.heartbeat_s": "--ft-rank-heartbeat-timeout",
    "hang_limits.sections": "--ft-rank-section-timeouts",
    "hang_limits.out_of_section_s": "--ft-rank-out-of-section-timeout",
    "hang_limits.warm_up_steps": "--ft-num-warmup-iterations",
    "restart.policy": "--ft-restart-policy",
    "restart.max_restarts": "--max-restarts",
    "restart.min_nodes": "--nnodes MIN",
    "restart.no_restart_exit_code": "--ft-no-restart-exit-code",
    "restart.max_no_progress_cycles": "--ft-max-no-progress-cycles",
    "restart.min_progress_iterations": "--ft-min-progress-iterations",
    "rendezvous.max_nodes": "--nnodes MAX",
    "rendezvous.join_timeout_s": "--rdzv-conf join_timeout",
    "rendezvous.last_call_s": "--rdzv-conf last_call_timeout",
    "rendezvous.segment": "--ft-segment",
    "rendezvous.replacement_group_size": "--rdzv-conf replacement_group_size",
    "rendezvous.keep_ranks": "--keep-ranks",
    "rendezvous.elastic": "--elastic",
}


def refusal(node: str, theirs: JobRules, ours: JobRules, members: Members) -> str:
    """Returns why this newcomer may not take part; "" if it may."""
    different = _difference(theirs, ours)
    if different is not None:
        name, their_value, our_value = different
        return (
            f"node {node} has {name} {_shown(their_value)}, and the other nodes of the job have {_shown(our_value)}; "
            "start it with the same"
        )
    mine, other = theirs.facts.program, ours.facts.program
    if mine and other and mine != other:
        return f"node {node} runs {mine}, and the other nodes of the job run {other}; start the same on each"
    taken_by = members.with_rank(theirs.facts.infrastructure_rank)
    if taken_by is not None and taken_by != node:
        source = theirs.facts.rank_source or "infrastructure rank"
        return (
            f"node {node} has {source} {theirs.facts.infrastructure_rank}, and so has node {taken_by} of the job; "
            "give each node its own, or none"
        )
    return ""


def _difference(theirs: JobRules, ours: JobRules) -> tuple[str, object, object] | None:
    """Returns the first setting in which they differ, with both values."""
    own = {name: getattr(ours, name) for name in OWN}
    if msgspec.structs.replace(theirs, **own) == ours:
        return None
    mine, others = _flat(theirs), _flat(ours)
    return next(
        ((FLAGS.get(name, name), mine[name], others[name]) for name in mine if mine[name] != others[name]), None
    )


def _flat(rules: msgspec.Struct, prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for field in msgspec.structs.fields(rules):
        value = cast("object", getattr(rules, field.name))
        if isinstance(value, msgspec.Struct) and field.name not in OWN:
            found |= _flat(value, f"{prefix}{field.name}.")
        elif field.name not in OWN:
            found[prefix + field.name] = value
    return found


def _shown(value: object) -> str:
    match value:
        case None | ():
            return "none"
        case bool():
            return "on" if value else "off"
        case float():
            return f"{value:g}"
        case tuple():
            pairs = cast("tuple[tuple[str, float | None], ...]", value)
            return ",".join(f"{name}:{_shown(limit)}" for name, limit in pairs)
        case _:
            return str(value)
