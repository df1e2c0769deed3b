"""Does doctor report whether a cycle's processes can be kept together?"""

from __future__ import annotations

from pathlib import Path

from supervisor.programs.doctor import control_groups
from supervisor.programs.doctor.doctor_finding import Grade
from tests.programs.doctor.machines import graded, machine_of, the

OWN = "/sys/fs/cgroup/user.slice/me"
FILES = {
    "/sys/fs/cgroup/cgroup.controllers": "cpu memory pids",
    "/proc/self/cgroup": "0::/user.slice/me\n",
    f"{OWN}/cgroup.procs": "",
}


def test_without_version_2(tmp_path: Path):
    assert graded(control_groups.look(machine_of(tmp_path))) == {"version 2": Grade.NOTE}


def test_delegated_without_a_limit(tmp_path: Path):
    found = control_groups.look(machine_of(tmp_path, FILES | {f"{OWN}/memory.max": "max\n"}))
    assert graded(found) == {"delegated": Grade.OK, "memory": Grade.OK}


def test_a_limit_is_told(tmp_path: Path):
    found = control_groups.look(machine_of(tmp_path, FILES | {f"{OWN}/memory.max": f"{3 << 30}\n"}))
    assert the(found, "memory").found == "at most 3.0 GiB for the supervisor and all that it starts"


def test_a_group_that_may_not_be_written(tmp_path: Path):
    machine = machine_of(tmp_path, FILES)
    (tmp_path / OWN.lstrip("/") / "cgroup.procs").unlink()
    found = the(control_groups.look(machine), "delegated")
    assert found.grade is Grade.NOTE
    assert "Delegate=yes" in found.remedy
