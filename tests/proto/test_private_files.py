"""A directory is ours and closed, or we get the reason; so is a file that holds a secret."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from holdfast_wire import private_files


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_it_is_made_for_us_alone_whatever_the_umask(tmp_path: Path, umask: int):
    before = os.umask(umask)
    try:
        private_files.make_folder(tmp_path / "new")
        private_files.make_folder(tmp_path / "new")
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    assert private_files.folder_fault(tmp_path / "new") == ""
    assert list((tmp_path / "new").iterdir()) == []


def test_one_that_is_there_is_left_as_it_is(tmp_path: Path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    private_files.make_folder(tmp_path / "open")
    assert private_files.folder_fault(tmp_path / "open") == (
        f"its mode is 0755, so others may enter it; chmod 0700 {tmp_path / 'open'}"
    )


def test_links_files_and_strangers_are_no_directories_of_ours(tmp_path: Path):
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "file").touch()
    assert private_files.folder_fault(tmp_path / "link") == "it is a symbolic link"
    assert private_files.folder_fault(tmp_path / "file") == "it is not a directory"
    assert private_files.folder_fault(tmp_path / "none") == "No such file or directory"
    if os.geteuid() == 0:
        (tmp_path / "theirs").mkdir(mode=0o700)
        os.chown(tmp_path / "theirs", 4321, 4321)
        assert private_files.folder_fault(tmp_path / "theirs") == "it belongs to user id 4321, not 0"


@pytest.mark.parametrize(("mode", "is_private"), [(0o600, True), (0o400, True), (0o640, False), (0o604, False)])
def test_a_file_that_others_can_open_holds_no_secret(tmp_path: Path, mode: int, is_private: bool):
    path = tmp_path / "secret"
    path.touch()
    path.chmod(mode)
    fault = private_files.secret_fault(path, path.stat())
    assert fault == ("" if is_private else f"others may read it; run chmod 600 {path}")
