"""Are timeouts that would end healthy ranks found?"""

from __future__ import annotations

import pytest

from supervisor.config.job_spec import JobSpec
from supervisor.core.facts import HangLimits
from supervisor.programs.doctor import timeout_checks
from supervisor.programs.doctor.doctor_finding import DoctorFinding, Grade
from supervisor.report.timeline.timeline import LongestSilence
from tests.programs.doctor.machines import the


def look(limits: HangLimits, *, environ: dict[str, str] | None = None, has_gpus: bool = False) -> list[DoctorFinding]:
    spec = JobSpec(job_id="j", command=("t.py",), hang_limits=limits)
    return timeout_checks.look(spec, environ or {}, has_gpus=has_gpus)


@pytest.mark.parametrize(
    ("first_s", "later_s", "grade"),
    [(None, 30.0, Grade.OK), (5.0, 30.0, Grade.WARNING), (60.0, 90.0, Grade.NOTE), (600.0, 90.0, Grade.OK)],
)
def test_first_heartbeat(first_s: float | None, later_s: float, grade: Grade):
    assert the(look(HangLimits(first_s, later_s)), "first heartbeat").grade is grade


@pytest.mark.parametrize(("limit_s", "grade"), [(None, Grade.SKIPPED), (5.0, Grade.WARNING), (600.0, Grade.OK)])
def test_main_thread(limit_s: float | None, grade: Grade):
    spec = JobSpec(job_id="j", command=("t.py",), auto_heartbeat_s=limit_s)
    assert the(timeout_checks.look(spec, {}, has_gpus=False), "main thread").grade is grade


LONGEST_S = 12.3


@pytest.mark.parametrize(
    ("limit_s", "grade", "says"),
    [
        (None, Grade.SKIPPED, "no limit; the longest silence in job before was 12.3 s, of rank 1: 62 s leaves room"),
        (20.0, Grade.WARNING, "20 s; the longest silence in job before was 12.3 s, of rank 1"),
        (30.0, Grade.NOTE, "30 s; the longest silence in job before was 12.3 s, of rank 1"),
        (62.0, Grade.OK, "62 s; the longest silence in job before was 12.3 s, of rank 1"),
    ],
)
def test_main_thread_by_what_an_earlier_job_measured(limit_s: float | None, grade: Grade, says: str):
    spec = JobSpec(job_id="j", command=("t.py",), auto_heartbeat_s=limit_s)
    earlier = timeout_checks.Measured("before", LongestSilence(LONGEST_S, 600.0, 1, 0))
    found = the(timeout_checks.look(spec, {}, has_gpus=False, earlier=earlier), "main thread")
    assert (found.grade, found.found) == (grade, says)
    assert ("--ft-auto-heartbeat-timeout 62" in found.remedy) == (grade in (Grade.WARNING, Grade.NOTE))


def test_limits_that_an_earlier_job_has_learned_are_shown():
    spec = JobSpec(job_id="j", command=("t.py",))
    learned = timeout_checks.Measured("before", None, "the ranks calculated new limits: heartbeat 9.0 s")
    found = the(timeout_checks.look(spec, {}, has_gpus=False, earlier=learned), "learned limits")
    assert found.found == "job before: the ranks calculated new limits: heartbeat 9.0 s"
    nothing = the(
        timeout_checks.look(spec, {}, has_gpus=False, earlier=timeout_checks.Measured("before")), "learned limits"
    )
    assert (nothing.grade, nothing.found) == (Grade.NOTE, "job before has measured nothing")


def test_nccl_is_compared_with_the_shorter_limit():
    spec = JobSpec(job_id="j", command=("t.py",), auto_heartbeat_s=300.0)
    assert the(timeout_checks.look(spec, {}, has_gpus=True), "nccl watchdog").grade is Grade.OK


@pytest.mark.parametrize(
    ("sections", "grade"),
    [
        ((), Grade.SKIPPED),
        ((("step", 5.0), ("load", None)), Grade.OK),
        ((("step", 5.0), ("checkpoint", 120.0)), Grade.NOTE),
    ],
)
def test_sections(sections: tuple[tuple[str, float | None], ...], grade: Grade):
    assert the(look(HangLimits(None, 60.0, sections)), "sections").grade is grade


@pytest.mark.parametrize(
    ("limits", "grade", "last"),
    [
        (HangLimits(None, None), Grade.OK, "no limit ends the cycle"),
        (HangLimits(None, 2700.0), Grade.OK, "2700 s restart of the cycle"),
        (HangLimits(None, 95.0), Grade.NOTE, ""),
        (HangLimits(None, 300.0, (("step", 5.0),)), Grade.NOTE, ""),
    ],
)
def test_the_order_in_which_a_silent_wrapped_rank_is_dealt_with(limits: HangLimits, grade: Grade, last: str):
    found = the(look(limits), "wrapped call")
    assert found.grade is grade
    assert "60 s restart inside the processes, 90 s end of the silent rank, 95 s SIGKILL" in found.found
    assert found.found.endswith(last)


@pytest.mark.parametrize(
    ("limit_s", "watchdog", "grade"),
    [(2700.0, "", Grade.NOTE), (300.0, "", Grade.OK), (300.0, "200", Grade.NOTE), (None, "", Grade.OK)],
)
def test_nccl_ends_a_rank_before_we_see_it_hang(limit_s: float | None, watchdog: str, grade: Grade):
    environ = {timeout_checks.WATCHDOG: watchdog} if watchdog else {}
    found = look(HangLimits(None, limit_s), environ=environ, has_gpus=True)
    assert the(found, "nccl watchdog").grade is grade
    assert the(look(HangLimits(None, limit_s)), "nccl watchdog").grade is Grade.SKIPPED


def test_errors_that_torch_is_told_to_ignore():
    assert (
        the(look(HangLimits(), environ={timeout_checks.HANDLING: "0"}), timeout_checks.HANDLING).grade is Grade.WARNING
    )
