"""If the leader is elected, how long may a node train without it, and when may a new leader replace nodes?

Three rules keep two groups of one job from training at once, however the network fails, and let training continue
without the backend:

- A node ends its workers FENCE_S after it sent the last message that a leader answered, or the last question to which
  the backend answered that nobody leads.
- A leader answers for a while after it has renewed its lead. After that, it answers only while it hears all witnesses:
  the nodes that the ledger lists as heard by this leader.
- A new leader replaces no node before TAKE_OVER_S, and not before it meets a witness that left the previous leader at
  least LEFT_S ago; ALONE_S ago is enough if only the node of that leader is missing, whose own workers end earlier.

TAKE_OVER_S need not pass if only the node of that leader is missing, and each node that confirmed its heartbeats heard
the last one ALONE_S ago (core/election/leader_heartbeats.py): without a confirmation, that leader's own workers end
UNCONFIRMED_S after it last renewed its lead. So UNHEARD_S is enough then.

A witness follows one leader at a time. So either the new leader meets none and waits, or the old leader misses one, and
the nodes that it answered until then have ended their workers. The number of nodes in the job does not matter.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

FENCE_S = 4.0  # less than a leader waits before it gives up a node that it knows (node_loss_detection.LOST_S)
TAKE_OVER_S = 5.0  # since the previous lead ended; by then, a node without a leader has ended its workers
HEARD_S = 2.0  # a node sends two messages within this time
LEFT_S = 7.0  # FENCE_S, HEARD_S and the travel time of a message, also through a relay
ALONE_S = 5.0  # the same without HEARD_S, which a leader gives to its followers only
WITNESSES_MAX = 32
CONFIRMERS_MAX = 8
UNCONFIRMED_S = 1.5  # more than the time between two renewals
UNHEARD_S = 2.5  # since the previous lead ended


def answers_until_s(renewed_at_s: float, ttl_s: float, heard_at_s: Sequence[float | None]) -> float:
    """Returns until when a leader may answer. `heard_at_s`: when each witness was last heard; None: never.

    Counts half of the lead's duration: a backend may end it early, as etcd does if a person revokes all leases.
    """
    heard_s = _all_heard_s(heard_at_s)
    sure_until_s = renewed_at_s + ttl_s / 2
    return sure_until_s if heard_s is None else max(sure_until_s, heard_s + HEARD_S)


def leads_at_s(renewed_at_s: float, heard_at_s: Sequence[float | None], confirmed_at_s: float | None) -> float:
    """Returns the last moment at which no other node could replace the leader's own: FENCE_S later, its workers end.

    `confirmed_at_s`: see leader_heartbeats.last_confirmed_s.
    """
    heard_s = _all_heard_s(heard_at_s)
    leads_s = renewed_at_s if heard_s is None else max(renewed_at_s, heard_s)
    return leads_s if confirmed_at_s is None else min(leads_s, max(confirmed_at_s, led_at_s(renewed_at_s)))


def led_at_s(sure_at_s: float) -> float:
    """Returns the same of a leader that no node confirms. `sure_at_s`: when nobody else led."""
    return sure_at_s - (FENCE_S - UNCONFIRMED_S)


def confirmers(parts: Sequence[str], leader: str, vacant: Collection[str] = ()) -> tuple[str, ...]:
    """Returns which nodes confirm that they hear their leader, of the cycle's nodes in the order of their ranks.

    None need do so if the leader has no workers in the cycle. No other node confirms instead of a vacant one: its
    leader would rely on nodes that have not confirmed yet.
    """
    if leader not in parts:
        return ()
    first = [each for each in parts if each != leader][:CONFIRMERS_MAX]
    return tuple(each for each in first if each not in vacant)


def _all_heard_s(heard_at_s: Sequence[float | None]) -> float | None:
    """Returns since when all witnesses have been heard; None: one never was, or there are none."""
    known = [each for each in heard_at_s if each is not None]
    return min(known) if known and len(known) == len(heard_at_s) else None


def replaces_from_s(
    from_s: float, witnesses: Iterable[str], left_at_s: Mapping[str, float], *, left_alone: Iterable[str] = ()
) -> float | None:
    """Returns from when a new leader may replace nodes, `from_s` at the earliest; None: it must meet a witness first.

    `left_at_s`: when each node that it has met sent its last message to the previous leader. `left_alone`: the nodes
    that have left a leader whose own node is the only one of the job's cycle that is missing.
    """
    named = list(witnesses)
    if not named:
        return from_s
    sooner = set(left_alone)
    left = [left_at_s[each] + (ALONE_S if each in sooner else LEFT_S) for each in named if each in left_at_s]
    return max(from_s, min(left)) if left else None
