"""Does doctor report whether a cycle's processes can be kept together?"""

from __future__ import annotations

from pathlib import Path

from supervisor.programs.doctor import control_groups
from supervisor.programs.doctor.doctor_finding import Grade
from tests.programs.doctor.machines import CGROUP_V1, CGROUP_V2, graded, machine_of, the

OWN = "/sys/fs/cgroup/user.slice/me"
FILES = CGROUP_V2 | {
    "/proc/self/cgroup": "0::/user.slice/me\n",
    f"{OWN}/cgroup.procs": "",
}


def test_without_version_2(tmp_path: Path):
    assert graded(control_groups.look(machine_of(tmp_path))) == {"version 2": Grade.NOTE, "memory": Grade.SKIPPED}


def test_delegated_without_a_limit(tmp_path: Path):
    found = control_groups.look(machine_of(tmp_path, FILES | {f"{OWN}/memory.max": "max\n"}))
    assert graded(found) == {"delegated": Grade.OK, "memory": Grade.OK}


def test_a_limit_is_told(tmp_path: Path):
    found = control_groups.look(machine_of(tmp_path, FILES | {f"{OWN}/memory.max": f"{3 << 30}\n"}))
    assert the(found, "memory").found == "at most 3.0 GiB for the supervisor and all that it starts"


def test_the_limit_of_a_group_above_counts_if_it_is_less(tmp_path: Path):
    above = {"/sys/fs/cgroup/user.slice/memory.max": f"{2 << 30}\n"}
    found = control_groups.look(machine_of(tmp_path, FILES | above | {f"{OWN}/memory.max": f"{3 << 30}\n"}))
    assert the(found, "memory").found.startswith("at most 2.0 GiB for ")
    (tmp_path / OWN.lstrip("/") / "memory.max").unlink()  # the controller is enabled only above
    assert the(control_groups.look(machine_of(tmp_path, FILES | above)), "memory").found.startswith("at most 2.0 GiB")


def test_the_memory_limit_of_version_1_is_told(tmp_path: Path):
    limit = "/sys/fs/cgroup/memory/slurm/job_1/memory.limit_in_bytes"
    unlimited = CGROUP_V1 | {"/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}
    found = control_groups.look(machine_of(tmp_path, unlimited))
    assert graded(found) == {"version 2": Grade.NOTE, "memory": Grade.OK}
    found = control_groups.look(machine_of(tmp_path, unlimited | {limit: f"{3 << 30}\n"}))
    assert the(found, "memory").found.startswith("at most 3.0 GiB for ")


def test_a_group_that_may_not_be_written(tmp_path: Path):
    machine = machine_of(tmp_path, FILES)
    (tmp_path / OWN.lstrip("/") / "cgroup.procs").unlink()
    found = the(control_groups.look(machine), "delegated")
    assert found.grade is Grade.NOTE
    assert "Delegate=yes" in found.remedy
