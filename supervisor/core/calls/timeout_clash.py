"""Are the timeouts of a wrapped call below the limits of the job's own hang detection?

A restart inside the process should come first, the end of the whole cycle second. If a monitoring limit is shorter than
the hard timeout, every hang ends the cycle before the Wrapper can act.
"""

from __future__ import annotations

from supervisor.core.calls.words import CallSettings
from supervisor.core.facts import HangLimits

_DEFAULT_HEARTBEAT_S = HangLimits().heartbeat_s


def clash(settings: CallSettings, limits: HangLimits, *, sends_heartbeats: bool) -> str | None:
    """Returns a sentence about the limit that leaves no room for the hard timeout; None if all leave room.

    The limit between heartbeats counts if the rank has sent one, or if it was configured.
    """
    last_s = settings.hard_timeout_s + settings.termination_grace_s
    held = [("the limit to the first heartbeat", limits.initial_heartbeat_s)]
    if sends_heartbeats or limits.heartbeat_s != _DEFAULT_HEARTBEAT_S:
        held.append(("the limit between heartbeats", limits.heartbeat_s))
    held += [(f"the limit of section '{name}'", limit_s) for name, limit_s in limits.sections]
    held.append(("the limit outside of sections", limits.out_of_section_s))
    short = [(limit_s, name) for name, limit_s in held if limit_s is not None and limit_s <= last_s]
    if not short:
        return None
    limit_s, name = min(short)
    return (
        f"hard_timeout {settings.hard_timeout_s:.1f} s and termination_grace_time {settings.termination_grace_s:.1f} s "
        f"are not below {name}, {limit_s:.1f} s, which would end the whole cycle first; raise that limit or lower "
        "hard_timeout"
    )
