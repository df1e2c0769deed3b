"""An unexpected fault is one sentence for people, and a bounded number of files for us."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from supervisor.cli import internal_error
from supervisor.edges.machine.folders import default_dirs


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "none"))
    monkeypatch.setattr(default_dirs, "SHARED_TEMPS", (tmp_path,))
    return tmp_path / f"holdfast-{os.geteuid()}"


def test_the_sentence_names_the_fault_and_the_file_has_the_rest(own: Path) -> None:
    try:
        raise ExceptionGroup("tasks", [ValueError("two\nlines")])
    except ExceptionGroup as error:
        told = internal_error.told(error, ["run", "--api-key", "hunter2", "train.py"])
    (path,) = (own / "faults").iterdir()
    assert told == (
        "cannot run holdfast run: ValueError: two lines; this is a fault of Holdfast or of this machine, "
        f"please report it: its traceback is in {path}"
    )
    report = path.read_text()
    assert "ValueError: two" in report
    assert "arguments: run --api-key *** train.py" in report
    assert path.stat().st_mode & 0o777 == 0o600


def test_old_reports_go_and_a_place_that_takes_none_is_said(own: Path, tmp_path: Path) -> None:
    for _ in range(internal_error.REPORTS_KEPT + 3):
        internal_error.told(KeyError("x"), [])
    assert len(list((own / "faults").iterdir())) == internal_error.REPORTS_KEPT
    own.rename(tmp_path / "aside")
    own.symlink_to(tmp_path / "aside")
    assert "no file could be written for its traceback" in internal_error.told(KeyError("x"), [])
