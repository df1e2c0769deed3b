"""A log file that was moved away or removed is left; one in its place, or of which nothing is known, is not."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from holdfast_wire.moved_log_file import leave_if_moved


def opened(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def test_a_file_in_its_place_is_kept(tmp_path: Path) -> None:
    fd = opened(tmp_path / "cycle.log")
    assert not leave_if_moved(fd, str(tmp_path / "cycle.log"))
    os.close(fd)


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_file_that_was_moved_away_is_closed(tmp_path: Path, is_replaced: bool) -> None:
    path = tmp_path / "cycle.log"
    fd = opened(path)
    path.rename(tmp_path / "cycle.log.1")
    if is_replaced:
        path.touch()
    assert leave_if_moved(fd, str(path))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_file_that_its_server_no_longer_knows_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cycle.log"
    fd = opened(path)

    def stale(_: int) -> os.stat_result:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", stale)
        is_left = leave_if_moved(fd, str(path))
    assert is_left


def test_a_path_that_cannot_be_looked_at_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "cycle.log"
    fd = opened(path)
    assert not leave_if_moved(fd, str(path / "below"))
    os.close(fd)
