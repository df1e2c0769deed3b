"""Can the processes of a cycle be kept together, and ended together?"""

from __future__ import annotations

import os

from supervisor.programs.doctor.doctor_finding import Area, DoctorFinding
from supervisor.programs.doctor.machine_probe import Machine

V2_ROOTS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")


def look(machine: Machine) -> list[DoctorFinding]:
    area = Area("control groups")
    root = next((each for each in V2_ROOTS if machine.text(f"{each}/cgroup.controllers") or _is_v2(machine, each)), "")
    if not root:
        area.note(
            "version 2",
            "it is not mounted",
            why="a worker's processes are found by session and parent; one that leaves both (setsid twice) may stay",
            remedy="boot with systemd.unified_cgroup_hierarchy=1",
        )
        return area.findings
    own = next((line[3:] for line in machine.text("/proc/self/cgroup").splitlines() if line.startswith("0::")), "")
    folder = f"{root}{own}" if own != "/" else root
    _delegated(area, machine, folder)
    _memory(area, machine, folder)
    return area.findings


def _is_v2(machine: Machine, folder: str) -> bool:
    return "cgroup.procs" in machine.names(folder) and "cgroup.controllers" in machine.names(folder)


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


def _memory(area: Area, machine: Machine, folder: str) -> None:
    limit = machine.text(f"{folder}/memory.max")
    if not limit:
        area.skip("memory", "no memory controller")
    elif limit.isdigit():
        area.note(
            "memory",
            f"at most {int(limit) / 2**30:.1f} GiB for the supervisor and all that it starts",
            why="where the ranks need more, the kernel kills one; the event says so",
        )
    else:
        area.ok("memory", "no limit")
