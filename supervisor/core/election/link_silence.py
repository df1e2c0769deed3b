"""When is a connection between two nodes dead, though nothing says so?

A pulled cable sends no end. The node sends a heartbeat every ALIVE_S, and the leader answers. This is not yet the loss
of a node or a leader (leader_loss_detection.py, node_loss_detection.py): the next connection continues the talk.
"""

from __future__ import annotations

ALIVE_S = 1.0
SILENCE_S = 2.5  # the third unanswered heartbeat shows it: that leaves a second for another connection
UNCONFIRMED_S = 60.0  # how long a connected peer may leave the oldest message unconfirmed
LATE_S = 0.1  # a deadline noticed so late means a stall of our own: received messages have not been handled yet


def death(*, heard_at_s: float, waits_since_s: float | None, now_s: float) -> str:
    """Returns why the connection is dead; "": it is not.

    `waits_since_s`: since when the other side has confirmed nothing of what it was sent; None: nothing waits.
    """
    if now_s - heard_at_s >= SILENCE_S:
        return silence(heard_at_s, now_s)
    if waits_since_s is not None and now_s - waits_since_s > UNCONFIRMED_S:
        return f"it has confirmed nothing for {now_s - waits_since_s:.1f} s"
    return ""


def check_at_s(*, heard_at_s: float, now_s: float) -> float:
    """Returns when to check a live connection again."""
    return min(heard_at_s + SILENCE_S, now_s + UNCONFIRMED_S)


def silence(heard_at_s: float, now_s: float) -> str:
    return f"nothing was heard for {now_s - heard_at_s:.1f} s"
