"""Which reports of a node has a new leader missed, as its state shows?

The leader handles them as if they came now (leader_takeover.py).
"""

from __future__ import annotations

from supervisor.core.cluster import cluster_messages, node_states
from supervisor.core.cluster.cluster_messages import Event, NodeStands
from supervisor.core.cluster.node_states import MemberState


def of_node(stands: NodeStands) -> tuple[Event, ...]:
    """Returns the reports that a node in this state would have sent."""
    node, cycle = stands.node, stands.cycle
    opened = (cluster_messages.JobOpened(node, stands.rules), *kept_out(stands), *stop_of(stands))
    match stands.state:
        case MemberState.JOINED:
            return *opened, cluster_messages.NodeJoined(node, cycle)
        case MemberState.DOWN:
            return *opened, cluster_messages.NodeDown(node, cycle)
        case MemberState.STOPPED:
            return *opened, cluster_messages.NodeStopped(node, stands.all_succeeded)
        case MemberState.INFORMED:
            return *opened, cluster_messages.VerdictTaken(node)
        case _:
            return opened


def kept_out(stands: NodeStands) -> tuple[Event, ...]:
    """Returns why the node is to take part in no later cycle; nothing if it may."""
    excluded = (cluster_messages.NodeExcluded(stands.node, stands.excluded),) if stands.excluded else ()
    return *excluded, *((cluster_messages.NodeCordoned(stands.node, stands.cordoned),) if stands.cordoned else ())


def of_newcomer(stands: NodeStands) -> tuple[Event, ...]:
    """Returns the same with its request to leave the job: no leader may know of it."""
    return *of_node(stands), *_leave_of(stands)


def asked_of(stands: NodeStands) -> tuple[Event, ...]:
    """Returns what was asked for on a node whose workers are to be stopped first."""
    return *stop_of(stands), *_leave_of(stands)


def _leave_of(stands: NodeStands) -> tuple[Event, ...]:
    return (stands.leave,) if stands.leave is not None else ()


def stop_of(stands: NodeStands) -> tuple[cluster_messages.StopAsked, ...]:
    """Returns the stop that was asked for on the node, as if it came now: no leader may know of it.

    A node without a part that has obeyed it by itself, because it found no leader, has ended the job there only.
    """
    is_alone = stands.state is MemberState.INFORMED and stands.assignment is None
    if not stands.stop_reason or is_alone:
        return ()
    stop = cluster_messages.StopAsked(
        stands.stop_reason,
        stands.stop_signal,
        grace_s=stands.stop_grace_s,
        is_final=stands.stop_is_final,
        at_once=stands.stop_at_once,
    )
    return (stop,)


def of_cycle(
    parts: dict[int, NodeStands],
    absent: dict[int, str],
    cycle: int,
    unheard_s: float,
) -> tuple[Event, ...]:
    """Returns the faults that no leader has decided on yet; the first of them counts.

    `unheard_s`: how long ago the first of the cycle's nodes left the previous leader, which was silent by then.
    """
    events: list[Event] = []
    for each in parts.values():
        node = each.node
        if each.state in (MemberState.FAILED, MemberState.JOINED, MemberState.DOWN, MemberState.OPENED):
            reason = each.reason or f"node {node} has stopped its workers"
            exit_code = 1 if each.restart_allowed else each.rules.restart.no_restart_exit_code
            failed = cluster_messages.NodeFailed(
                node,
                cycle,
                reason,
                restart_allowed=each.restart_allowed,
                exit_code=exit_code,
                first_failure=each.first_failure,
            )
            events.append(failed)
        if each.state is MemberState.STOPPED:  # It gave up the job, which no leader had ended.
            events.append(cluster_messages.VerdictTaken(node))
        if each.state is MemberState.SUCCEEDED:
            events.append(cluster_messages.NodeSucceeded(node, cycle, each.lost))
        events += of_node(each)[1:]
    for rank, name in absent.items():
        who = f"node {name}" if not name.startswith(node_states.ABSENTEE) else "the node"
        text = f"{who} of group rank {rank} is lost: it has not reported its state to the new leader"
        text += f", and nothing was heard of the previous one for {unheard_s:.1f} s or more" if unheard_s else ""
        events.append(cluster_messages.NodeLost(name, text))
    return tuple(events)
