"""Who may train where the leader is elected: until when may a node, and from when may a new leader replace others?

Three rules keep two groups of one job apart, whoever can't reach whom, and let training go on without the backend:

- A node ends its workers FENCE_S after it said the last word that a leader has answered, or asked the backend the last
  question to which the answer was that nobody leads.
- A leader answers for a while after it has renewed its lead. Beyond that, it answers only while it hears all witnesses:
  the nodes that the ledger names as those which it heard.
- A new leader replaces nobody before TAKE_OVER_S, and not before it meets a witness which has left the leader before
  for LEFT_S.

A witness follows one leader at a time. So either the new leader meets none and waits, or the old leader misses one, and
the nodes that it answered until then have ended their workers. How many nodes a job may have does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

FENCE_S = 4.0  # less than what a leader waits before it gives up a node that it knows (cluster_server.LOST_S)
TAKE_OVER_S = 5.0  # since the lead before has ended; by then, a node that follows nobody has ended its workers
HEARD_S = 2.0  # a node says something twice in this time
LEFT_S = 7.0  # FENCE_S, HEARD_S, and what a message takes, by a relay, too
WITNESSES_MAX = 32


def answers_until_s(renewed_at_s: float, ttl_s: float, heard_at_s: Iterable[float | None]) -> float:
    """Of a leader. `heard_at_s`: the last word of each witness; None: it was never heard.

    Half of the time that the lead lasts: backends may end it early, as etcd does where a person revokes all leases.
    """
    sure_until_s = renewed_at_s + ttl_s / 2
    heard = list(heard_at_s)
    known = [each for each in heard if each is not None]
    if not heard or len(known) < len(heard):
        return sure_until_s
    return max(sure_until_s, min(known) + HEARD_S)


def replaces_from_s(from_s: float, witnesses: Iterable[str], left_at_s: Mapping[str, float]) -> float | None:
    """Of a new leader, which may replace nobody before `from_s`; None: not before it has met a witness.

    `left_at_s`: when each node that it has met said its last word to the leader before.
    """
    named = list(witnesses)
    if not named:
        return from_s
    left = [left_at_s[each] for each in named if each in left_at_s]
    return max(from_s, min(left) + LEFT_S) if left else None
