"""Is the state directory found in the documented order, and replaced with a warning if it can't be used?"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.edges.machine.folders import default_dirs, state_dir
from supervisor.edges.machine.folders.state_dir import ChosenDir


@pytest.fixture(autouse=True)
def places_of_the_machine() -> None:
    """Leaves the default places as they are: here they are judged, and nothing in them is read."""


@pytest.fixture(autouse=True)
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "none"))
    monkeypatch.setattr(default_dirs, "SHARED_TEMPS", (tmp_path / "tmp",))
    return tmp_path / "tmp" / f"holdfast-{os.geteuid()}" / "state"


def test_flag_then_variable_then_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert state_dir.find("/a", {"HOLDFAST_STATE_DIR": "/b"}) == Path("/a")
    assert state_dir.find(None, {"HOLDFAST_STATE_DIR": "/b"}) == Path("/b")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert state_dir.find(None, {"XDG_STATE_HOME": "/c"}) == Path("/var/lib/holdfast")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert state_dir.find(None, {"XDG_STATE_HOME": "/c"}) == Path("/c/holdfast")
    assert state_dir.find(None, {"XDG_STATE_HOME": "c", "HOME": "/h"}) == Path("/h/.local/state/holdfast")


def test_a_user_without_any_home_gets_a_path_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(Path, "home", no_home)
    assert state_dir.find(None, {}) == Path("/.local/state/holdfast")


def test_it_is_made_for_its_user_alone(tmp_path: Path) -> None:
    wanted = tmp_path / "new" / "state"
    for _ in range(2):
        assert state_dir.choose(str(wanted), tmp_path, {}) == ChosenDir(wanted)
    assert wanted.stat().st_mode & 0o777 == 0o700
    assert list(wanted.iterdir()) == []


def open_to_all(path: Path) -> None:
    path.mkdir()
    path.chmod(0o770)


def a_file_above(path: Path) -> None:
    path.parent.rmdir()
    path.parent.touch()


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (open_to_all, "others may write to it"),
        (Path.touch, "Not a directory"),
        (a_file_above, "File exists"),
    ],
)
def test_where_it_cannot_be_used_a_stand_in_is_and_commands_look_there_too(
    tmp_path: Path, stand_in: Path, spoil: Callable[[Path], None], why: str
) -> None:
    wanted = tmp_path / "home" / "holdfast"
    wanted.parent.mkdir()
    spoil(wanted)
    assert state_dir.places(str(wanted)) == (wanted,)
    chosen = state_dir.choose(str(wanted), tmp_path, {})
    assert chosen.path == stand_in
    assert chosen.warning.startswith(f"cannot use state directory {wanted}: {why}; ")
    assert "with --state-dir or HOLDFAST_STATE_DIR" in chosen.warning
    assert state_dir.places(str(wanted)) == (wanted, stand_in)


def test_a_stand_in_that_somebody_squats_on_is_left_for_the_last_resort(tmp_path: Path, stand_in: Path) -> None:
    stand_in.parent.symlink_to(tmp_path)
    chosen = state_dir.choose("/proc/none", tmp_path, {})
    assert chosen.path == tmp_path / "state"
    assert chosen.path.stat().st_mode & 0o777 == 0o700
    assert state_dir.places("/proc/none") == (Path("/proc/none"),)
