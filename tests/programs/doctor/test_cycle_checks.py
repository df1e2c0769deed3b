"""Does doctor say what a job's own checks would find?"""

from __future__ import annotations

import socket
from pathlib import Path

import msgspec
import pytest

from supervisor.config import node_check_plans
from supervisor.config.job_spec import JobSpec
from supervisor.config.node_check_plans import HealthChecks
from supervisor.core.node_check_facts import HealthCheckPolicy
from supervisor.programs.doctor import cycle_checks
from supervisor.programs.doctor.doctor_finding import Grade
from tests.programs.doctor.machines import graded, the

SPEC = JobSpec("job", ("t.py",))


def asking(**wanted: object) -> JobSpec:
    return msgspec.structs.replace(SPEC, health=HealthChecks(**wanted))  # pyright: ignore[reportArgumentType]


def test_a_job_that_asks_for_nothing() -> None:
    assert graded(cycle_checks.look(SPEC, "a")) == {"node": Grade.SKIPPED}


def test_storage_that_is_there_and_storage_that_is_not(tmp_path: Path) -> None:
    found = cycle_checks.look(asking(storage_paths=(str(tmp_path), f"{tmp_path}/none")), "a")
    assert the(found, f"storage {tmp_path}").found.startswith("healthy, ")
    missing = the(found, f"storage {tmp_path}/none")
    assert (missing.grade, missing.found) == (
        Grade.PROBLEM, f"{tmp_path}/none can't be read: No such file or directory"
    )  # fmt: skip
    assert missing.why
    assert missing.remedy


def test_a_service_that_is_absent_or_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "nvhcd.sock"
    absent = the(cycle_checks.look(asking(nvhcd_socket=str(path)), "a"), "nvhcd")
    assert (absent.grade, absent.found) == (Grade.SKIPPED, f"nvhcd can't be asked: there is no socket {path}")
    strict = asking(nvhcd_socket=str(path), policy=HealthCheckPolicy.STRICT)
    assert the(cycle_checks.look(strict, "a"), "nvhcd").grade is Grade.PROBLEM
    monkeypatch.setattr(cycle_checks, "PATIENCE_S", 0.5)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()
        for each in (asking(nvhcd_socket=str(path)), strict):
            late = the(cycle_checks.look(each, "a"), "nvhcd")
            assert (late.grade, late.found) == (
                Grade.WARNING, "it has not answered within 0.5 s; a job waits for 135 s"
            )  # fmt: skip
        monkeypatch.setattr(node_check_plans, "NVHCD_DEADLINE_S", 0.4)
        late = the(cycle_checks.look(strict, "a"), "nvhcd")
        assert (late.grade, late.found) == (Grade.PROBLEM, "it has not answered within 0.4 s")
