"""Supervisors and commands of a user try the same directories in the same order."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from supervisor.edges.machine.folders import default_dirs
from supervisor.edges.machine.processes import home_folder

SYSTEM = Path(f"/run/user/{os.geteuid()}")


@pytest.fixture(autouse=True)
def places_of_the_machine() -> None:
    """Leaves the default places as they are: here they are judged, and nothing in them is read."""


def test_the_variable_comes_first_and_the_systems_own_is_known_without_it():
    assert default_dirs.runtime_dirs({"XDG_RUNTIME_DIR": "/r"}) == (Path("/r"), SYSTEM)
    assert default_dirs.runtime_dirs({"XDG_RUNTIME_DIR": str(SYSTEM)}) == (SYSTEM,)
    assert default_dirs.runtime_dirs({"XDG_RUNTIME_DIR": "relative"}) == (SYSTEM,)
    assert default_dirs.runtime_dir({}) is None


def test_own_folders_have_the_users_number():
    assert default_dirs.own_dirs({})[0] == Path(f"/tmp/holdfast-{os.geteuid()}")
    assert len(set(default_dirs.own_dirs({}))) == len(default_dirs.SHARED_TEMPS)


def test_a_chosen_temporary_directory_comes_first_and_each_once():
    assert default_dirs.temp_dirs({"TMPDIR": "/t", "XDG_RUNTIME_DIR": "/r"})[:2] == (Path("/t"), Path("/tmp"))
    assert default_dirs.temp_dirs({"TMPDIR": "/tmp"}).count(Path("/tmp")) == 1
    assert default_dirs.temp_dirs({"TMPDIR": "relative"})[0] == Path("/tmp")


def test_the_folder_at_home_comes_last(tmp_path: Path):
    environment = {"HOME": str(tmp_path)}
    last = home_folder.home_dir(environment)
    assert default_dirs.own_dirs(environment)[-1] == default_dirs.temp_dirs(environment)[-1] == last
