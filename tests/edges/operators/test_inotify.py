"""Does the kernel say which directory has changed, and nothing when none has?"""

from __future__ import annotations

import contextlib
import select
from pathlib import Path

import pytest

from supervisor.edges.operators.inotify import DirectoryWatch


def test_it_names_the_changed_directories(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    with contextlib.closing(DirectoryWatch()) as watch:
        watch.add(one)
        watch.add(two)
        watch.add(two)
        assert watch.take() == set()
        (two / "file").write_text("x")
        assert select.select([watch.fileno()], [], [], 10)[0]
        assert watch.take() == {two}
        (one / "file").write_text("x")
        assert watch.take() == {one}


def test_a_lost_directory_is_an_error(tmp_path: Path) -> None:
    with contextlib.closing(DirectoryWatch()) as watch, pytest.raises(FileNotFoundError):
        watch.add(tmp_path / "absent")
