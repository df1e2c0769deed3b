"""A spawner goes on in a folder that was removed, as the interpreter itself does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from holdfast_wire.spawner_settings import SpawnerSettings

from worker_client.spawner import full_disks, preload, working_folder


@pytest.fixture
def removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()


def test_a_folder_that_exists_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert working_folder.current() == str(tmp_path)


@pytest.mark.usefixtures("removed")
def test_one_that_was_removed_is_none() -> None:
    assert working_folder.current() == ""


@pytest.mark.usefixtures("removed")
def test_a_module_is_found_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    settings = SpawnerSettings(job_id="job-1", command=("job",), entry="module")
    (tmp_path / "job.py").write_text("import torch\n")
    assert preload.choose(settings).modules == ("torch",)
    (tmp_path / "job.py").write_text("import os, sys\nsys.path.insert(0, os.path.abspath('src'))\nimport torch\n")
    assert preload.choose(settings).reason.endswith("the working folder was removed")


@pytest.mark.usefixtures("removed")
def test_full_file_systems_are_looked_for() -> None:
    assert full_disks.named((), ("train.py", "--data=./data")) == ""
