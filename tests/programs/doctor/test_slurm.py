"""Are Slurm's settings judged by their effect on a job that stops?"""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.programs.doctor import slurm
from supervisor.programs.doctor.doctor_finding import DoctorFinding, Grade
from tests.programs.doctor.machines import graded, machine_of, program, the

CONFIG = """Configuration data as of 2026-01-02T03:04:05
KillOnBadExit           = {bad}
KillWait                = {wait} sec
ProctrackType           = proctrack/{track}
UnkillableStepTimeout   = {unkillable} sec
"""


def look(
    root: Path, *, bad: int = 0, wait: int = 30, track: str = "cgroup", unkillable: int = 180, bad_by_srun: str = ""
) -> list[DoctorFinding]:
    text = CONFIG.format(bad=bad, wait=wait, track=track, unkillable=unkillable)
    (root / "config").write_text(text)
    program(root, "scontrol", f'[ "$*" = "show config" ] && exec /bin/cat {root}/config')
    return slurm.look(
        machine_of(root, environ={"SLURM_KILL_BAD_EXIT": bad_by_srun} if bad_by_srun else None),
        term_timeout_s=15.0,
        is_given=True,
    )


def test_without_slurm(tmp_path: Path):
    assert graded(slurm.look(machine_of(tmp_path), term_timeout_s=15.0, is_given=True)) == {"settings": Grade.SKIPPED}


def test_settings_that_fit(tmp_path: Path):
    found = look(tmp_path)
    assert set(graded(found)) == {"ProctrackType", "KillWait", "UnkillableStepTimeout", "KillOnBadExit"}
    assert set(graded(found).values()) == {Grade.OK}


@pytest.mark.parametrize(
    ("settings", "check", "grade"),
    [
        ({"track": "linuxproc"}, "ProctrackType", Grade.WARNING),
        ({"wait": 15}, "KillWait", Grade.WARNING),
        ({"unkillable": 60}, "UnkillableStepTimeout", Grade.NOTE),
        ({"bad": 1}, "KillOnBadExit", Grade.WARNING),
        ({"bad_by_srun": "1"}, "KillOnBadExit", Grade.WARNING),
        ({"bad": 1, "bad_by_srun": "0"}, "KillOnBadExit", Grade.OK),
    ],
)
def test_settings_that_do_not(settings: dict[str, object], check: str, grade: Grade, tmp_path: Path):
    found: list[DoctorFinding] = look(tmp_path, **settings)  # pyright: ignore[reportArgumentType]
    assert the(found, check).grade is grade
    assert {each.grade for each in found if each.check != check} == {Grade.OK}


def test_the_default_timeout_after_a_signal_is_only_noted(tmp_path: Path):
    look(tmp_path)
    found = the(slurm.look(machine_of(tmp_path), term_timeout_s=1800.0, is_given=False), "KillWait")
    assert (found.grade, found.found) == (Grade.NOTE, "30 s, and the ranks may take 1800 s after a signal")


def test_a_controller_that_does_not_answer(tmp_path: Path):
    program(tmp_path, "scontrol", "echo slurm_load_ctl_conf error: Unable to contact slurm controller >&2; exit 1")
    found = the(slurm.look(machine_of(tmp_path), term_timeout_s=15.0, is_given=True), "settings")
    assert found.grade is Grade.WARNING
    assert "Unable to contact" in found.found
