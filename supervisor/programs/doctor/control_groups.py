"""Can the processes of a cycle be kept together, and ended together?"""

from __future__ import annotations

import math
import os

from supervisor.edges.machine.processes.control_group import own_groups
from supervisor.programs.doctor.doctor_finding import Area, DoctorFinding
from supervisor.programs.doctor.machine_probe import Machine

LIMIT_FILES = {"pids": ("pids.max",), "memory": ("memory.max", "memory.limit_in_bytes")}  # of version 2 and 1
UNLIMITED_MIN = 1 << 60  # version 1 has no word for it


def look(machine: Machine) -> list[DoctorFinding]:
    area = Area("control groups")
    groups = own_groups(machine.path("/proc/self"))
    if groups:
        _delegated(area, machine, str(groups[0]))
    else:
        area.note(
            "version 2",
            "it is not mounted",
            why="a worker's processes are found by session and parent; one that leaves both (setsid twice) may stay",
            remedy="boot with systemd.unified_cgroup_hierarchy=1",
        )
    _memory(area, limit(machine, "memory"))
    return area.findings


def limit(machine: Machine, controller: str) -> float | None:
    """Returns the least limit of our control group and those above it; None if no such controller limits them."""
    groups = own_groups(machine.path("/proc/self"), controller=controller)
    values = [machine.text(f"{group}/{name}") for group in groups for name in LIMIT_FILES[controller]]
    limits = [int(each) if each.isdigit() and int(each) < UNLIMITED_MIN else math.inf for each in values if each]
    return min(limits, default=None)


def _delegated(area: Area, machine: Machine, folder: str) -> None:
    path = machine.path(folder)
    if os.access(path, os.W_OK) and os.access(path / "cgroup.procs", os.W_OK):
        area.ok("delegated", f"each cycle gets one of its own below {folder}")
        return
    area.note(
        "delegated",
        f"{folder} may not be written",
        why="a worker's processes are found by session and parent; one that leaves both (setsid twice) may stay",
        remedy="systemd-run --user --scope -p Delegate=yes holdfast run …, or Delegate=yes in the unit",
    )


def _memory(area: Area, limit_bytes: float | None) -> None:
    if limit_bytes is None:
        area.skip("memory", "no memory controller")
    elif limit_bytes < math.inf:
        area.note(
            "memory",
            f"at most {limit_bytes / 2**30:.1f} GiB for the supervisor and all that it starts",
            why="where the ranks need more, the kernel kills one; the event says so",
        )
    else:
        area.ok("memory", "no limit")
