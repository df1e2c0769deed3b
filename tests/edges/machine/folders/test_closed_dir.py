"""A directory is ours and closed, or we get the reason; an unwritable one is found before it is needed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from supervisor.edges.machine.folders import closed_dir


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_it_is_made_for_us_alone_whatever_the_umask(tmp_path: Path, umask: int):
    before = os.umask(umask)
    try:
        closed_dir.make(tmp_path / "new")
        closed_dir.make(tmp_path / "new")
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    assert closed_dir.fault_of(tmp_path / "new") == ""
    assert list((tmp_path / "new").iterdir()) == []


def test_one_that_is_there_is_left_as_it_is(tmp_path: Path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    closed_dir.make(tmp_path / "open")
    assert closed_dir.fault_of(tmp_path / "open") == (
        f"its mode is 0755, so others may enter it; chmod 0700 {tmp_path / 'open'}"
    )


def test_links_files_and_strangers_are_no_directories_of_ours(tmp_path: Path):
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "file").touch()
    assert closed_dir.fault_of(tmp_path / "link") == "it is a symbolic link"
    assert closed_dir.fault_of(tmp_path / "file") == "it is not a directory"
    assert closed_dir.fault_of(tmp_path / "none") == "No such file or directory"
    if os.geteuid() == 0:
        (tmp_path / "theirs").mkdir(mode=0o700)
        os.chown(tmp_path / "theirs", 4321, 4321)
        assert closed_dir.fault_of(tmp_path / "theirs") == "it belongs to user id 4321, not 0"


def test_a_probe_leaves_nothing_and_fails_where_nothing_can_be_written(tmp_path: Path):
    closed_dir.write_probe(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError, match="No such file"):
        closed_dir.write_probe(tmp_path / "none")
