"""What does a limit of the monitoring mean for a rank in a wrapped call?

A restart inside the processes comes first, the end of the whole cycle second. So a limit that runs out in a running
iteration interrupts the call, as the soft timeout does. A rank that waits for the others is not judged. A rank that
doesn't come back is ended at its hard timeout, which keeps its distance from the soft one. Limits that the rank has not
armed don't count.
"""

from __future__ import annotations

import msgspec

from supervisor.core.facts import HangLimits, Progress
from supervisor.core.node import call_watch, local_call, rank_monitor
from supervisor.core.wrapped_calls.call_messages import CallSettings, Stage


def answer(
    calls: local_call.State, local_rank: int, hang: rank_monitor.DeclareHang
) -> tuple[call_watch.LimitRanOut, ...] | None:
    """Returns what the rank's call does about a hang. None: nothing, or it has not helped, so the hang stands."""
    stage = local_call.stage(calls, local_rank)
    if stage is not Stage.RUNNING:
        return None if stage is None else ()
    if hang.since_excuse:
        return None
    return (call_watch.LimitRanOut(hang.reason, after_limit(calls.ranks[local_rank].settings, hang.limit_s)),)


def shorter(calls: local_call.State, monitor: rank_monitor.State, local_rank: int) -> str | None:
    """Returns a sentence about a limit that the rank has armed and that interrupts its call; None if there is none."""
    is_judged = isinstance(monitor, rank_monitor.Watching | rank_monitor.Reading)
    if not is_judged or local_call.stage(calls, local_rank) is None:
        return None
    return sentence(calls.ranks[local_rank].settings, monitor.limits, monitor.progress)


def after_limit(settings: CallSettings, limit_s: float) -> CallSettings:
    """Returns the settings that apply after a limit has interrupted the call: its hard timeout comes earlier, too."""
    hard_s = limit_s + settings.hard_timeout_s - settings.soft_timeout_s
    return msgspec.structs.replace(settings, hard_timeout_s=min(settings.hard_timeout_s, hard_s))


def sentence(settings: CallSettings, limits: HangLimits, progress: Progress) -> str | None:
    """Says which is the shortest armed limit that leaves no room for the hard timeout; None if all leave room."""
    last_s = settings.hard_timeout_s + settings.termination_grace_s
    armed = [(limit_s, name) for name, limit_s in _armed(limits, progress) if limit_s is not None]
    short = [each for each in armed if each[0] <= last_s]
    if not short:
        return None
    limit_s, name = min(short)
    hard_s = after_limit(settings, limit_s).hard_timeout_s
    return (
        f"{name} ({limit_s:.1f} s) runs out before hard_timeout ({settings.hard_timeout_s:.1f} s) and "
        f"termination_grace_time ({settings.termination_grace_s:.1f} s) of the wrapped call; if it does, all ranks "
        f"first restart inside their processes, and a rank that stays silent for {hard_s:.1f} s is ended"
    )


def _armed(limits: HangLimits, progress: Progress) -> list[tuple[str, float | None]]:
    armed: list[tuple[str, float | None]] = []
    has_client = progress.read_at_s is None or progress.initialised_at_s < progress.read_at_s
    if progress.heartbeat_at_s is not None:
        armed.append(("the limit between heartbeats", limits.heartbeat_s))
    elif has_client:
        armed.append(("the limit to the first heartbeat", limits.initial_heartbeat_s))
    if progress.open_sections or progress.out_of_section_since_s > progress.initialised_at_s:
        armed += [(f"the limit of section '{name}'", limit_s) for name, limit_s in limits.sections]
        armed.append(("the limit outside of sections", limits.out_of_section_s))
    return armed
