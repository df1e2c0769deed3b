"""Do a job's timeouts fit each other, and the watchdogs of the libraries below it?"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from supervisor.config.job_spec import SAFETY_FACTOR, JobSpec
from supervisor.core.facts import HangLimits
from supervisor.core.wrapped_calls.call_messages import CallSettings
from supervisor.programs.doctor.doctor_finding import Area, DoctorFinding
from supervisor.report.timeline.timeline import LongestSilence

FIRST_HEARTBEAT_MIN_S = 60.0  # a cold torch import, a model and its first batch
MAIN_THREAD_MIN_S = 60.0  # the wait for the slowest rank's start, a checkpoint, a compilation
SCANT_FACTOR = 2  # below so many times the longest silence, a limit is warned of
WATCHDOG = "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"
WATCHDOG_S = 480.0  # torch's default
HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"


class Measured(msgspec.Struct, frozen=True):
    """What an earlier job measured."""

    job_id: str
    silence: LongestSilence | None = None  # of its main threads
    calculated: str = ""  # the sentence about the limits that its ranks calculated


def look(
    spec: JobSpec, environ: Mapping[str, str], *, has_gpus: bool, earlier: Measured | None = None
) -> list[DoctorFinding]:
    area = Area("timeouts")
    limits = spec.hang_limits
    _first(area, limits.initial_heartbeat_s, limits.heartbeat_s)
    if earlier is not None and earlier.silence is not None:
        _measured_main_thread(area, spec.auto_heartbeat_s, earlier.job_id, earlier.silence)
    else:
        _main_thread(area, spec.auto_heartbeat_s)
    if earlier is not None:
        _measured(area, earlier)
    _sections(area, spec)
    _ladder(area, limits)
    if has_gpus:
        both_s = (limits.heartbeat_s, spec.auto_heartbeat_s)
        _watchdog(area, min((limit_s for limit_s in both_s if limit_s is not None), default=None), environ)
    else:
        area.skip("nccl watchdog", "no GPU")
    if environ.get(HANDLING) == "0":
        area.warn(
            HANDLING,
            "0",
            why="a collective whose peer has died waits until a hang is found, instead of failing",
            remedy=f"unset {HANDLING}",
        )
    return area.findings


def _first(area: Area, first_s: float | None, later_s: float | None) -> None:
    if first_s is None:
        area.ok("first heartbeat", "no limit")
    elif first_s < FIRST_HEARTBEAT_MIN_S:
        area.warn(
            "first heartbeat",
            f"{first_s:g} s",
            why="importing torch, loading the model and its first batch count: a healthy start would be killed",
            remedy="--ft-initial-rank-heartbeat-timeout 600",
        )
    elif later_s is not None and first_s < later_s:
        area.note(
            "first heartbeat",
            f"{first_s:g} s, below the {later_s:g} s between later ones",
            why="a start mostly takes longer than a step",
            remedy=f"--ft-initial-rank-heartbeat-timeout {later_s:g}",
        )
    else:
        area.ok("first heartbeat", f"{first_s:g} s")


def _main_thread(area: Area, limit_s: float | None) -> None:
    if limit_s is None:
        area.skip("main thread", "no limit")
    elif limit_s < MAIN_THREAD_MIN_S:
        area.warn(
            "main thread",
            f"{limit_s:g} s",
            why="a rank that waits for the start of the others, a checkpoint or a compilation may be silent for longer",
            remedy="--ft-auto-heartbeat-timeout 600; after a run, --job JOB judges it by what was measured",
        )
    else:
        area.ok("main thread", f"{limit_s:g} s")


def _measured_main_thread(area: Area, limit_s: float | None, job_id: str, silence: LongestSilence) -> None:
    longest_s = silence.longest_s
    wanted_s = max(1, math.ceil(SAFETY_FACTOR * longest_s))
    measured = f"the longest silence in job {job_id} was {longest_s:.1f} s, of rank {silence.rank}"
    if limit_s is None:
        area.skip("main thread", f"no limit; {measured}: {wanted_s} s leaves room")
    elif limit_s >= wanted_s:
        area.ok("main thread", f"{limit_s:g} s; {measured}")
    else:
        tell = area.warn if limit_s < SCANT_FACTOR * longest_s else area.note
        tell(
            "main thread",
            f"{limit_s:g} s; {measured}",
            why="on a slow day, a healthy rank would be taken for hung",
            remedy=f"--ft-auto-heartbeat-timeout {wanted_s}, which is {SAFETY_FACTOR:g} times the longest silence",
        )


def _measured(area: Area, earlier: Measured) -> None:
    if earlier.calculated:
        area.ok("learned limits", f"job {earlier.job_id}: {earlier.calculated}")
    elif earlier.silence is None:
        area.note(
            "learned limits",
            f"job {earlier.job_id} has measured nothing",
            why="no cycle of it has ended with --ft-auto-heartbeat-timeout, and its ranks have calculated no limits",
            remedy="run it with --ft-auto-heartbeat-timeout 1800, or call calculate_and_set_hb_timeouts() in all ranks",
        )


def _sections(area: Area, spec: JobSpec) -> None:
    """Warns of a section whose limit exceeds the limit between two heartbeats: its own limit would never act."""
    limits = spec.hang_limits
    longest_s = limits.heartbeat_s
    above = [
        (name, limit_s)
        for name, limit_s in limits.sections
        if limit_s is not None and longest_s is not None and limit_s > longest_s
    ]
    if not limits.sections:
        area.skip("sections", "none has a limit")
    elif above:
        name, limit_s = above[0]
        area.note(
            "sections",
            f"{name} may take {limit_s:g} s, and two heartbeats may be {longest_s:g} s apart",
            why="a script that sends heartbeats too is ended by the shorter one, in the middle of the section",
            remedy=f"--ft-rank-heartbeat-timeout {limit_s * 1.5:g}, or a lower limit for {name}",
        )
    else:
        area.ok("sections", f"{len(limits.sections)} have limits")


def _ladder(area: Area, limits: HangLimits) -> None:
    """Shows in which order a silence in a wrapped call is dealt with, by the Wrapper's defaults."""
    of_job = [
        limits.initial_heartbeat_s,
        limits.heartbeat_s,
        limits.out_of_section_s,
        *(limit_s for _, limit_s in limits.sections),
    ]
    shortest_s = min((limit_s for limit_s in of_job if limit_s is not None), default=None)
    call = CallSettings()
    last_s = call.hard_timeout_s + call.termination_grace_s
    steps = (
        f"{call.soft_timeout_s:g} s restart inside the processes, {call.hard_timeout_s:g} s end of the silent rank, "
        f"{last_s:g} s SIGKILL"
    )
    if shortest_s is None:
        area.ok("wrapped call", f"{steps} (the Wrapper's defaults); no limit ends the cycle")
    elif shortest_s > last_s:
        area.ok("wrapped call", f"{steps} (the Wrapper's defaults), {shortest_s:g} s restart of the cycle")
    else:
        area.note(
            "wrapped call",
            f"a limit of {shortest_s:g} s, and {steps} (the Wrapper's defaults)",
            why="in a rank that wraps and has armed it, it first restarts the call inside the processes, and the "
            "cycle only if it runs out again without a sign of the rank",
            remedy=f"nothing; or a limit above {last_s:g} s, if the rank may be silent for as long in its function",
        )


def _watchdog(area: Area, limit_s: float | None, environ: Mapping[str, str]) -> None:
    text = environ.get(WATCHDOG, "")
    watchdog_s = float(text) if text.isdigit() else WATCHDOG_S
    if limit_s is None or limit_s < watchdog_s:
        area.ok(
            "nccl watchdog", f"{watchdog_s:g} s, {'above the limit of heartbeats' if limit_s else 'the only limit'}"
        )
        return
    area.note(
        "nccl watchdog",
        f"{watchdog_s:g} s, and a rank may be silent for {limit_s:g} s",
        why="torch's watchdog ends a stuck rank before the hang is found: the restart comes, but without all stacks",
        remedy=f"lower --ft-rank-heartbeat-timeout below {watchdog_s:g}, or export {WATCHDOG}={limit_s * 1.5:.0f}",
    )
