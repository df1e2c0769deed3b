"""`holdfast doctor` as people type it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from supervisor.cli import doctor, main, output
from supervisor.core.facts import JobState
from supervisor.edges.machine.folders import private_registry
from supervisor.edges.machine.journal.journal import Journal
from supervisor.programs.doctor import training
from supervisor.programs.doctor.doctor_finding import Area, DoctorFinding
from tests.report.timeline.jobs import Told


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skips the import of torch, which tests/programs/doctor/test_training.py covers. Hides others' supervisors."""

    def look(machine: object, python: str) -> list[DoctorFinding]:
        del machine
        area = Area("training")
        area.ok("python", python)
        return area.findings

    def registered() -> tuple[()]:
        return ()

    monkeypatch.setattr(training, "look", look)
    monkeypatch.setattr(private_registry, "registered", registered)
    monkeypatch.setenv("HOLDFAST_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.delenv("HOLDFAST_SOCKET_DIR", raising=False)


def test_a_page_for_people(capsys: pytest.CaptureFixture[str]):
    assert main(["doctor"]) == 0
    told = capsys.readouterr().out
    for area in ("kernel", "control groups", "folders", "network", "slurm", "gpus", "checks", "timeouts", "training"):
        assert re.search(rf"^(ok|note|warning|skipped) +{area} ", told, re.MULTILINE), area
    assert re.search(r"; \d+ ok, \d+ skipped\n$", told)


def test_a_folder_that_was_removed_is_no_problem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["doctor"]) == 0
    assert capsys.readouterr().err == ""


def test_a_document_for_programs(capsys: pytest.CaptureFixture[str]):
    assert main(["doctor", "-o", "json", "--python", "/env/python"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == doctor.SCHEMA
    assert {"area": "training", "check": "python", "grade": "ok", "found": "/env/python", "why": "", "remedy": ""} in (
        document["findings"]
    )


def test_the_options_of_a_run_are_judged(capsys: pytest.CaptureFixture[str]):
    assert main(["doctor", "--", "--ft-initial-rank-heartbeat-timeout", "3"]) == 0
    told = capsys.readouterr().out
    assert re.search(r"^warning +timeouts +first heartbeat +3 s\n +why: .*\n +do: +--ft-initial", told, re.MULTILINE)


def test_limits_are_judged_by_what_an_earlier_job_has_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    job = Told()
    job.begin(2, cycle=0, ranks=range(2))
    job.say(30.0, "main_threads_measured", rank=1, details=(("longest_s", "12.3"), ("limit_s", "600")))
    job.say(40.0, "limits_calculated", "the ranks calculated new limits: heartbeat 9.0 s")
    journal = Journal(tmp_path / "state", on_alarm=print)
    journal.start()
    journal.save(job.report(JobState.SUCCEEDED))
    for event in job.events:
        journal.record(event)
    assert journal.close(10)
    assert main(["doctor", "--job", "job", "--", "--ft-auto-heartbeat-timeout", "20"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "warning timeouts main thread 20 s; the longest silence in job job was 12.3 s, of rank 1 why: " in told
    assert "ok timeouts learned limits job job: the ranks calculated new limits: heartbeat 9.0 s" in told
    assert main(["doctor", "--job", "none"]) != 0
    assert "cannot judge limits by job none: there is no such job" in capsys.readouterr().err


def test_a_problem_is_an_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["doctor", "--socket-dir", str(tmp_path / "none")]) == doctor.PROBLEMS
    assert re.search(r"^problem +folders +service +nobody answers at ", capsys.readouterr().out, re.MULTILINE)


def test_options_that_a_run_would_refuse(capsys: pytest.CaptureFixture[str]):
    assert main(["doctor", "--", "--max-restart", "x"]) == 2
    assert capsys.readouterr().err.startswith("holdfast: cannot use --max-restart")


def test_the_checks_of_a_node_are_made_as_a_run_would(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["doctor", "--", "--ft-storage-health-check-path", f"{tmp_path}/none"]) == doctor.PROBLEMS
    told = capsys.readouterr().out
    assert re.search(r"^problem +checks +storage /\S+/none +\S+ can't be read: No such file", told, re.MULTILINE)


def test_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def narrow(no_colour: bool = False) -> output.TextLayout:
        return output.TextLayout(60, colours=no_colour)

    monkeypatch.setattr(output, "text_layout", narrow)
    main(["doctor"])
    _, *lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60
