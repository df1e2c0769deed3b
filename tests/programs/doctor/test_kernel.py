"""Is a kernel that lacks a feature distinguished from one that has it?"""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest

from supervisor.programs.doctor import kernel
from supervisor.programs.doctor.doctor_finding import Grade
from tests.programs.doctor.machines import CGROUP_V1, CGROUP_V2, graded, machine_of, program, the

RELEASE = "/proc/sys/kernel/osrelease"


def limited_to(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def getrlimit(number: int) -> tuple[int, int]:
        del number
        return limit, limit

    monkeypatch.setattr(resource, "getrlimit", getrlimit)


@pytest.mark.parametrize(
    ("release", "grade"),
    [
        ("6.18.44-fc", Grade.OK),
        ("5.14.0-362.el9", Grade.OK),
        ("5.10.0", Grade.NOTE),
        ("4.18.0-553.el8", Grade.PROBLEM),
        ("", Grade.SKIPPED),
    ],
)
def test_version(release: str, grade: Grade, tmp_path: Path):
    assert the(kernel.look(machine_of(tmp_path, {RELEASE: release})), "version").grade is grade


@pytest.mark.parametrize(("limit", "grade"), [(1024, Grade.WARNING), (4096, Grade.OK), (-1, Grade.OK)])
def test_open_files(limit: int, grade: Grade, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    limited_to(limit, monkeypatch)
    assert the(kernel.look(machine_of(tmp_path)), "open files").grade is grade


def test_processes_are_limited_by_the_control_group_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    limited_to(-1, monkeypatch)
    groups = {"/proc/self/cgroup": "0::/a/b\n", "/sys/fs/cgroup/a/b/pids.max": "512\n"}
    machine = machine_of(tmp_path, CGROUP_V2 | groups)
    found = the(kernel.look(machine), "processes")
    assert (found.grade, found.found) == (Grade.WARNING, "at most 512, threads counted")
    (tmp_path / "sys/fs/cgroup/a/b/pids.max").write_text("max\n")
    found = the(kernel.look(machine), "processes")
    assert (found.grade, found.found) == (Grade.OK, "at most any number")
    (tmp_path / "sys/fs/cgroup/a/pids.max").write_text("100\n")
    assert the(kernel.look(machine), "processes").found == "at most 100, threads counted"


def test_processes_are_limited_by_a_control_group_of_version_1_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    limited_to(-1, monkeypatch)
    found = the(kernel.look(machine_of(tmp_path, CGROUP_V1 | {"/sys/fs/cgroup/pids/pids.max": "256\n"})), "processes")
    assert (found.grade, found.found) == (Grade.WARNING, "at most 256, threads counted")


def test_locked_memory_matters_with_infiniband_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    limited_to(65536, monkeypatch)
    assert the(kernel.look(machine_of(tmp_path)), "locked memory").grade is Grade.SKIPPED
    found = the(kernel.look(machine_of(tmp_path, {"/sys/class/infiniband/mlx5_0/": ""})), "locked memory")
    assert (found.grade, found.found) == (Grade.WARNING, "at most 64 KiB a process")


SCOPE = "/proc/sys/kernel/yama/ptrace_scope"
ALL_CAPABILITIES, DOCKERS_OWN = "000001ffffffffff", "00000000a80425fb"


@pytest.mark.parametrize("uid", [0, 1000])
@pytest.mark.parametrize(
    ("scope", "capabilities", "grade", "remedy"),
    [
        ("", DOCKERS_OWN, Grade.OK, ""),
        ("0", DOCKERS_OWN, Grade.OK, ""),
        ("1", ALL_CAPABILITIES, Grade.OK, ""),
        ("1", DOCKERS_OWN, Grade.NOTE, "ptrace_scope=0, "),
        ("2", ALL_CAPABILITIES, Grade.OK, ""),
        ("2", DOCKERS_OWN, Grade.NOTE, "--cap-add SYS_PTRACE"),
        ("3", ALL_CAPABILITIES, Grade.NOTE, "reboot"),
        ("3", DOCKERS_OWN, Grade.NOTE, "reboot"),
    ],
)
def test_py_spy_may_read_ranks_where_yama_or_a_capability_lets_it(
    scope: str, capabilities: str, grade: Grade, remedy: str, uid: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    program(tmp_path, "py-spy", "exit 1")
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    status = f"Name:\tpython\nCapEff:\t{capabilities}\nCapBnd:\t{ALL_CAPABILITIES}\n"
    found = the(kernel.look(machine_of(tmp_path, {SCOPE: f"{scope}\n", "/proc/self/status": status})), "stacks")
    assert (found.grade, remedy in found.remedy) == (grade, True)


def test_no_shared_memory_is_told(tmp_path: Path):
    assert the(kernel.look(machine_of(tmp_path)), "/dev/shm").grade is Grade.WARNING


def test_this_machine_has_an_answer_for_everything():
    found = kernel.look(kernel.Machine())
    assert set(graded(found)) == {"version", "open files", "processes", "/dev/shm", "locked memory", "stacks", "clock"}
    assert all(each.why for each in found if each.grade not in (Grade.OK, Grade.SKIPPED))


def test_a_kernel_that_refuses_process_descriptors_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refused(pid: int) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "pidfd_open", refused)
    found = the(kernel.look(machine_of(tmp_path)), "process descriptors")
    assert (found.grade, "pidfd_open is refused" in found.found) == (Grade.PROBLEM, True)
    monkeypatch.delattr(os, "pidfd_open")
    found = the(kernel.look(machine_of(tmp_path)), "process descriptors")
    assert "this Python was built without pidfd_open" in found.found
