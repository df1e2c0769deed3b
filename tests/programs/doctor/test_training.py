"""Is the job's Python judged by the needs of restarts?"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from supervisor import __version__
from supervisor.programs.doctor import training
from supervisor.programs.doctor.doctor_finding import Area, DoctorFinding, Grade
from supervisor.programs.doctor.machine_probe import Machine
from tests.programs.doctor.machines import graded, machine_of, program, the

GOOD = {
    "python": "3.12.1", "client": "/env/worker_client/__init__.py", "client_version": __version__,
    "protobuf": "5.29.0", "torch": "2.8.0+cu128", "cuda": "12.8", "nccl": "2.27.5",
}  # fmt: skip


def judged(**changes: str) -> list[DoctorFinding]:
    area = Area("training")
    training.judge(area, {key: value for key, value in (GOOD | changes).items() if value}, "/env/bin/python")
    return area.findings


def test_what_is_good():
    assert set(graded(judged()).values()) == {Grade.OK}


@pytest.mark.parametrize(
    ("changes", "check", "grade"),
    [
        ({"python": "3.10.4"}, "python", Grade.PROBLEM),
        ({"client_fault": "No module named 'worker_client'"}, "worker client", Grade.PROBLEM),
        ({"client_version": "9.9.9"}, "worker client", Grade.NOTE),
        ({"client_version": ""}, "worker client", Grade.OK),
        ({"torch_fault": "No module named 'torch'"}, "torch", Grade.WARNING),
        ({"torch": "2.4.1"}, "torch", Grade.WARNING),
        ({"torch": "2.5.1"}, "torch", Grade.OK),
        ({"nccl": ""}, "nccl", Grade.SKIPPED),
        ({"nccl": "2.21.5"}, "nccl", Grade.WARNING),
        ({"nccl": "2.25.1"}, "nccl", Grade.WARNING),
        ({"nccl": "2.26.2"}, "nccl", Grade.OK),
        ({"nccl": "2.28.2"}, "nccl", Grade.OK),
        ({"nccl": "2.28.3"}, "nccl", Grade.WARNING),
        ({"nccl": "2.28.8"}, "nccl", Grade.WARNING),
        ({"nccl": "2.28.9"}, "nccl", Grade.OK),
    ],
)
def test_what_is_not(changes: dict[str, str], check: str, grade: Grade):
    assert the(judged(**changes), check).grade is grade


def test_without_torch_nothing_is_said_of_its_nccl():
    assert the(judged(nccl="", cuda=""), "nccl").found == "this torch has none"
    assert the(judged(nccl="", torch_fault="No module named 'torch'"), "nccl").found == "no torch to ask"


def test_this_python():
    found = graded(training.look(Machine(), sys.executable))
    assert found["python"] is Grade.OK
    assert found["worker client"] is Grade.OK


def test_a_python_that_is_none(tmp_path: Path):
    program(tmp_path, "loud", "echo hello")
    assert graded(training.look(machine_of(tmp_path), "/no/python")) == {"python": Grade.PROBLEM}
    assert graded(training.look(machine_of(tmp_path), str(tmp_path / "bin/loud"))) == {"python": Grade.PROBLEM}


@pytest.mark.parametrize(("load", "grade"), [("99999.5 1 1 1/9 9", Grade.NOTE), ("0.00 1 1 1/9 9", Grade.PROBLEM)])
def test_a_python_that_is_late_is_no_problem_of_a_machine_under_load(load: str, grade: Grade, tmp_path: Path):
    program(tmp_path, "python", "exec sleep 60")
    machine = machine_of(tmp_path, {"/proc/loadavg": load}, {"PATH": "/usr/bin:/bin"})
    python = str(tmp_path / "bin/python")
    found = the(training.look(machine, python, timeout_s=0.1), "python")
    assert found.grade is grade
    if grade is Grade.NOTE:
        assert found.found == f"{python} could not be checked in 0.1 s; the machine has a load of 99999.5"


def test_variables_of_restarts_inside_the_process_are_told_where_nccl_is(tmp_path: Path):
    program(
        tmp_path,
        "python",
        """echo '{"python": "3.12.1", "client": "c", "protobuf": "5", "torch": "2.8.0", "nccl": "2.27.5"}'""",
    )
    python = str(tmp_path / "bin/python")
    found = graded(training.look(machine_of(tmp_path, environ={"NCCL_NVLS_ENABLE": "0"}), python))
    assert found["NCCL_NVLS_ENABLE"] is Grade.OK
    assert found["TORCH_NCCL_RETHROW_CUDA_ERRORS"] is Grade.NOTE


def test_nothing_is_imported_from_the_folder_in_which_it_is_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("json", "torch"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    training.look(Machine(), sys.executable)
    assert not (tmp_path / "ran").exists()
