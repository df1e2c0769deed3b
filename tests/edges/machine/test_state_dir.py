"""Is the state directory found in the documented order, and refused where others could write?"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from supervisor.edges.machine import state_dir
from supervisor.errors import ConfigurationError


def test_flag_then_variable_then_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert state_dir.find("/a", {"HOLDFAST_STATE_DIR": "/b"}) == Path("/a")
    assert state_dir.find(None, {"HOLDFAST_STATE_DIR": "/b"}) == Path("/b")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert state_dir.find(None, {"XDG_STATE_HOME": "/c"}) == Path("/var/lib/holdfast")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert state_dir.find(None, {"XDG_STATE_HOME": "/c"}) == Path("/c/holdfast")
    assert state_dir.find(None, {"XDG_STATE_HOME": "c", "HOME": "/h"}) == Path("/h/.local/state/holdfast")


def test_it_is_made_for_its_user_alone(tmp_path: Path) -> None:
    made = state_dir.make(tmp_path / "new" / "state")
    assert made.stat().st_mode & 0o777 == 0o700
    assert state_dir.make(made) == made


def test_a_place_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o770)
    with pytest.raises(ConfigurationError, match="others may write to it; chmod 0700"):
        state_dir.make(tmp_path)


def test_a_place_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"cannot use state directory .*; choose another with --state-dir"):
        state_dir.make(tmp_path / "file" / "state")
