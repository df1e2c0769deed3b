"""What does the prober do at a path, depending on what is there?"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NoReturn

import pytest

from supervisor.edges.machine.health import path_prober
from supervisor.edges.machine.health.path_prober import NAMES_MAX, READ_BYTES, UnlistedError, look


def at(kind: str, path: Path) -> bytes:
    return look(kind, os.fsencode(path))


def test_a_file_a_folder_and_all_else_can_be_used(tmp_path: Path) -> None:
    file, fifo, link = tmp_path / "file", tmp_path / "fifo", tmp_path / "link"
    file.write_bytes(b"x" * (2 * READ_BYTES))
    os.mkfifo(fifo)
    link.symlink_to(file)
    for path in (tmp_path, file, fifo, link, Path("/dev/null"), Path("/dev/zero")):
        assert at("p", path) == b""


def test_a_folder_with_many_names_is_not_read_to_its_end(tmp_path: Path) -> None:
    for number in range(NAMES_MAX + 10):
        (tmp_path / str(number)).touch()
    assert at("p", tmp_path) == b""


def test_what_is_not_there_or_is_no_folder_is_an_error(tmp_path: Path) -> None:
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "nowhere")
    for path in (tmp_path / "nowhere", dangling):
        with pytest.raises(FileNotFoundError):
            at("p", path)
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        at("d", tmp_path / "file")


def test_a_folder_that_may_not_be_listed_is_told_from_one_that_may_not_even_be_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(path: object) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(path_prober.os, "scandir", refuses)
    with pytest.raises(UnlistedError) as refused:
        at("d", tmp_path)
    assert refused.value.errno == errno.EACCES
    monkeypatch.setattr(path_prober.os, "stat", refuses)
    with pytest.raises(PermissionError) as refused:
        at("d", tmp_path)
    assert not isinstance(refused.value, UnlistedError)


def test_a_small_file_is_given_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "health").write_text("healthy\n")
    assert at("t", tmp_path / "health") == b"healthy\n"


def test_of_a_mountinfo_only_what_has_to_do_with_network_file_systems_is_given(tmp_path: Path) -> None:
    nfs = b"41 22 0:51 / /mnt rw - nfs4 server:/x rw\n"
    over = b"42 22 0:52 / /mnt rw - tmpfs tmpfs rw\n"
    local = [b"%d 22 8:1 / /local%d rw - ext4 /dev/sda rw\n" % (each, each) for each in range(5000)]
    (tmp_path / "mountinfo").write_bytes(b"".join([*local, nfs, *local, over, b"no mount\n"]))
    assert at("m", tmp_path / "mountinfo") == nfs + over
