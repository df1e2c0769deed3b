"""Does Slurm leave a supervisor the time and the means to end and to replace the processes that it started?"""

from __future__ import annotations

import re

from supervisor.programs.doctor.doctor_finding import Area, DoctorFinding
from supervisor.programs.doctor.machine_probe import Machine

KILL_WAIT, UNKILLABLE, TRACK = "KillWait", "UnkillableStepTimeout", "ProctrackType"


def look(machine: Machine, *, term_timeout_s: float, is_given: bool) -> list[DoctorFinding]:
    """Checks Slurm's configuration. `term_timeout_s`: how long the job's ranks may take after a signal.

    `is_given`: the user has said so.
    """
    area = Area("slurm")
    program = machine.program("scontrol")
    if not program:
        area.skip("settings", "scontrol is not in PATH")
        return area.findings
    answer = machine.ask([program, "show", "config"])
    if answer.fault:
        area.warn(
            "settings",
            f"scontrol show config: {answer.fault}",
            why="what Slurm would do to a job that stops is not known",
            remedy="check slurmctld: scontrol ping",
        )
        return area.findings
    settings = read(answer.stdout)
    _tracking(area, settings)
    _kill_wait(area, settings, term_timeout_s, is_given=is_given)
    _unkillable(area, settings)
    _kill_on_bad_exit(area, machine, settings)
    return area.findings


def read(text: str) -> dict[str, str]:
    """Parses the output of `scontrol show config`: name → value."""
    pairs = (re.match(r"(\w+)\s*=\s*(.*?)\s*$", line) for line in text.splitlines())
    return {pair[1]: pair[2] for pair in pairs if pair}


def _seconds(value: str) -> float | None:
    """Reads a duration as Slurm prints it, such as "30 sec"; None if it is not one."""
    found = re.match(r"(\d+)", value)
    return float(found[1]) if found else None


def _tracking(area: Area, settings: dict[str, str]) -> None:
    kind = settings.get(TRACK, "")
    if "cgroup" in kind:
        area.ok(TRACK, kind)
        return
    area.warn(
        TRACK,
        kind or "not told",
        why="processes that leave their session outlive the job, with the GPU memory that they hold",
        remedy="ProctrackType=proctrack/cgroup in slurm.conf",
    )


def _kill_wait(area: Area, settings: dict[str, str], term_timeout_s: float, *, is_given: bool) -> None:
    wait_s = _seconds(settings.get(KILL_WAIT, ""))
    why = "at scancel, preemption or the time limit, Slurm kills ranks that still write their checkpoint"
    if wait_s is None:
        area.skip(KILL_WAIT, "not told")
    elif wait_s > term_timeout_s:
        area.ok(KILL_WAIT, f"{wait_s:g} s, above the {term_timeout_s:g} s that the ranks may take after a signal")
    elif not is_given:  # Nobody has said that a save takes that long.
        area.note(
            KILL_WAIT,
            f"{wait_s:g} s, and the ranks may take {term_timeout_s:g} s after a signal",
            why=why,
            remedy="KillWait in slurm.conf above the time that a save takes, and --term-timeout below it",
        )
    else:
        area.warn(
            KILL_WAIT,
            f"{wait_s:g} s, and the ranks may take {term_timeout_s:g} s after a signal",
            why=why,
            remedy=f"--term-timeout {max(1.0, wait_s / 2):g}, or KillWait={term_timeout_s * 2:.0f} in slurm.conf",
        )


def _unkillable(area: Area, settings: dict[str, str]) -> None:
    timeout_s, wait_s = _seconds(settings.get(UNKILLABLE, "")), _seconds(settings.get(KILL_WAIT, "")) or 0.0
    if timeout_s is None:
        area.skip(UNKILLABLE, "not told")
    elif timeout_s < 120 or timeout_s <= wait_s:
        area.note(
            UNKILLABLE,
            f"{timeout_s:g} s",
            why="a rank that the GPU driver keeps for longer drains the node ('Kill task failed')",
            remedy="UnkillableStepTimeout=180 in slurm.conf",
        )
    else:
        area.ok(UNKILLABLE, f"{timeout_s:g} s")


def _kill_on_bad_exit(area: Area, machine: Machine, settings: dict[str, str]) -> None:
    value = machine.environ.get("SLURM_KILL_BAD_EXIT") or settings.get("KillOnBadExit", "")
    if value.startswith("1"):
        area.warn(
            "KillOnBadExit",
            "1: the first supervisor that ends with an error ends the step on all nodes",
            why="a lost node ends with an error, and a hot spare could have taken its place",
            remedy="srun --kill-on-bad-exit=0 --no-kill holdfast run …",
        )
    else:
        area.ok("KillOnBadExit", "a node may leave without ending the step")
