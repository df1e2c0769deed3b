"""A machine made of files: what would doctor find on another machine?"""

from __future__ import annotations

from pathlib import Path

from supervisor.programs.doctor.doctor_finding import DoctorFinding, Grade
from supervisor.programs.doctor.machine_probe import Machine

CGROUP_V2 = {"/proc/self/mountinfo": "31 29 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"}
CGROUP_V1 = {
    "/proc/self/mountinfo": "30 29 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "31 29 0:27 /docker/1 /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n",
    "/proc/self/cgroup": "4:memory:/slurm/job_1\n3:pids:/docker/1\n",
}


def machine_of(root: Path, files: dict[str, str] | None = None, environ: dict[str, str] | None = None) -> Machine:
    """Makes a machine. `files`: path → text. A path that ends with / is an empty folder."""
    for name, text in (files or {}).items():
        path = root / name.lstrip("/")
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Machine(root, {"PATH": str(root / "bin")} | (environ or {}))


def program(root: Path, name: str, script: str) -> None:
    """Adds a program to the machine's PATH."""
    path = root / "bin" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def graded(findings: list[DoctorFinding]) -> dict[str, Grade]:
    """Returns check → its grade."""
    return {finding.check: finding.grade for finding in findings}


def the(findings: list[DoctorFinding], check: str) -> DoctorFinding:
    (found,) = [finding for finding in findings if finding.check == check]
    return found
